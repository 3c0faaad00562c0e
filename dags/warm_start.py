"""Start a second training from the checkpoint of a first one.

`resume_from` is only where it starts: once the second training has checkpoints
of its own, its attempts resume from those. A URI that does not exist is an
error, never a silent fresh start.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

STEP_SECONDS = os.environ.get("RESUME_EXAMPLE_STEP_SECONDS", "0.1")
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))
TRAIN = ("python", "/opt/trainer/train.py", "--step-seconds", STEP_SECONDS)


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def warm_start() -> None:
    """Pretrain for 200 steps, then go on to step 400 as a training of its own."""
    common = {
        "project_id": "{{ var.value.get('resume_project', 'local-project') }}",
        "region": "{{ var.value.get('resume_region', 'us-central1') }}",
        "image": "{{ var.value.get('resume_image', 'trainer:latest') }}",
        "checkpoint_root": "{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        "service_account": "{{ var.value.get('resume_service_account', '') }}",
        "poll_interval": POLL_SECONDS,
    }
    pretrain = ResumableTrainOperator(task_id="pretrain", command=[*TRAIN, "--steps", "200"], **common)
    finetune = ResumableTrainOperator(
        task_id="finetune",
        command=[*TRAIN, "--steps", "400"],
        resume_from="{{ ti.xcom_pull(task_ids='pretrain', key='checkpoint_uri') }}",
        **common,
    )
    pretrain >> finetune


dag_object = warm_start()
