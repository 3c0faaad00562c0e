"""The small JSON records of a lineage besides manifests.

`training.json`, `attempts/N/intent.json` (the operator's, before it submits),
`attempts/N/attempt.json` (the container's, when it starts) and
`attempts/N/end.json` (the container's own account of its end). All are
create-only. Unknown fields are kept, so that an older version never destroys
what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, Self

SCHEMA_VERSION = 1


class EndState(StrEnum):
    """How the container saw its own end."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A JSON record with a schema version; `extra` holds fields of newer versions."""

    FILE: ClassVar[str] = ""

    schema: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, unknown fields included."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {**self.extra, **{k: v.value if isinstance(v, Enum) else v for k, v in own.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form; raises `TypeError` when a required field is missing."""
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {k: v for k, v in data.items() if k in names}
        return cls(**known, extra={k: v for k, v in data.items() if k not in names})


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Record):
    """Who this lineage belongs to; written once."""

    FILE: ClassVar[str] = "training.json"

    training_id: str
    generation: int = 1
    dag_id: str = ""
    task_id: str = ""
    run_id: str = ""
    run_after: str = ""
    map_index: int = -1
    created: str = ""


@dataclass(frozen=True, kw_only=True)
class IntentRecord(Record):
    """What the operator is about to submit; written before the job is created.

    `offered` is the URI of the reference handed to the container, or empty.
    """

    FILE: ClassVar[str] = "intent.json"

    attempt: int
    job_name: str = ""
    placement: Mapping[str, Any] = field(default_factory=dict)
    offered: str = ""
    try_number: int = 0
    token: str = ""
    created: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Record):
    """The container's word that the attempt started, and what it resumed from (URI or empty)."""

    FILE: ClassVar[str] = "attempt.json"

    attempt: int
    resumed_from: str = ""
    resumed_step: int = 0
    why: str = ""
    job_name: str = ""
    writer: str = ""
    started: str = ""


@dataclass(frozen=True, kw_only=True)
class VerdictRecord(Record):
    """Why the operator ended an attempt's job; written before that, since then it only looks cancelled."""

    FILE: ClassVar[str] = "verdict.json"

    attempt: int
    verdict: str
    reason: str = ""
    hopeless: bool = False
    created: str = ""


@dataclass(frozen=True, kw_only=True)
class EndRecord(Record):
    """The container's own account of its end; `last_index` is -1 when nothing was committed."""

    FILE: ClassVar[str] = "end.json"

    attempt: int
    state: EndState
    exit_code: int
    last_index: int = -1
    last_step: int = 0
    reason: str = ""
    ended: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", EndState(self.state))
