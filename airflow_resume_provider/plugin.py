"""The Airflow plugin: hears of tasks that a person ends while nothing of them runs.

A trigger that has not begun yet, or whose triggerer is down, is never told of
its end (Airflow calls `on_kill` of running triggers only). The API server, in
which the person's act takes place, is. Loaded by every Airflow process, so it
imports next to nothing.
"""

from __future__ import annotations

from typing import Any

import pluggy
from airflow.plugins_manager import AirflowPlugin

hookimpl = pluggy.HookimplMarker("airflow")


class EndedByHand:
    """Passes on that a person has set a task's state."""

    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any) -> None:
        """A worker names the state before; only a person's act has none."""
        _ended(previous_state, task_instance)

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """The same for success."""
        _ended(previous_state, task_instance)


def _ended(previous_state: Any, task_instance: Any) -> None:
    # Only the API server's task instance is a row of the database, with the operator's name.
    if previous_state is None and getattr(task_instance, "operator", None):
        from airflow_resume_provider.triggers.by_hand import cancel_soon

        cancel_soon(task_instance)


class ResumePlugin(AirflowPlugin):
    """Registers the listener."""

    name = "resume"
    listeners = [EndedByHand()]  # noqa: RUF012 - the form that Airflow reads
