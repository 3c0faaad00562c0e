"""Who may write which index: one create-only object per checkpoint that is begun.

Within an attempt at most one commit is under way. A claim whose writer is dead
blocks nobody: its index is left behind, with whatever lies there, and never
written to again. A claim whose writer cannot be seen from here (another machine,
another container) is fenced first: its manifest's name is taken by a tombstone,
so that of two writers with the same number exactly one can commit.

An index is used once for ever, so that a mark or a reference never means another
checkpoint than it did: whoever deletes the highest one leaves its claim, as spent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.store import Store, exists
from airflow_resume_provider.checkpoints.view import LineageView, read_json
from airflow_resume_provider.checkpoints.writer import Life, Writer
from airflow_resume_provider.errors import AlreadyExists, CommitConflict

_ROUNDS = 20


@dataclass(frozen=True)
class Claim:
    """The right to write one checkpoint. `shape` tells two commits' contents apart, roughly and cheaply."""

    attempt: int
    index: int
    shape: str
    writer: Writer

    @property
    def prefix(self) -> str:
        """The checkpoint's directory below the lineage."""
        return names.checkpoint_prefix(self.attempt, self.index)


class Busy(CommitConflict):
    """Another living process is committing; `claim` is its."""

    claim: Claim


_ours: set[tuple[str, int, int]] = set()
# Claims that are known to be finished, fenced or dead; they stay so.
_settled: set[tuple[str, int, int]] = set()
_lock = threading.Lock()


def claim_next(store: Store, attempt: int, shape: str, floor: int) -> Claim:
    """Claim the attempt's next index, at least `floor`; raises `Busy`."""
    for _ in range(_ROUNDS):
        view = LineageView(store)
        claims = claimed(store, view, attempt)
        used = {index for index, _ in view.checkpoints(attempt)} | set(claims)
        for index, name in sorted(claims.items()):
            _settle(store, attempt, index, name)
        claim = Claim(attempt, max([floor - 1, *used]) + 1, shape, Writer.current())
        if _write(store, claim):
            return claim
    raise CommitConflict(
        f"Other writers took every index of attempt {attempt} in {store.uri}.", did="Nothing was committed."
    )


def release(store: Store, claim: Claim) -> None:
    """Say that this process is done with a claim, one way or the other."""
    with _lock:
        _ours.discard((store.uri, claim.attempt, claim.index))


def claim_name(attempt: int, index: int) -> str:
    """Return the object that claims a checkpoint."""
    return f"{names.attempt_prefix(attempt)}/{names.CLAIMS}/{index:06d}.json"


def claimed(store: Store, view: LineageView, attempt: int) -> Mapping[int, str]:
    """Return the indexes of an attempt that are claimed, each with its claim's name."""
    found = {}
    for directory in view.attempt_directories.get(attempt, ()):
        for entry in store.objects(f"{names.ATTEMPTS}/{directory}/{names.CLAIMS}"):
            index = names.number(entry.name.rpartition("/")[2].removesuffix(".json"))
            if index is not None:
                found[index] = entry.name
    return found


def is_claimed(store: Store, attempt: int, index: int) -> bool:
    """Return whether one of our writers has begun this checkpoint."""
    return exists(store, claim_name(attempt, index))


def spend(store: Store, prefix: str, index: int) -> None:
    """Make the claim of the checkpoint at `prefix` last: nobody else will have its index."""
    raw = json.dumps({"schema": 1, "index": index, "deleted": True}).encode()
    name = f"{prefix.rpartition(f'/{names.CHECKPOINTS}/')[0]}/{names.CLAIMS}/{index:06d}.json"
    store.upload(name, len(raw), lambda _: iter([raw]))


def _settle(store: Store, attempt: int, index: int, name: str) -> None:
    """Make sure that an earlier claim can no longer turn into a commit that is not seen, or raise `Busy`."""
    if (store.uri, attempt, index) not in _settled:
        _settle_new(store, attempt, index, name)
        _settled.add((store.uri, attempt, index))


def _settle_new(store: Store, attempt: int, index: int, name: str) -> None:
    if exists(store, f"{names.checkpoint_prefix(attempt, index)}/{names.MANIFEST}"):
        return
    if read_json(store, name).get("deleted"):
        return
    claim = _read(store, attempt, index)
    life = _life(store, claim)
    if life is Life.ALIVE:
        raise _busy(store, claim)
    if life is Life.UNKNOWN:
        fence(store, claim.prefix)


def _read(store: Store, attempt: int, index: int) -> Claim:
    data = read_json(store, claim_name(attempt, index))
    writer = data.get("writer")
    return Claim(
        attempt,
        index,
        str(data.get("shape", "")),
        Writer.from_dict(writer if isinstance(writer, dict) else {}),
    )


def _life(store: Store, claim: Claim) -> Life:
    life = claim.writer.life()
    if life is Life.OURSELVES:
        return Life.ALIVE if (store.uri, claim.attempt, claim.index) in _ours else Life.DEAD
    return life


def is_alive(store: Store, claim: Claim) -> bool:
    """Return whether the claim's commit is known to be under way."""
    return _life(store, claim) is Life.ALIVE


def is_dead(store: Store, attempt: int, index: int) -> bool:
    """Return whether a commit that was begun is known to be over."""
    return _life(store, _read(store, attempt, index)) is Life.DEAD


def fence(store: Store, prefix: str) -> bool:
    """Take a manifest's name so that nobody can commit there any more; `False` when somebody has."""
    tombstone = {"schema": 1, "abandoned": True, "by": Writer.current().to_dict()}
    try:
        store.create(f"{prefix}/{names.MANIFEST}", json.dumps(tombstone).encode())
    except AlreadyExists:
        return False
    return True


def _busy(store: Store, claim: Claim) -> Busy:
    return Busy(
        f"Process {claim.writer.pid} is committing checkpoint {claim.index} of attempt {claim.attempt}"
        f" to {store.uri}.",
        did="Nothing was committed.",
        can="Let one process commit at a time.",
        claim=claim,
    )


def _write(store: Store, claim: Claim) -> bool:
    record = {
        "schema": 1,
        "attempt": claim.attempt,
        "index": claim.index,
        "shape": claim.shape,
        "writer": claim.writer.to_dict(),
    }
    with _lock:
        _ours.add((store.uri, claim.attempt, claim.index))
    try:
        store.create(claim_name(claim.attempt, claim.index), json.dumps(record).encode())
        # A listing that is older than somebody's whole commit would claim that commit's index.
        if not exists(store, f"{claim.prefix}/{names.MANIFEST}"):
            return True
    except AlreadyExists:
        pass
    except BaseException:
        release(store, claim)
        raise
    release(store, claim)
    return False
