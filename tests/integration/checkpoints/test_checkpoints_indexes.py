"""Indexes and retention: a number means one checkpoint for ever, and the last good one is never deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import Raw, write_tree

from airflow_resume_provider.checkpoints import AttemptRecord, Lineage, Reference
from airflow_resume_provider.errors import InvalidInput


def commit(lineage: Lineage, tmp_path: Path, step: int, *, attempt: int = 1) -> Reference:
    tree = write_tree(tmp_path / f"in-{step}", {"a": str(step).encode()})
    return lineage.commit(tree, attempt=attempt, step=step)


@pytest.mark.parametrize("attempt", [1, 2])
def test_index_of_a_deleted_checkpoint_is_not_used_again(
    uri: str, lineage: Lineage, tmp_path: Path, attempt: int
) -> None:
    """A quarantined newest checkpoint that was pruned does not pass its mark to the next commit."""
    commit(lineage, tmp_path, 1)
    bad = commit(lineage, tmp_path, 2)
    lineage.quarantine(bad, "nan")
    assert lineage.prune(keep_last=1).deleted == (bad.uri,)
    for again in (lineage, Lineage.open(uri)):
        new = commit(again, tmp_path, 3 + attempt, attempt=attempt)
        assert new.index > bad.index
        assert lineage.choose(attempt + 1).reference == new


def test_stale_mark_is_never_met(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """A mark of a checkpoint that is long gone, without any claim, still keeps its index from use."""
    raw.put("quarantine/0001-000004.json", {"schema": 1, "reason": "nan"})
    assert commit(lineage, tmp_path, 1).index == 5


def test_pruned_checkpoints_take_their_marks_along(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """What is deleted leaves no quarantine mark; what others are is not touched."""
    first, second = commit(lineage, tmp_path, 1), commit(lineage, tmp_path, 2)
    commit(lineage, tmp_path, 3)
    for each in (first, second):
        lineage.quarantine(each, "nan")
    lineage.pin(first)
    lineage.prune(keep_last=1)
    assert [name for name in raw.names() if name.startswith("quarantine/")] == ["quarantine/0001-000000.json"]


def test_newest_with_a_wrong_checksum_does_not_cost_the_last_good_one(
    lineage: Lineage, raw: Raw, tmp_path: Path
) -> None:
    """Prune reads what it relies on: a wrong byte in the newest one keeps the older one."""
    good, bad = commit(lineage, tmp_path, 1), commit(lineage, tmp_path, 2)
    raw.put("attempts/0001/checkpoints/000001/a", b"3")
    assert list(lineage.prune(keep_last=1, dry_run=True).kept) == [good.uri]
    pruned = lineage.prune(keep_last=1)
    assert pruned.deleted == (bad.uri,)
    assert lineage.choose(2, contents=True).reference == good
    assert commit(lineage, tmp_path, 4).index == 2


def test_all_broken_means_nothing_is_deleted(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """When no checkpoint can be restored a prune deletes none."""
    commit(lineage, tmp_path, 1)
    commit(lineage, tmp_path, 2)
    for index in range(2):
        raw.put(f"attempts/0001/checkpoints/{index:06d}/a", b"x")
    assert lineage.prune(keep_last=1).deleted == ()


def test_misspelt_metric_deletes_nothing(lineage: Lineage, raw: Raw) -> None:
    """Keeping the best by a metric that nobody has is refused, and names the metrics there are."""
    for index in range(3):
        raw.checkpoint(1, index, {"a": b"x"}, metrics={"eval": {"loss": index}})
    before = raw.names()
    with pytest.raises(InvalidInput, match=r"eval\.loss"):
        lineage.prune(keep_best=1, metric="eval.los")
    assert raw.names() == before


def test_unpadded_directories_leave_nothing_behind(lineage: Lineage, raw: Raw) -> None:
    """Prune works where things lie: no tombstone appears at the padded place of an unpadded one."""
    raw.checkpoint(1, 6, {"a": b"x"}, directory="attempts/1/checkpoints/6", manifest=False)
    raw.checkpoint(1, 7, {"a": b"x"}, directory="attempts/1/checkpoints/7")
    raw.checkpoint(2, 8, {"a": b"x"}, directory="attempts/2/checkpoints/8")
    raw.put("attempts/2/end.json", {"schema": 1, "attempt": 2, "state": "failed"})
    lineage.prune(keep_last=1)
    there = {name.rpartition("/")[0] for name in raw.names()}
    assert there == {"attempts/2", "attempts/2/checkpoints/8"}


def test_unpadded_highest_index_stays_spent(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """Also a hand-made checkpoint's index is not used again after it was deleted."""
    raw.checkpoint(1, 3, {"a": b"x"}, directory="attempts/1/checkpoints/3")
    bad = raw.checkpoint(1, 7, {"a": b"x"}, directory="attempts/1/checkpoints/7")
    lineage.quarantine(bad, "nan")
    lineage.prune(keep_last=1)
    assert commit(lineage, tmp_path, 1).index == 8
    assert commit(lineage, tmp_path, 2, attempt=2).index == 9


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("directory", ["attempts/0001/checkpoints/000007", "attempts/1/checkpoints/7"])
def test_index_of_an_unfinished_commit_stays_spent(
    lineage: Lineage, raw: Raw, tmp_path: Path, directory: str, claimed: bool
) -> None:
    """What an unfinished commit has left goes, and its index is not used again, claimed or not."""
    raw.checkpoint(1, 0, {"a": b"x"})
    uri = raw.checkpoint(1, 7, {"a": b"x"}, directory=directory, manifest=False)
    if claimed:
        raw.put("attempts/0001/claims/000007.json", {"schema": 1, "attempt": 1, "index": 7})
    raw.put("attempts/0001/end.json", {"schema": 1, "attempt": 1, "state": "failed"})
    assert lineage.prune(keep_last=1).deleted == (uri,)
    assert f"{directory}/a" not in raw.names()
    assert commit(lineage, tmp_path, 1).index == 8
    assert commit(lineage, tmp_path, 2, attempt=2).index == 9


