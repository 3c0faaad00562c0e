"""Pruning and choosing agree: whatever has happened, no prune deletes what an attempt would resume from."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Raw, write_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_resume_provider.checkpoints import Lineage

STATES = ["good", "short", "gone", "wrong", "cut", "foreign", "quarantined", "none", "tombstone", "newer"]
WEIGHTS = [16, 2, 2, 3, 2, 2, 2, 2, 2, 1]


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(f"file://{tmp_path}/lineage", "")


def resume(raw: Raw, attempt: int, source: str = "") -> None:
    raw.put(f"attempts/{attempt:04d}/attempt.json", {"schema": 1, "attempt": attempt, "resumed_from": source})


def end(raw: Raw, attempt: int) -> None:
    raw.put(f"attempts/{attempt:04d}/end.json", {"schema": 1, "attempt": attempt, "state": "failed"})


def zombie(raw: Raw) -> str:
    """Let two attempts resume from a checkpoint, the first of them commit too late, and a third begin."""
    source = raw.checkpoint(1, 0, {"a": b"x"})
    end(raw, 1)
    for attempt in (2, 3):
        resume(raw, attempt, source)
    raw.checkpoint(2, 2, {"a": b"x"})
    end(raw, 3)
    return source


@pytest.mark.parametrize("spoilt", [b"y", b"yy"])
def test_broken_newest_passes_to_what_the_choice_takes(raw: Raw, spoilt: bytes) -> None:
    """With the newest one broken the source of the attempt before it stays, not just a zombie's commit."""
    source = zombie(raw)
    raw.checkpoint(4, 3, {"a": b"x"})
    raw.put("attempts/0004/checkpoints/000003/a", spoilt)
    lineage = Lineage.open(raw.uri)
    assert source not in lineage.prune(keep_last=1).deleted
    choice = lineage.choose(5, contents=True)
    assert choice.reference is not None
    assert choice.reference.uri == source


def test_running_attempt_can_start_again(raw: Raw) -> None:
    """An attempt that has recorded nothing yet finds the same after a prune, whoever has committed since."""
    source = zombie(raw)
    raw.put("attempts/0004/intent.json", {"schema": 1, "attempt": 4})
    raw.checkpoint(4, 3, {"a": b"x"})
    lineage = Lineage.open(raw.uri)
    lineage.prune(keep_last=1)
    for attempt, restarted in ((4, False), (4, True), (5, False)):
        choice = lineage.choose(attempt, restarted=restarted, contents=True)
        assert choice.reference is not None
        assert (choice.reference.uri == source) is (attempt == 4 and not restarted)


@pytest.mark.parametrize("dry_run", [False, True])
def test_deleted_checkpoint_keeps_the_identity(raw: Raw, dry_run: bool) -> None:
    """Without a training.json the oldest checkpoint says whose they are, also after it has been deleted."""
    raw.checkpoint(1, 0, {"a": b"x"})
    raw.checkpoint(1, 1, {"a": b"x"}, training_id="somebody else's")
    newest = raw.checkpoint(1, 2, {"a": b"x"})
    end(raw, 1)
    lineage = Lineage.open(raw.uri)
    assert len(lineage.prune(keep_last=1, dry_run=dry_run).deleted) == 1
    choice = lineage.choose(2, contents=True)
    assert choice.reference is not None
    assert choice.reference.uri == newest
    assert ("training.json" in raw.names()) is not dry_run


def spoil(raw: Raw, place: tuple[int, int], state: str) -> None:
    """Write a checkpoint of this state."""
    files = {"w": f"{place}".encode(), "s/v": b"abc"}
    at = "attempts/{:04d}/checkpoints/{:06d}".format(*place)
    fields: dict[str, dict[str, Any]] = {
        "foreign": {"training_id": "somebody else's"},
        "newer": {"schema": 9},
        "tombstone": {"abandoned": True},
    }
    raw.checkpoint(*place, files, manifest=state != "none", **fields.get(state, {}))
    damage: dict[str, Callable[[], None]] = {
        "short": lambda: raw.put(f"{at}/w", b""),
        "gone": lambda: raw.delete(f"{at}/w"),
        "wrong": lambda: raw.put(f"{at}/s/v", b"abX"),
        "cut": lambda: raw.put(f"{at}/manifest.json", raw.get(f"{at}/manifest.json")[:50]),
        "quarantined": lambda: raw.put("quarantine/{:04d}-{:06d}.json".format(*place), {"schema": 1}),
    }
    damage.get(state, lambda: None)()


def live(raw: Raw, chance: random.Random) -> tuple[int, dict[tuple[int, int], bool]]:
    """Write a lineage with any past; returns its newest attempt, and the checkpoints with their pins."""
    places: dict[tuple[int, int], bool] = {}
    index, newest = 0, chance.randint(1, 5)

    def some() -> str:
        if not places or chance.random() < 0.4:
            return ""
        return raw.uri + "/attempts/{:04d}/checkpoints/{:06d}".format(*chance.choice(list(places)))

    for attempt in range(1, newest + 1):
        raw.put(f"attempts/{attempt:04d}/intent.json", {"schema": 1, "attempt": attempt, "offered": some()})
        if chance.random() < 0.8:
            resume(raw, attempt, some())
        for _ in range(chance.randint(0, 2)):
            place = (chance.randint(1, attempt) if chance.random() < 0.2 else attempt, index)
            spoil(raw, place, chance.choices(STATES, WEIGHTS)[0])
            places[place] = chance.random() < 0.1
            if places[place]:
                raw.put("pins/{:04d}-{:06d}.json".format(*place), {"schema": 1})
            index += chance.choice([1, 1, 1, 3])
        if chance.random() < 0.6:
            end(raw, attempt)
    return newest, places


def answer(lineage: Lineage, attempt: int, restarted: bool) -> str:
    """Return what is chosen by bytes, or which error ends the choice."""
    try:
        reference = lineage.choose(attempt, restarted=restarted, contents=True).reference
    except Exception as error:
        return type(error).__name__
    return reference.uri if reference else ""


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_prune_changes_a_choice(seed: int) -> None:
    """In any history: the same choice before and after, no pinned file gone, and no index used twice."""
    with tempfile.TemporaryDirectory() as scratch:
        raw = Raw(f"file://{scratch}/lineage", "")
        if seed % 4:
            raw.put("training.json", {"schema": 1, "training_id": "t"})
        newest, places = live(raw, random.Random(seed))
        lineage = Lineage.open(raw.uri)
        starts = [(newest + 1, False)]
        if f"attempts/{newest:04d}/end.json" not in raw.names():
            starts += [(newest, False), (newest, True)]
        before, files = [answer(lineage, *each) for each in starts], raw.names()
        lineage.prune(keep_last=1)
        assert [answer(lineage, *each) for each in starts] == before
        gone = files - raw.names()
        pinned = tuple("attempts/{:04d}/checkpoints/{:06d}/".format(*p) for p, pin in places.items() if pin)
        assert not [name for name in gone if name.startswith(pinned)]
        tree = write_tree(Path(scratch) / "in", {"a": b"new"})
        new = lineage.commit(tree, attempt=newest + 1, step=1)
        assert new.index > max((index for _, index in places), default=-1)
