"""Train with Lightning on a Spot GPU.

The trainer is `dags/trainers/train_lightning.py`; its image has PyTorch,
Lightning and this package.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def train_lightning() -> None:
    """Train with one GPU."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_lightning_image', 'lightning:latest') }}",
        command=["python", "/opt/trainer/train_lightning.py"],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        format="lightning",
        keep_last=3,
        machine_type="g2-standard-8",
        accelerator_type="nvidia-l4",
        accelerator_count=1,
        shm_size="8g",
        poll_interval=POLL_SECONDS,
    )


dag_object = train_lightning()
