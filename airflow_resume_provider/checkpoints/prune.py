"""Deleting what retention does not keep: what it deletes stops existing before its bytes go.

A manifest goes first, so nobody chooses a checkpoint that is half deleted. A
deletion that fails is a warning; without the permission to delete it is one
warning.

The newest complete checkpoint is what a training falls back on when all others are
gone, so it is read and compared before anything is deleted. The runtime does not read
back what it has just committed: the checksums are of the bytes that it sent, the
store has shown all of them at their size, and beside it stays what the attempt was
restored from, which was read in full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_resume_provider.checkpoints import claims, names
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.records import EndRecord, IntentRecord
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.restore import verify
from airflow_resume_provider.checkpoints.retention import Candidate, Policy, check_metric, keep
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.view import ABANDONED, NO_MANIFEST, LineageView, reference_of
from airflow_resume_provider.errors import CheckpointBroken, PermissionDenied, StoreError

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

    `contents` says that the newest checkpoint's bytes are read and compared first;
    one that is not what its manifest says does not count. When no checkpoint can be
    restored, all of them stay. Raises `InvalidInput` for a metric that none of them has.
    """
    view = LineageView(store)
    candidates, leftovers = _sort(view)
    check_metric(candidates, policy)
    if contents:
        candidates = _proven(view, candidates)
    kept = keep(candidates, policy, _protected(store, view, candidates, protect))
    doomed = [c.reference for c in candidates if c.reference.uri not in kept]
    leftovers = [uri for uri in leftovers if _is_over(store, view, uri)]
    if dry_run:
        return Pruned(kept, (*(each.uri for each in doomed), *leftovers), {}, True)
    last = max((c.reference.index for c in candidates if c.reference.uri in kept), default=-1)
    jobs = {each.uri: partial(_delete, store, each, spent=each.index > last) for each in doomed}
    jobs |= {uri: partial(_delete_leftover, store, uri) for uri in leftovers}
    return _delete_all(store, kept, jobs)


def unmark(store: Store, kind: str, place: tuple[int, int]) -> bool:
    """Remove a checkpoint's marks in `quarantine` or `pins`; returns whether there was one."""
    found = [entry.name for entry in store.objects(kind) if names.marked(entry.name) == place]
    for name in found:
        store.delete(name)
    return bool(found)


def _sort(view: LineageView) -> tuple[list[Candidate], list[str]]:
    """Return the checkpoints with a manifest, and the directories of commits that never ended.

    What is there but cannot be understood, or belongs to another training, is in neither.
    """
    candidates, leftovers = [], []
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
    return candidates, leftovers


def _proven(view: LineageView, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Read the newest one without a defect; one that turns out to have one passes to the next older."""
    chain = sorted(candidates, key=lambda c: (c.reference.attempt, c.reference.index))
    for at in reversed(range(len(chain))):
        uri = chain[at].reference.uri
        if chain[at].defect:
            continue
        try:
            verify(*view.at(uri), uri, view.require(uri))
            break
        except CheckpointBroken as error:
            log.warning("%s", error)
            chain[at] = replace(chain[at], defect=error.reason)
    return chain


def _protected(
    store: Store, view: LineageView, candidates: Iterable[Candidate], protect: Iterable[str]
) -> set[str]:
    """Return the URIs of what is pinned or resumed from, compared by numbers: a URI has many spellings."""
    places = {names.marked(entry.name) for entry in store.objects(names.PINS)}
    places |= {view.place(uri) for uri in (*protect, *_sources(view)) if uri}
    return {c.reference.uri for c in candidates if (c.reference.attempt, c.reference.index) in places}


def _sources(view: LineageView) -> Iterator[str]:
    """Yield what the running attempt resumes from, and what the next one would."""
    for attempt in reversed(view.attempts()):
        yield view.resumed_from(attempt)
        yield str(view.record(attempt, IntentRecord.FILE).get("offered") or "")
        if any(isinstance(view.state(uri), Reference) for _, uri in view.checkpoints(attempt)):
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


def _delete_leftover(store: Store, uri: str) -> None:
    prefix = uri.removeprefix(f"{store.uri}/")
    place = names.split_checkpoint(uri)
    # Where one of our writers has begun it must not finish; the tombstone stays.
    if place and claims.is_claimed(store, *place[1:]) and not claims.fence(store, prefix):
        return
    _delete_bytes(store, prefix)


def _delete_bytes(store: Store, prefix: str) -> None:
    manifest = f"{prefix}/{names.MANIFEST}"
    doomed = [entry.name for entry in store.objects(prefix) if entry.name != manifest]
    with ThreadPoolExecutor(8, thread_name_prefix="prune") as pool:
        list(pool.map(store.delete, doomed))
