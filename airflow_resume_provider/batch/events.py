"""Google Cloud Batch messages turned into plain observations.

Works on the client's messages and on anything of their shape; a state that
this version of the client does not know arrives as a number and is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.observation import EventSeen, JobSeen, TaskSeen

if TYPE_CHECKING:
    from google.cloud.batch_v1 import Job, StatusEvent, Task

# What travels in a trigger's event is bounded, however long a job's history is.
MAX_EVENTS = 20
MAX_TASKS = 10
_MAX_WORDS = 2000


def state_name(state: Any) -> str:
    """Return the state's word, or its number when this client does not know it."""
    return str(getattr(state, "name", state))


def event_seen(event: StatusEvent) -> EventSeen:
    """Read one status event; an exit code of 0 in an event that has no execution is no exit code."""
    return EventSeen(
        description=str(event.description)[:_MAX_WORDS],
        time=_seconds(event.event_time),
        type=str(event.type_),
        exit_code=_exit_code(event),
        task_state=state_name(event.task_state) if event.task_state else "",
    )


def _exit_code(event: StatusEvent) -> int | None:
    present = "task_execution" in event
    return int(event.task_execution.exit_code) if present else None


def _seconds(moment: Any) -> float:
    return float(moment.timestamp()) if moment else 0.0


def _newest(events: Iterable[StatusEvent]) -> tuple[EventSeen, ...]:
    seen = [event_seen(event) for event in events]
    return tuple(sorted(seen, key=lambda event: event.time)[-MAX_EVENTS:])


def job_seen(job: Job, tasks: Iterable[Task] = ()) -> JobSeen:
    """Read a job, complete or through a field mask, with the tasks that were fetched for it."""
    return JobSeen(
        name=str(job.name),
        state=state_name(job.status.state),
        uid=str(job.uid),
        created=_seconds(job.create_time),
        updated=_seconds(job.update_time),
        events=_newest(job.status.status_events),
        tasks=tasks_seen(tasks),
        labels=dict(job.labels),
        failed_tasks=_failed_tasks(job),
    )


def _failed_tasks(job: Job) -> int:
    return sum(int(group.counts.get("FAILED", 0)) for group in job.status.task_groups.values())


def tasks_seen(tasks: Iterable[Task]) -> tuple[TaskSeen, ...]:
    """Read tasks; failed ones come first, so that the bound never hides them."""
    seen = [
        TaskSeen(
            name=str(task.name),
            state=state_name(task.status.state),
            events=_newest(task.status.status_events),
        )
        for task in tasks
    ]
    return tuple(sorted(seen, key=lambda task: task.state != "FAILED")[:MAX_TASKS])
