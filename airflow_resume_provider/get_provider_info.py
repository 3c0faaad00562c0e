"""What Airflow asks every provider: who are you and what do you add?"""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_resume_provider"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description; imports nothing, discovery must stay cheap."""
    return {
        "package-name": "airflow-resume-provider",
        "name": "Resumable training",
        "description": "Trains on preemptible GPUs of Google Cloud Batch and resumes from checkpoints.",
        "integrations": [
            {
                "integration-name": "Google Cloud Batch: resumable training",
                "external-doc-url": "https://cloud.google.com/batch",
                "tags": ["gcp"],
            }
        ],
        "operators": [
            {
                "integration-name": "Google Cloud Batch: resumable training",
                "python-modules": [f"{_PACKAGE}.operators.train"],
            }
        ],
        "hooks": [
            {
                "integration-name": "Google Cloud Batch: resumable training",
                "python-modules": [f"{_PACKAGE}.hooks.batch"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Google Cloud Batch: resumable training",
                "python-modules": [f"{_PACKAGE}.triggers.train"],
            }
        ],
        "extra-links": [
            f"{_PACKAGE}.links.train.JobLink",
            f"{_PACKAGE}.links.train.LogsLink",
            f"{_PACKAGE}.links.train.CheckpointLink",
        ],
        "task-decorators": [
            {
                "name": "resumable_train",
                "class-name": f"{_PACKAGE}.decorators.train.resumable_train_task",
            }
        ],
    }
