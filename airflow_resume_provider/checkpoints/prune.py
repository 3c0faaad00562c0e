"""Deleting what retention does not keep: what it deletes stops existing before its bytes go.

A manifest goes first, so nobody chooses a checkpoint that is half deleted. A
deletion that fails is a warning; without the permission to delete it is one
warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_resume_provider.checkpoints import claims, names
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.records import EndRecord, IntentRecord
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.retention import Candidate, Policy, keep
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.view import ABANDONED, NO_MANIFEST, LineageView, reference_of
from airflow_resume_provider.errors import PermissionDenied, StoreError

log = logging.getLogger("airflow_resume_provider.checkpoints")


# Lineages without permission to delete, of which this process has spoken already.
_warned: set[str] = set()


@dataclass(frozen=True)
class Pruned:
    """What a prune did. `kept` maps URIs to reasons, `failed` to what went wrong."""

    kept: Mapping[str, str]
    deleted: tuple[str, ...]
    failed: Mapping[str, str]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kept": dict(self.kept),
            "deleted": list(self.deleted),
            "failed": dict(self.failed),
            "dry_run": self.dry_run,
        }


def prune(store: Store, policy: Policy, *, protect: Iterable[str] = (), dry_run: bool = False) -> Pruned:
    """Delete what `policy` does not keep, and what unfinished commits of ended attempts have left."""
    view = LineageView(store)
    candidates, leftovers = _sort(view)
    protected = {uri.rstrip("/") for uri in (*protect, *_sources(view), *_pinned(store, view))}
    kept = keep(candidates, policy, protected)
    doomed = [c.reference.uri for c in candidates if c.reference.uri not in kept]
    leftovers = [uri for uri in leftovers if _is_over(store, view, uri)]
    if dry_run:
        return Pruned(kept, tuple(doomed + leftovers), {}, True)
    return _delete_all(store, view, kept, doomed, leftovers)


def _sort(view: LineageView) -> tuple[list[Candidate], list[str]]:
    """Return the checkpoints with a manifest, and the directories of commits that never ended.

    What is there but cannot be understood, or belongs to another training, is in neither.
    """
    candidates, leftovers = [], []
    for attempt in view.attempts():
        for _, uri in view.checkpoints(attempt):
            found = view.load(uri)
            if isinstance(found, Manifest):
                state = view.examine(uri)
                candidates.append(
                    Candidate(reference_of(found, uri), state if isinstance(state, str) else "")
                )
            elif found in (NO_MANIFEST, ABANDONED):
                leftovers.append(uri)
    return candidates, leftovers


def _sources(view: LineageView) -> Iterator[str]:
    """Yield what the running attempt resumes from, and what the next one would."""
    for attempt in reversed(view.attempts()):
        yield view.resumed_from(attempt)
        yield str(view.record(attempt, IntentRecord.FILE).get("offered") or "")
        if any(isinstance(view.examine(uri), Reference) for _, uri in view.checkpoints(attempt)):
            return


def _pinned(store: Store, view: LineageView) -> Iterator[str]:
    pinned = {names.marked(entry.name) for entry in store.objects(names.PINS)}
    for attempt in view.attempts():
        for index, uri in view.checkpoints(attempt):
            if (attempt, index) in pinned:
                yield uri


def _is_over(store: Store, view: LineageView, uri: str) -> bool:
    """Return whether an unfinished commit has left something and can never be finished."""
    place = names.split_checkpoint(uri)
    if place is None:
        return False
    _, attempt, index = place
    ended = attempt < max(view.attempts()) or bool(view.record(attempt, EndRecord.FILE))
    if not ended and not claims.is_dead(store, attempt, index):
        return False
    return any(
        not entry.name.endswith(f"/{names.MANIFEST}")
        for entry in store.objects(uri.removeprefix(f"{store.uri}/"))
    )


def _delete_all(
    store: Store, view: LineageView, kept: Mapping[str, str], doomed: list[str], leftovers: list[str]
) -> Pruned:
    deleted: list[str] = []
    failed: dict[str, str] = {}
    for uri in doomed + leftovers:
        try:
            _delete(store, uri, finished=uri in doomed)
            deleted.append(uri)
        except PermissionDenied as error:
            failed[uri] = error.seen
            if store.uri not in _warned:
                _warned.add(store.uri)
                log.warning("Old checkpoints stay where they are: %s", error)
            break
        except StoreError as error:
            failed[uri] = error.seen
            log.warning("Could not delete %s: %s", uri, error)
    return Pruned(kept, tuple(deleted), failed, False)


def _delete(store: Store, uri: str, *, finished: bool) -> None:
    prefix = uri.removeprefix(f"{store.uri}/")
    manifest = f"{prefix}/{names.MANIFEST}"
    place = names.split_checkpoint(uri)
    if finished:
        store.delete(manifest)
    elif place and not claims.fence(store, *place[1:]):
        return
    bytes_first = [entry.name for entry in store.objects(prefix) if entry.name != manifest]
    with ThreadPoolExecutor(8, thread_name_prefix="prune") as pool:
        list(pool.map(store.delete, bytes_first))
    if finished and place:
        store.delete(claims.claim_name(*place[1:]))
