"""The container side: restore, watch, commit, finish. The standard library only at import."""

from __future__ import annotations

from airflow_resume_provider.runtime.sdk import LocalCheckpoint, Training, current

__all__ = ["LocalCheckpoint", "Training", "current"]
