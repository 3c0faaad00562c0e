"""What the running Airflow offers to triggers, found by looking, not by comparing version numbers."""

from __future__ import annotations


def has_on_kill() -> bool:
    """Return whether Airflow itself tells triggers that a person ended their task (3.3)."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")
