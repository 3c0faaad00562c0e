"""Retention and quarantine in a real store: what is deleted, in which order, and what never is."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, Raw, refuse, write_tree

from airflow_resume_provider.checkpoints import AttemptRecord, EndRecord, EndState, IntentRecord, Lineage
from airflow_resume_provider.checkpoints.no_progress import DEATHS_TO_GIVE_UP
from airflow_resume_provider.errors import CheckpointNotFound, InvalidInput, NoProgressError


def remaining(lineage: Lineage) -> list[tuple[int, int]]:
    return [(a.number, c.index) for a in lineage.history().attempts for c in a.checkpoints]


def test_rules_together(lineage: Lineage, raw: Raw) -> None:
    """The newest, the best, every m-th and the pinned ones stay; all the others' objects are gone."""
    for index in range(10):
        raw.checkpoint(1, index, {"a": b"x"}, metrics={"eval": {"loss": abs(index - 6)}})
    lineage.pin(f"{raw.uri}/attempts/0001/checkpoints/000001", "I want it")
    pruned = lineage.prune(keep_last=2, keep_best=1, metric="eval.loss", keep_every=4)
    assert remaining(lineage) == [(1, n) for n in (0, 1, 4, 6, 8, 9)]
    assert [uri[-1] for uri in pruned.deleted] == ["2", "3", "5", "7"]
    assert not [name for name in raw.names() if "000002" in name]
    assert "pinned" in pruned.kept[f"{raw.uri}/attempts/0001/checkpoints/000001"]


def test_dry_run_deletes_nothing(lineage: Lineage, raw: Raw) -> None:
    """A dry run says what would go, and that it did not."""
    for index in range(3):
        raw.checkpoint(1, index, {"a": b"x"})
    before = raw.names()
    assert len(lineage.prune(keep_last=1, dry_run=True).deleted) == 2
    assert raw.names() == before


