"""Train a digit classifier on Spot machines: a preemption costs minutes, never the training.

Set the Airflow Variables (or `AIRFLOW_VAR_…` environment variables)
``resume_project``, ``resume_region``, ``resume_root`` and ``resume_image`` to
run it on Google Cloud; the defaults are those of the local stack.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import dag, task

from airflow_resume_provider.operators.train import ResumableTrainOperator

# Where the trainer lies: in its image, or in a checkout when jobs run as local processes.
TRAINER = os.environ.get("RESUME_EXAMPLE_TRAINER", "/opt/trainer/train.py")
# About a minute at 600 steps, slow enough to watch.
STEPS = os.environ.get("RESUME_EXAMPLE_STEPS", "600")
STEP_SECONDS = os.environ.get("RESUME_EXAMPLE_STEP_SECONDS", "0.1")


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def train_digits() -> None:
    """Train, then say how well it went."""
    train = ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        command=[
            "python",
            TRAINER,
            "--steps",
            str(STEPS),
            "--save-every",
            "50",
            "--step-seconds",
            STEP_SECONDS,
        ],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        machine_type="e2-standard-4",
        provisioning_model="SPOT",
        poll_interval=float(os.environ.get("RESUME_EXAMPLE_POLL", "10")),
        retries=1,
        retry_delay=timedelta(seconds=10),
    )

    @task
    def report(summary: dict) -> str:
        """Read what the training returned; checkpoints themselves never pass through Airflow."""
        return f"step {summary['step']} at {summary['checkpoint_uri']}"

    report(train.output)


dag_object = train_digits()
