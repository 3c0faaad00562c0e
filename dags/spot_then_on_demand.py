"""Try Spot in one zone, then in others, then pay the full price: a ladder of placements.

A rung is left when its machines cannot be had within `queue_timeout`, or after
`attempts` attempts on it. The checkpoint moves along.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

ARGUMENTS = os.environ.get("RESUME_EXAMPLE_ARGUMENTS", "--steps 600 --step-seconds 0.1").split()
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))
QUEUE_SECONDS = float(os.environ.get("RESUME_EXAMPLE_QUEUE", "900"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def spot_then_on_demand() -> None:
    """Train wherever there is a machine."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="us-central1",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        command=["python", "/opt/trainer/train.py", *ARGUMENTS],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        placements=[
            {"provisioning_model": "SPOT", "zones": ["us-central1-a"], "queue_timeout": QUEUE_SECONDS},
            {"provisioning_model": "SPOT", "region": "us-east1", "queue_timeout": QUEUE_SECONDS},
            {"provisioning_model": "STANDARD"},
        ],
        poll_interval=POLL_SECONDS,
    )


dag_object = spot_then_on_demand()