def test_resume_source_stays(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """What the running attempt resumed from stays, so that its death loses nothing (lightning#21813)."""
    uris = [raw.checkpoint(1, index, {"a": b"x"}) for index in range(3)]
    lineage.begin_attempt(AttemptRecord(attempt=2, resumed_from=uris[0]))
    lineage.prune(keep_last=1)
    assert remaining(lineage) == [(1, 0), (1, 2)]
    lineage.commit(write_tree(tmp_path / "in", {"a": b"y"}), attempt=2, step=9)
    lineage.prune(keep_last=1)
    assert (1, 0) in remaining(lineage)
    assert (2, 3) in remaining(lineage)


def test_offered_checkpoint_stays(lineage: Lineage, raw: Raw) -> None:
    """What the next attempt has been offered stays, too."""
    uris = [raw.checkpoint(1, index, {"a": b"x"}) for index in range(3)]
    lineage.write_intent(IntentRecord(attempt=2, offered=uris[1]))
    lineage.prune(keep_last=1)
    assert remaining(lineage) == [(1, 1), (1, 2)]


def test_broken_newest_is_not_the_newest(lineage: Lineage, raw: Raw) -> None:
    """A broken newer checkpoint does not push the last good one out; other trainings' are not touched."""
    raw.put("training.json", {"schema": 1, "training_id": "t"})
    raw.checkpoint(1, 0, {"a": b"x"})
    raw.checkpoint(1, 1, {"a": b"x"})
    raw.checkpoint(1, 2, {"a": b"x", "b": b"y"})
    raw.delete("attempts/0001/checkpoints/000002/b")
    raw.checkpoint(1, 3, {"a": b"x"}, training_id="somebody else's")
    raw.put("attempts/0001/checkpoints/000004/manifest.json", {"schema": 2})
    lineage.prune(keep_last=1)
    names = raw.names()
    assert "attempts/0001/checkpoints/000001/a" in names
    assert "attempts/0001/checkpoints/000000/a" not in names
    assert "attempts/0001/checkpoints/000003/a" in names
    assert "attempts/0001/checkpoints/000004/manifest.json" in names


def test_manifest_goes_first(gs_uri: str, gs_raw: Raw, server: DisturbedServer) -> None:
    """A checkpoint stops existing before its bytes go: no moment shows half of one."""
    for index in range(2):
        gs_raw.checkpoint(1, index, {"a": b"x", "b": b"y"})
    server.requests.clear()
    Lineage.open(gs_uri).prune(keep_last=1)
    deleted = [path.rpartition("%2F")[2] for method, path in server.requests if method == "DELETE"]
    assert deleted[0] == "manifest%2Ejson"
    assert {"a", "b"} <= set(deleted[1:])


def test_without_permission_to_delete(
    gs_uri: str, gs_raw: Raw, server: DisturbedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without delete permission a prune warns once, and committing goes on (nebius/ml-cookbook#38)."""
    for index in range(5):
        gs_raw.checkpoint(1, index, {"a": b"x"})
    server.answer = refuse(403, "x does not have storage.objects.delete access", method="DELETE")
    lineage = Lineage.open(gs_uri)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert lineage.prune(keep_last=1).deleted == ()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "storage.objects.delete" in warnings[0]
    reference = lineage.commit(write_tree(tmp_path / "in", {"a": b"z"}), attempt=1, step=99)
    assert lineage.choose(2).reference == reference


def test_failed_deletion_only_warns(
    gs_uri: str, gs_raw: Raw, server: DisturbedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One deletion that fails is one warning, and the others are done."""
    for index in range(4):
        gs_raw.checkpoint(1, index, {"a": b"x"})
    server.answer = refuse(409, "held", method="DELETE", fragment="000001")
    pruned = Lineage.open(gs_uri).prune(keep_last=1)
    assert [uri[-1] for uri in pruned.deleted] == ["0", "2"]
    assert list(pruned.failed) == [f"{gs_uri}/attempts/0001/checkpoints/000001"]


def test_ten_preemptions_stay_bounded(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """Ten preempted attempts that each leave an unfinished upload keep two checkpoints, not twelve."""
    sizes = []
    for attempt in range(1, 11):
        choice = lineage.choose(attempt)
        source = choice.reference.uri if choice.reference else ""
        lineage.begin_attempt(AttemptRecord(attempt=attempt, resumed_from=source))
        for number in range(3):
            tree = write_tree(tmp_path / "in", {"model.bin": bytes([attempt, number]) * 5000})
            lineage.commit(tree, attempt=attempt, step=attempt * 10 + number)
            lineage.prune(keep_last=2)
        raw.put(f"attempts/{attempt:04d}/checkpoints/{attempt * 100:06d}/model.bin", b"u" * 10_000)
        sizes.append(sum(name.endswith("model.bin") for name in raw.names()))
    assert max(sizes) <= 2 + 1 + 2
    assert sizes[-1] == sizes[4]


def test_live_uploads_of_the_newest_attempt_are_left_alone(lineage: Lineage, raw: Raw) -> None:
    """A prune never takes what may still become a commit."""
    raw.checkpoint(1, 0, {"a": b"x"})
    raw.put("attempts/0001/checkpoints/000001/a", b"on its way")
    lineage.prune(keep_last=1)
    assert "attempts/0001/checkpoints/000001/a" in raw.names()


def test_quarantined_is_never_chosen(lineage: Lineage, raw: Raw) -> None:
    """A quarantined checkpoint is passed over with the person's words; quarantining twice is harmless."""
    uris = [raw.checkpoint(1, index, {"a": b"x"}) for index in range(2)]
    lineage.quarantine(uris[1], "loss is NaN")
    lineage.quarantine(uris[1], "again")
    choice = lineage.choose(2)
    assert choice.reference is not None
    assert choice.reference.index == 0
    assert choice.passed_over[0].reason == "it is quarantined: loss is NaN"


def test_marks_need_a_checkpoint_of_the_lineage(lineage: Lineage, raw: Raw) -> None:
    """What is not there, or not in this lineage, can be neither quarantined nor pinned."""
    with pytest.raises(CheckpointNotFound):
        lineage.quarantine(f"{raw.uri}/attempts/0001/checkpoints/000000", "x")
    with pytest.raises(InvalidInput):
        lineage.pin("gs://elsewhere/attempts/0001/checkpoints/000000")


def die(lineage: Lineage, attempt: int, source: str) -> None:
    began = datetime.now(UTC)
    lineage.begin_attempt(AttemptRecord(attempt=attempt, resumed_from=source, started=began.isoformat()))
    ended = (began + timedelta(seconds=20)).isoformat()
    lineage.end_attempt(EndRecord(attempt=attempt, state=EndState.FAILED, exit_code=1, ended=ended))


def test_two_deaths_walk_back(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """A checkpoint of which two attempts died quickly is quarantined, and the third walks back."""
    uris = [raw.checkpoint(1, index, {"a": b"x"}) for index in range(2)]
    for attempt in (2, 3):
        restored = lineage.restore(attempt, tmp_path / "out")
        assert restored.reference is not None
        assert restored.reference.uri == uris[1]
        die(lineage, attempt, uris[1])
    restored = lineage.restore(4, tmp_path / "out")
    assert restored.reference is not None
    assert restored.reference.uri == uris[0]
    assert "attempts 2, 3 died" in json.loads(raw.get("quarantine/0001-000001.json"))["reason"]


def test_dying_ends(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """The loop ends: after a bounded number of deaths without progress there is an error, not an attempt."""
    for index in range(8):
        raw.checkpoint(1, index, {"a": b"x"})
    for attempt in range(2, DEATHS_TO_GIVE_UP + 2):
        restored = lineage.restore(attempt, tmp_path / "out")
        die(lineage, attempt, restored.reference.uri if restored.reference else "")
    with pytest.raises(NoProgressError) as caught:
        lineage.restore(DEATHS_TO_GIVE_UP + 2, tmp_path / "out")
    assert len(caught.value.data["attempts"]) == DEATHS_TO_GIVE_UP
