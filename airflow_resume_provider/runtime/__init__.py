"""The container side: restore, watch, commit, finish. The standard library only at import."""

from __future__ import annotations

from airflow_resume_provider.runtime.sdk import ResumedCheckpoint, Training, current

__all__ = ["ResumedCheckpoint", "Training", "current"]
