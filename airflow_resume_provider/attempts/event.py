"""The one typed event that a trigger fires about an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_resume_provider.attempts.observation import JobSeen

SCHEMA_VERSION = 1


class EventKind(StrEnum):
    """Why the watch ended."""

    ENDED = "ended"  # the job is over, or doomed
    QUEUE_TIMEOUT = "queue_timeout"  # it did not start in time
    DEADLINE = "deadline"  # the training's own time limit has passed
    STALLED = "stalled"  # no new checkpoint for too long
    UNREACHABLE = "unreachable"  # the API did not answer within its budget; the job may well be running


@dataclass(frozen=True, kw_only=True)
class AttemptEvent:
    """What the trigger saw, and `carry`: what the operator gave it to hand back.

    The operator's state travels here because `dag.test()` drops the arguments
    of `defer`, and because Airflow keeps nothing else between two legs of a try.
    """

    kind: EventKind
    job_name: str
    message: str = ""
    job: JobSeen | None = None
    carry: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, the payload of Airflow's `TriggerEvent`."""
        return {
            "schema": self.schema,
            "kind": self.kind.value,
            "job_name": self.job_name,
            "message": self.message,
            "job": self.job.to_dict() if self.job else None,
            "carry": dict(self.carry),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttemptEvent:
        """Read the JSON form."""
        return cls(
            kind=EventKind(data["kind"]),
            job_name=data["job_name"],
            message=data.get("message", ""),
            job=JobSeen.from_dict(data["job"]) if data.get("job") else None,
            carry=dict(data.get("carry") or {}),
            schema=int(data.get("schema", SCHEMA_VERSION)),
        )