def test_files_below_a_tombstone_go(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """What was fenced loses its files to a prune, once and not again, and stays fenced."""
    raw.checkpoint(1, 0, {"a": b"x"})
    uri = raw.checkpoint(1, 7, {"a": b"x"}, abandoned=True)
    raw.put("attempts/0001/claims/000007.json", {"schema": 1, "attempt": 1, "index": 7})
    raw.put("attempts/0001/end.json", {"schema": 1, "attempt": 1, "state": "failed"})
    assert [lineage.prune(keep_last=1).deleted for _ in range(2)] == [(uri,), ()]
    assert [n for n in raw.names() if n.startswith("attempts/0001/checkpoints/000007")] == [
        "attempts/0001/checkpoints/000007/manifest.json"
    ]
    assert commit(lineage, tmp_path, 1).index == 8


@pytest.mark.parametrize("fields", [{"manifest": False}, {"abandoned": True}])
def test_pinned_leftovers_stay(lineage: Lineage, raw: Raw, fields: dict[str, bool]) -> None:
    """A pin holds whatever it names, also what no commit has finished."""
    raw.checkpoint(1, 0, {"a": b"x"}, **fields)
    raw.checkpoint(1, 1, {"a": b"x"})
    raw.put("attempts/0001/end.json", {"schema": 1, "attempt": 1, "state": "failed"})
    raw.put("pins/0001-000000.json", {"schema": 1})
    before = raw.names()
    assert lineage.prune(keep_last=1).deleted == ()
    assert raw.names() == before


def test_other_spelling_of_a_resume_source_protects_it(file_raw: Raw, tmp_path: Path) -> None:
    """A resume source that is recorded as `%20`, or by a detour, stays; quarantine meets it, too."""
    lineage = Lineage.open(file_raw.uri)
    sources = [file_raw.checkpoint(1, index, {"a": b"x"}) for index in range(4)]
    encoded = sources[0].replace(" ", "%20")
    detour = sources[1].replace("file://", "file://localhost").replace("/l i/", "/l i/../l i/")
    lineage.begin_attempt(AttemptRecord(attempt=2, resumed_from=detour))
    lineage.begin_attempt(AttemptRecord(attempt=3, resumed_from=encoded))
    assert list(lineage.prune(keep_last=1).deleted) == [sources[2]]
    lineage.quarantine(encoded, "nan")
    choice = lineage.choose(4)
    assert choice.passed_over[0].uri == sources[0]
    assert choice.reference is not None
    assert choice.reference.uri == sources[1]


@pytest.fixture
def file_raw(tmp_path: Path) -> Raw:
    return Raw(f"file://{tmp_path}/l i/lineage", "")


def test_marks_can_be_taken_back(lineage: Lineage, tmp_path: Path) -> None:
    """A checkpoint leaves quarantine, or its pin, when a person says so."""
    commit(lineage, tmp_path, 1)
    second = commit(lineage, tmp_path, 2)
    lineage.quarantine(second, "by mistake")
    assert lineage.quarantine_reason(second) == "by mistake"
    assert lineage.release(second)
    assert not lineage.release(second)
    assert lineage.choose(2).reference == second
    lineage.pin(second)
    assert lineage.unpin(second)
