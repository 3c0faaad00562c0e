"""A training that is preempted again and again, with notes of when Airflow has brought its task back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_resume_provider.operators.train import ResumableTrainOperator


class Noted(ResumableTrainOperator):
    """Notes when its own code is entered after a wait, and when Google's client is loaded."""

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Note the moments and go on."""
        entered = time.time()
        import google.cloud.batch_v1  # noqa: F401

        with Path(os.environ["RESUMED_AT"]).open("a") as notes:
            notes.write(f"{entered} {time.time()}\n")
        return super().execute_complete(context, event)


with DAG("measured", schedule=None, catchup=False):
    Noted(
        task_id="train",
        project_id="local-project",
        region="us-central1",
        image="trainer:latest",
        command=["python", os.environ["E2E_TRAINER"], "--step-seconds", "0.2"],
        checkpoint_root="gs://resume/measured",
        poll_interval=1,
        trigger_min_seconds=0,
    )
