"""Deleting what retention does not keep: what it deletes stops existing before its bytes go.

A manifest goes first, so nobody chooses a checkpoint that is half deleted. A
deletion that fails is a warning; without the permission to delete it is one
warning.

What the next attempt would resume from, and what the running one would if it started
again, is asked of the rule of choosing itself, and is read and compared before anything
is deleted. The runtime does not read back what it has just committed: the checksums are
of the bytes that it sent, the store has shown all of them at their size, and beside it
stays what the attempt was restored from, which was read in full.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from airflow_resume_provider.checkpoints import claims, names
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.records import EndRecord, IntentRecord, TrainingRecord
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.restore import verify
from airflow_resume_provider.checkpoints.retention import Candidate, Policy, check_metric, keep
from airflow_resume_provider.checkpoints.select import select
from airflow_resume_provider.checkpoints.store import Store, exists
from airflow_resume_provider.checkpoints.view import ABANDONED, NO_MANIFEST, LineageView, reference_of
from airflow_resume_provider.errors import (
    AlreadyExists,
    CheckpointBroken,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
)

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


def prune(
    store: Store,
    policy: Policy,
    *,
    protect: Iterable[str] = (),
    dry_run: bool = False,
    contents: bool = True,
) -> Pruned:
    """Delete what `policy` does not keep, and what unfinished commits of ended attempts have left.

    `contents` says that the bytes of what would be resumed from are read and compared
    first; a checkpoint that is not what its manifest says does not count. When none can be
    restored, all of them stay. Raises `InvalidInput` for a metric that none of them has.
    """
    view = LineageView(store)
    candidates, leftovers, strangers = _sort(view)
    check_metric(candidates, policy)
    known = _Known(view, candidates)
    chosen = _chosen(known, contents)
    candidates = known.judged()
    places = _places(store, view, candidates, (*protect, *chosen))
    kept = keep(candidates, policy, {c.reference.uri for c in candidates if _place(c) in places})
    doomed = [c.reference for c in candidates if c.reference.uri not in kept]
    leftovers = [uri for uri in leftovers if view.place(uri) not in places and _is_over(store, view, uri)]
    if dry_run:
        return Pruned(kept, (*(each.uri for each in doomed), *leftovers), {}, True)
    if doomed and strangers:
        _record_identity(store, view.training_id)
    last = max((c.reference.index for c in candidates if c.reference.uri in kept), default=-1)
    jobs = {each.uri: partial(_delete, store, each, spent=each.index > last) for each in doomed}
    jobs |= {uri: partial(_delete_leftover, store, view, uri, last=last) for uri in leftovers}
    return _delete_all(store, kept, jobs)


def unmark(store: Store, kind: str, place: tuple[int, int]) -> bool:
    """Remove a checkpoint's marks in `quarantine` or `pins`; returns whether there was one."""
    found = [entry.name for entry in store.objects(kind) if names.marked(entry.name) == place]
    for name in found:
        store.delete(name)
    return bool(found)


def _sort(view: LineageView) -> tuple[list[Candidate], list[str], list[str]]:
    """Return the checkpoints with a manifest, the directories of commits that never ended, and the others.

    The others are there but cannot be understood, or belong to another training.
    """
    candidates, leftovers, strangers = [], [], []
    for attempt in view.attempts():
        for _, uri in view.checkpoints(attempt):
            found = view.load(uri)
            if isinstance(found, Manifest):
                state = view.state(uri)
                candidates.append(
                    Candidate(reference_of(found, uri), state if isinstance(state, str) else "")
                )
            elif found in (NO_MANIFEST, ABANDONED):
                leftovers.append(uri)
            else:
                strangers.append(uri)
    return candidates, leftovers, strangers


def _record_identity(store: Store, training_id: str) -> None:
    """Write down whose lineage it is where only the oldest checkpoint says so: that one may go now.

    Without it a checkpoint of another training could become the oldest, and ours be passed over.
    """
    if training_id and not exists(store, names.TRAINING):
        record = TrainingRecord(
            training_id=training_id, created=datetime.now(UTC).isoformat(timespec="milliseconds")
        )
        with suppress(AlreadyExists):
            store.create(names.TRAINING, json.dumps(record.to_dict()).encode())


