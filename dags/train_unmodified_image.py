"""Train with an image that knows nothing of checkpoints in a bucket.

The training's image stays as it is. A second image, built from
`docker/runtime/Dockerfile`, restores before it and commits beside it; both see
the directory `RESUME_DIR`.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

ARGUMENTS = os.environ.get("RESUME_EXAMPLE_ARGUMENTS", "--steps 600 --step-seconds 0.1").split()
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def train_unmodified_image() -> None:
    """Train with two images."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        runtime_image="{{ var.value.get('resume_runtime_image', 'resume-runtime:latest') }}",
        command=["python", "/opt/trainer/train.py", *ARGUMENTS],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        poll_interval=POLL_SECONDS,
    )


dag_object = train_unmodified_image()
