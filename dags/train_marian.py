"""Train a translation model with Marian on Spot GPUs.

`train.sh` in the image runs Marian with its model directory in `RESUME_DIR`.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def train_marian() -> None:
    """Train with four GPUs."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_marian_image', 'marian:latest') }}",
        command=["bash", "/opt/trainer/train.sh"],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        env={"PRETRAINED_MODEL_MODE": "init"},  # becomes "continue" when something was restored
        format="marian",
        machine_type="g2-standard-48",
        accelerator_type="nvidia-l4",
        accelerator_count=4,
        shm_size="16g",
        poll_interval=POLL_SECONDS,
    )


dag_object = train_marian()
