"""Google Cloud Batch messages turned into plain observations.

Reads the messages below the client's wrappers: of the thousands in a listing
nearly all are unchanged, and the wrappers cost a hundred times the look. A state
that this version of the client does not know arrives as a number and is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from airflow_resume_provider.attempts.observation import EventSeen, JobSeen, TaskSeen

# What travels in a trigger's event is bounded, however long a job's history is.
MAX_EVENTS = 20
MAX_TASKS = 10
_MAX_WORDS = 2000

Signature = tuple[int, int, int]


def raw(message: Any) -> Any:
    """Return the message below the client's wrapper."""
    unwrap = getattr(type(message), "pb", None)
    return unwrap(message) if unwrap is not None else message


@lru_cache(maxsize=256)
def _name(enum: Any, number: int) -> str:
    value = enum.values_by_number.get(number)
    return str(value.name) if value is not None else str(number)


def state_name(message: Any, field: str = "state") -> str:
    """Return an enumeration's word, or its number when this client does not know it."""
    return _name(message.DESCRIPTOR.fields_by_name[field].enum_type, getattr(message, field))


def signature(job: Any) -> Signature:
    """Return what changes whenever there is news about a job, at the price of a glance."""
    status = job.status
    return status.state, len(status.status_events), _failed_tasks(status)


def job_seen(job: Any, tasks: Iterable[Any] = ()) -> JobSeen:
    """Read a job, complete or through a field mask, with the tasks that were fetched for it."""
    job = raw(job)
    return JobSeen(
        name=job.name,
        state=state_name(job.status),
        uid=job.uid,
        created=_seconds(job, "create_time"),
        updated=_seconds(job, "update_time"),
        events=_newest(job.status.status_events),
        tasks=tasks_seen(tasks),
        failed_tasks=_failed_tasks(job.status),
    )


def tasks_seen(tasks: Iterable[Any]) -> tuple[TaskSeen, ...]:
    """Read tasks; failed ones come first, so that the bound never hides them."""
    seen = [_task_seen(raw(task)) for task in tasks]
    return tuple(sorted(seen, key=lambda task: task.state != "FAILED")[:MAX_TASKS])


def _task_seen(task: Any) -> TaskSeen:
    return TaskSeen(name=task.name, state=state_name(task.status), events=_newest(task.status.status_events))


def _newest(events: Iterable[Any]) -> tuple[EventSeen, ...]:
    """The newest ones; an exit code is never among those that are dropped, as times may be missing."""
    ordered = sorted((_event_seen(e) for e in events), key=lambda event: event.time)
    dropped, kept = ordered[:-MAX_EVENTS], ordered[-MAX_EVENTS:]
    if dropped and not any(event.exit_code for event in kept):
        kept = [event for event in dropped if event.exit_code][-1:] + kept
    return tuple(kept)


def _event_seen(event: Any) -> EventSeen:
    return EventSeen(
        description=event.description[:_MAX_WORDS],
        time=_seconds(event, "event_time"),
        type=event.type_,
        exit_code=event.task_execution.exit_code if event.HasField("task_execution") else None,
        task_state=state_name(event, "task_state") if event.task_state else "",
    )


def _seconds(message: Any, field: str) -> float:
    if not message.HasField(field):
        return 0.0
    moment = getattr(message, field)
    return float(moment.seconds + moment.nanos / 1e9)


_AT_WORK = ("PENDING", "ASSIGNED", "RUNNING")


def _failed_tasks(status: Any) -> int:
    """How many tasks failed while others go on; the job's own end follows at once when none does."""
    if not status.task_groups:
        return 0
    counts = [group.counts for group in status.task_groups.values()]
    others = sum(count.get(state, 0) for count in counts for state in _AT_WORK)
    return sum(int(count.get("FAILED", 0)) for count in counts) if others else 0
