"""What has happened to a training, as its lineage records it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from airflow_resume_provider.checkpoints.records import (
    AttemptRecord,
    EndRecord,
    IntentRecord,
    Record,
    TrainingRecord,
)
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.view import LineageView, read_manifest, read_training, reference_of
from airflow_resume_provider.errors import ManifestError, ObjectNotFound

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class AttemptHistory:
    """One attempt. A record that is absent or unreadable is `None`; checkpoints are the committed ones."""

    number: int
    intent: IntentRecord | None
    started: AttemptRecord | None
    end: EndRecord | None
    checkpoints: tuple[Reference, ...]


@dataclass(frozen=True)
class History:
    """All attempts, oldest first."""

    training: TrainingRecord | None
    attempts: tuple[AttemptHistory, ...]

    @property
    def newest_attempt(self) -> int:
        """The highest number, or 0 when there is no attempt."""
        return self.attempts[-1].number if self.attempts else 0


def read_history(store: Store) -> History:
    """Read a lineage's history; what cannot be understood is left out, what cannot be read raises."""
    view = LineageView(store)
    with ThreadPoolExecutor(8, thread_name_prefix="history") as pool:
        attempts = tuple(pool.map(lambda number: _attempt(store, view, number), view.attempts()))
    return History(read_record(TrainingRecord, read_training(store)), attempts)


def read_record(kind: type[R], data: object) -> R | None:
    """Return the record that `data` is, or `None`."""
    try:
        return kind.from_dict(data) if isinstance(data, dict) and data else None
    except (TypeError, ValueError):
        return None


def _attempt(store: Store, view: LineageView, number: int) -> AttemptHistory:
    return AttemptHistory(
        number,
        read_record(IntentRecord, view.record(number, IntentRecord.FILE)),
        read_record(AttemptRecord, view.record(number, AttemptRecord.FILE)),
        read_record(EndRecord, view.record(number, EndRecord.FILE)),
        tuple(filter(None, (_reference(store, uri) for _, uri in sorted(view.checkpoints(number))))),
    )


def _reference(store: Store, uri: str) -> Reference | None:
    try:
        return reference_of(read_manifest(store, uri.removeprefix(f"{store.uri}/"), uri), uri)
    except (ObjectNotFound, ManifestError):
        return None
