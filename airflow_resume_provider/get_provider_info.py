"""What Airflow asks every provider: who are you and what do you add?"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description; imports nothing, discovery must stay cheap."""
    return {
        "package-name": "airflow-resume-provider",
        "name": "Resumable training",
        "description": "Trains on preemptible GPUs of Google Cloud Batch and resumes from checkpoints.",
    }
