"""Train on Spot machines with an image of your own: a preemption costs minutes, never the training.

Set the Airflow Variables (or `AIRFLOW_VAR_…` environment variables)
``resume_project``, ``resume_region``, ``resume_root``, ``resume_image`` and
``resume_service_account`` to run it on Google Cloud; the defaults are those of
the local stack.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import dag, task

from airflow_resume_provider.operators.train import ResumableTrainOperator

# About a minute, slow enough to watch.
ARGUMENTS = os.environ.get("RESUME_EXAMPLE_ARGUMENTS", "--steps 600 --step-seconds 0.1").split()
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def train_digits() -> None:
    """Train, then say how well it went."""
    train = ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        command=["python", "/opt/trainer/train.py", *ARGUMENTS],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        machine_type="e2-standard-4",
        provisioning_model="SPOT",
        poll_interval=POLL_SECONDS,
        # For the training's own errors; a preemption never spends one.
        retries=1,
        retry_delay=timedelta(seconds=10),
    )

    @task
    def report(summary: dict) -> str:
        """Read what the training returned; checkpoints themselves never pass through Airflow."""
        return f"step {summary['step']} at {summary['checkpoint_uri']}"

    report(train.output)


dag_object = train_digits()
