"""Sweep over learning rates by dynamic task mapping; each trial is preempted and resumed on its own.

Every mapped task instance has its own lineage below the checkpoint root, so
trials never read each other's checkpoints. Running the DAG's failed trials
again resumes them and leaves the finished ones alone.
"""

from __future__ import annotations

import os

from airflow.sdk import dag, task

from airflow_resume_provider.operators.train import ResumableTrainOperator

ARGUMENTS = os.environ.get("RESUME_EXAMPLE_ARGUMENTS", "--steps 600 --step-seconds 0.1").split()
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))
LEARNING_RATES = ("0.0005", "0.002", "0.008")


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def sweep() -> None:
    """Train once for each learning rate and name the best."""
    trials = ResumableTrainOperator.partial(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        poll_interval=POLL_SECONDS,
        # Quota is shared: at most so many machines at a time.
        max_active_tis_per_dagrun=2,
    ).expand(
        command=[
            ["python", "/opt/trainer/train.py", *ARGUMENTS, "--learning-rate", rate]
            for rate in LEARNING_RATES
        ]
    )

    @task
    def best(summaries: list[dict]) -> str:
        """Return the checkpoint with the highest accuracy."""
        found = max(summaries, key=lambda summary: summary["metrics"]["accuracy"])
        return str(found["checkpoint_uri"])

    best(trials.output)


dag_object = sweep()
