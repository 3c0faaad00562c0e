"""A training that fails in the midst of it: fix the cause, clear the task, and it goes on where it was.

Set the Variable ``resume_broken_after`` to a step, for example 120, and the
training fails there. Delete the Variable and clear the task in the UI: the next
try resumes from the last checkpoint before the error, not from step 0.
(`on_clear="fresh"` on the operator makes clearing start again instead.)
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

ARGUMENTS = os.environ.get("RESUME_EXAMPLE_ARGUMENTS", "--steps 600 --step-seconds 0.1").split()
POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def fix_and_clear() -> None:
    """Train with an error that a Variable switches on."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_image', 'trainer:latest') }}",
        command=[
            *("python", "/opt/trainer/train.py", *ARGUMENTS),
            *("--fail-after", "{{ var.value.get('resume_broken_after', '0') }}"),
        ],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        poll_interval=POLL_SECONDS,
        on_clear="resume",
        retries=0,
    )


dag_object = fix_and_clear()