class _Known:
    """The lineage as the rule of choosing sees it here: only what lies in it and has a manifest.

    Whether another lineage still has what was resumed from is not asked: what would be
    chosen without that is not deleted, so it does not matter.
    """

    def __init__(self, view: LineageView, candidates: Sequence[Candidate]) -> None:
        self._view = view
        self._candidates = {each.reference.uri: each for each in candidates}
        self._proven: set[str] = set()

    def attempts(self) -> Sequence[int]:
        return self._view.attempts()

    def checkpoints(self, attempt: int) -> Sequence[tuple[int, str]]:
        found = [each.reference for each in self._candidates.values()]
        return [(each.index, each.uri) for each in found if each.attempt == attempt]

    def resumed_from(self, attempt: int) -> str:
        return self._view.resumed_from(attempt)

    def place(self, uri: str) -> tuple[int, int] | None:
        return self._view.place(uri)

    def examine(self, uri: str) -> Reference | str:
        found = self._candidates.get(uri)
        return "it is not here" if found is None else found.defect or found.reference

    def ended(self, attempt: int) -> bool:
        """Return whether an attempt has given an account of its end."""
        return bool(self._view.record(attempt, EndRecord.FILE))

    def is_sound(self, uri: str) -> bool:
        """Read a checkpoint and compare; what is broken is not chosen again."""
        if uri in self._proven:
            return True
        try:
            verify(*self._view.at(uri), uri, self._view.require(uri))
        except CheckpointBroken as error:
            log.warning("%s", error)
            self._candidates[uri] = replace(self._candidates[uri], defect=error.reason)
            return False
        self._proven.add(uri)
        return True

    def judged(self) -> list[Candidate]:
        """Return the checkpoints, with the defects that reading has shown."""
        return list(self._candidates.values())


def _chosen(known: _Known, contents: bool) -> set[str]:
    """Return what the next attempt would resume from, and the running one if it started again."""
    newest = max(known.attempts(), default=0)
    found = set()
    for attempt in (newest + 1,) if known.ended(newest) else (newest + 1, newest):
        choice = select(attempt, known)
        while contents and choice.reference and not known.is_sound(choice.reference.uri):
            choice = select(attempt, known)
        if choice.reference:
            found.add(choice.reference.uri)
    return found


def _places(
    store: Store, view: LineageView, candidates: Iterable[Candidate], protect: Iterable[str]
) -> set[tuple[int, int] | None]:
    """Return the numbers of what is pinned or resumed from: a URI has many spellings."""
    pinned = {names.marked(entry.name) for entry in store.objects(names.PINS)}
    restorable = {each.reference.attempt for each in candidates if not each.defect}
    found = pinned | {view.place(uri) for uri in (*protect, *_sources(view, restorable)) if uri}
    return found - {None}


def _place(candidate: Candidate) -> tuple[int, int]:
    return (candidate.reference.attempt, candidate.reference.index)


def _sources(view: LineageView, restorable: Collection[int]) -> Iterator[str]:
    """Yield what the attempts resumed from, or were offered, back to one that can be resumed from itself."""
    for attempt in reversed(view.attempts()):
        yield view.resumed_from(attempt)
        yield str(view.record(attempt, IntentRecord.FILE).get("offered") or "")
        if attempt in restorable:
            return


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


def _delete_all(store: Store, kept: Mapping[str, str], jobs: Mapping[str, Callable[[], None]]) -> Pruned:
    deleted: list[str] = []
    failed: dict[str, str] = {}
    for uri, delete in jobs.items():
        try:
            delete()
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
            if isinstance(error, StoreUnavailable):  # each further one would be waited for as long
                break
    return Pruned(kept, tuple(deleted), failed, False)


def _delete(store: Store, reference: Reference, *, spent: bool) -> None:
    """Delete a checkpoint with its marks; `spent` when nothing that stays has a higher index."""
    place = (reference.attempt, reference.index)
    prefix = reference.uri.removeprefix(f"{store.uri}/")
    if spent:
        claims.spend(store, prefix, reference.index)
    store.delete(f"{prefix}/{names.MANIFEST}")
    _delete_bytes(store, prefix)
    if not spent:
        store.delete(claims.claim_name(*place))
    unmark(store, names.QUARANTINE, place)


def _delete_leftover(store: Store, view: LineageView, uri: str, *, last: int) -> None:
    """Delete what an unfinished commit has left; no index above `last` is forgotten with it."""
    prefix = uri.removeprefix(f"{store.uri}/")
    place = names.split_checkpoint(uri)
    # A tombstone that is there stays, and keeps both the place and the index.
    if place and view.load(uri) != ABANDONED:
        _, attempt, index = place
        # Where one of our writers has begun it must not finish.
        if claims.is_claimed(store, attempt, index):
            if not claims.fence(store, prefix):
                return
        elif index > last:
            claims.spend(store, prefix, index)
    _delete_bytes(store, prefix)


def _delete_bytes(store: Store, prefix: str) -> None:
    manifest = f"{prefix}/{names.MANIFEST}"
    doomed = [entry.name for entry in store.objects(prefix) if entry.name != manifest]
    with ThreadPoolExecutor(8, thread_name_prefix="prune") as pool:
        list(pool.map(store.delete, doomed))
