"""What the running Airflow offers, found by looking, not by comparing version numbers."""

from __future__ import annotations

from typing import Any


def has_on_kill() -> bool:
    """Return whether Airflow itself tells triggers that a person ended their task (3.3)."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")


def has_retry_policy() -> bool:
    """Return whether tasks can decide about their own retries (3.3)."""
    import airflow.sdk

    return hasattr(airflow.sdk, "RetryPolicy")


def missing(context: Any, *, on_preemption: str) -> list[str]:
    """Return in words what this Airflow lacks and what happens instead."""
    words = []
    if context.get("task_state_store") is None:
        words.append(
            "no task state store (3.3): the history of attempts is kept in the checkpoint root alone, and is"
            " not shown in the UI between tries"
        )
    if not has_on_kill():
        words.append(
            "triggers are not told when a person ends their task (3.3): the job is cancelled by the API"
            " server's listener or the interrupted trigger, else by the next try"
        )
    if on_preemption == "retry" and not has_retry_policy():
        words.append('no retry policies (3.3): on_preemption="retry" waits for retry_delay')
    return words
