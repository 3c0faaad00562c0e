"""Everything that lies in a lineage, with the state of each checkpoint, for people and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.records import AttemptRecord, EndRecord
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.view import LineageView, reference_of

COMPLETE = "complete"


@dataclass(frozen=True)
class Row:
    """One checkpoint directory. `state` is `complete` or says why it cannot be resumed from."""

    attempt: int
    index: int
    uri: str
    state: str
    pinned: bool
    reference: Reference | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the reference's fields, where there is one, and the state."""
        own = {"attempt": self.attempt, "index": self.index, "uri": self.uri}
        known = self.reference.to_dict() if self.reference else {}
        return {**known, **own, "state": self.state, "pinned": self.pinned}


def overview(store: Store) -> dict[str, Any]:
    """Return the lineage's attempts and checkpoints, oldest first, in JSON values."""
    view = LineageView(store)
    pinned = {names.marked(entry.name) for entry in store.objects(names.PINS)}
    return {
        "lineage": store.uri,
        "training_id": view.training_id,
        "attempts": [_attempt(view, number, pinned) for number in view.attempts()],
    }


def _attempt(view: LineageView, number: int, pinned: set[tuple[int, int] | None]) -> Mapping[str, Any]:
    started, end = view.record(number, AttemptRecord.FILE), view.record(number, EndRecord.FILE)
    rows = [_row(view, number, index, uri, pinned) for index, uri in sorted(view.checkpoints(number))]
    return {
        "attempt": number,
        "started": started.get("started") or "",
        "resumed_from": started.get("resumed_from") or "",
        "end": end.get("state") or "",
        "checkpoints": [row.to_dict() for row in rows],
    }


def _row(view: LineageView, attempt: int, index: int, uri: str, pinned: set[tuple[int, int] | None]) -> Row:
    manifest, state = view.load(uri), view.state(uri)
    return Row(
        attempt,
        index,
        uri,
        state if isinstance(state, str) else COMPLETE,
        (attempt, index) in pinned,
        reference_of(manifest, uri) if isinstance(manifest, Manifest) else None,
    )
