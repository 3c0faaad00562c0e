"""What was seen of a job, as plain values: the input of verdicts.

States are kept as the API's own words, so that a state nobody has heard of
yet is carried along instead of crashing the watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ENDED_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_BEGUN_STATES = frozenset({"RUNNING", "CANCELLATION_IN_PROGRESS", "DELETION_IN_PROGRESS"})
GONE = "NOT_FOUND"  # not a state of the API: the job is not there


@dataclass(frozen=True, kw_only=True, slots=True)
class EventSeen:
    """One status event; `time` is seconds since the epoch, 0 when the API gave none."""

    description: str = ""
    time: float = 0.0
    type: str = ""
    exit_code: int | None = None
    task_state: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that travels in a trigger's event."""
        return {
            "description": self.description,
            "time": self.time,
            "type": self.type,
            "exit_code": self.exit_code,
            "task_state": self.task_state,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSeen:
    """One task of the job."""

    name: str = ""
    state: str = ""
    events: tuple[EventSeen, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that travels in a trigger's event."""
        return {"name": self.name, "state": self.state, "events": [e.to_dict() for e in self.events]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskSeen:
        """Read the JSON form."""
        return cls(name=data["name"], state=data["state"], events=_events(data["events"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSeen:
    """One job as the API showed it; `failed_tasks` counts tasks that failed while others go on."""

    name: str
    state: str
    uid: str = ""
    created: float = 0.0
    updated: float = 0.0
    events: tuple[EventSeen, ...] = ()
    tasks: tuple[TaskSeen, ...] = ()
    failed_tasks: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to the job by itself."""
        return self.state in ENDED_STATES or self.state == GONE

    @property
    def waiting(self) -> bool:
        """Whether it is not known to have begun; a state that nobody knows is no sign of that."""
        return not self.over and self.state not in _BEGUN_STATES

    @property
    def failing(self) -> bool:
        """Whether it failed, or will since one of its tasks did."""
        return self.state == "FAILED" or self.failed_tasks > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that travels in a trigger's event."""
        return {
            "name": self.name,
            "state": self.state,
            "uid": self.uid,
            "created": self.created,
            "updated": self.updated,
            "events": [e.to_dict() for e in self.events],
            "tasks": [t.to_dict() for t in self.tasks],
            "failed_tasks": self.failed_tasks,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobSeen:
        """Read the JSON form."""
        plain = {k: data[k] for k in ("name", "state", "uid", "created", "updated", "failed_tasks")}
        tasks = tuple(TaskSeen.from_dict(t) for t in data["tasks"])
        return cls(**plain, events=_events(data["events"]), tasks=tasks)


def _events(items: Iterable[Mapping[str, Any]]) -> tuple[EventSeen, ...]:
    return tuple(EventSeen(**item) for item in items)


def newest_first(events: Iterable[EventSeen]) -> list[EventSeen]:
    """Sort by time, newest first; the API does not promise an order. Later in the list wins a tie."""
    numbered = sorted(enumerate(events), key=lambda pair: (pair[1].time, pair[0]), reverse=True)
    return [event for _, event in numbered]
