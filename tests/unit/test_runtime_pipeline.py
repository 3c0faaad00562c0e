"""From a finished checkpoint to an upload: what is held, when, and what is said when it cannot be."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_resume_provider.runtime.formats import Format, Found
from airflow_resume_provider.runtime.formats.auto import AutoFormat
from airflow_resume_provider.runtime.formats.directory import DirectoryFormat, was_renamed
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.pin import stamps_of
from airflow_resume_provider.runtime.pipeline import Pipeline, Upload
from airflow_resume_provider.runtime.state import State


class InPlace(Format):
    """One file that is written over and over, complete as soon as it is there."""

    name = "in-place"

    def find(self, directory: Path) -> Sequence[Found]:
        """The file."""
        there = (directory / "model.bin").exists()
        return [Found("model.bin", 3, ("model.bin",), in_place=True)] if there else []


class Doubtful(Format):
    """One directory that is called a checkpoint, and nothing else."""

    name = "doubtful"

    def find(self, directory: Path) -> Sequence[Found]:
        """The directory."""
        there = (directory / "checkpoint-7").exists()
        return [Found("checkpoint-7", 7, ("checkpoint-7/state",), doubtful=True)] if there else []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A pipeline, and what it has sent."""

    def __init__(self, root: Path, form: Format | None = None) -> None:
        self.work = root / "work"
        self.work.mkdir()
        self.state = State(root / "state")
        self.state.prepare(1)
        self.sent: list[Upload] = []
        self.clock = Clock()
        options = Options(lineage="file:///x", attempt=1, directory=self.work, state_dir=root / "state")
        self.pipeline = Pipeline(options, self.state, form or InPlace(), self.sent.append, self.clock)

    def request(self, step: int) -> None:
        """What the SDK leaves for a commit."""
        held = self.state.pins / f"sdk-{step}"
        held.mkdir(parents=True)
        (held / "model.bin").write_bytes(b"1")
        self.state.write(
            self.state.requests / f"{step}.json",
            {
                "directory": str(held),
                "stamps": stamps_of(held, ["model.bin"]),
                "step": step,
                "path": ".",
                "metrics": {},
                "metadata": {},
                "answered": False,
            },
        )

    def held(self) -> list[Path]:
        return [path for path in self.state.pins.rglob("*") if path.is_file()]


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def torn(path: Path) -> None:
    """A file that looks whole to whoever knows its structure."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", path.name)


def write(directory: Path) -> None:
    directory.mkdir()
    (directory / "shard.txt").write_text(directory.name)


def rename(directory: Path, final: Path) -> None:
    """Rename it so that there is a trace of that, which takes until the clock ticks."""
    directory.rename(final)
    while not was_renamed(final):
        final.rename(directory)
        directory.rename(final)


@pytest.mark.parametrize("restored", ["step-50", "run/step-50", "checkpoint-50", "run/50"])
def test_what_was_restored_is_never_committed_again(tmp_path: Path, restored: str) -> None:
    """The directories of this trainer are known for checkpoints only once it has renamed one itself."""
    line = Line(tmp_path, AutoFormat())
    (line.work / restored).parent.mkdir(exist_ok=True)
    write(line.work / restored)
    line.pipeline.remember_present()
    newer = line.work / restored.replace("50", "60")
    write(newer.with_suffix(".tmp"))
    rename(newer.with_suffix(".tmp"), newer)
    line.pipeline.look()
    line.pipeline.pump()
    assert [upload.step for upload in line.sent] == [60]
    line.pipeline.committed({}, 1.0)
    for _ in range(2):
        line.clock.now += 100
        line.pipeline.look()
    line.pipeline.look(final=True)
    line.pipeline.pump()
    assert [upload.step for upload in line.sent] == [60]


def test_what_is_left_of_an_older_one_is_not_committed_after_a_newer_one(tmp_path: Path) -> None:
    """Rotation deletes an older one file by file, or only its optimizer: it looks changed then."""
    line = Line(tmp_path, AutoFormat())
    for step in (1000, 2000):
        for name in ("model.pt", "optimizer.pt"):
            path = line.work / f"step-{step}.tmp" / name
            path.parent.mkdir(exist_ok=True)
            torn(path)
        rename(line.work / f"step-{step}.tmp", line.work / f"step-{step}")
        line.pipeline.look()
        line.pipeline.pump()
        line.pipeline.committed({}, 1.0)
    (line.work / "step-1000/optimizer.pt").unlink()
    for final in (False, False, True):
        line.clock.now += 100
        line.pipeline.look(final=final)
        line.pipeline.pump()
    assert [upload.step for upload in line.sent] == [1000, 2000]


def test_an_older_one_that_had_not_settled_is_not_committed_after_a_newer_one(tmp_path: Path) -> None:
    """A small one left no trace of its rename, the next one did."""
    line = Line(tmp_path, DirectoryFormat())
    write(line.work / "step-60")
    line.pipeline.look()
    write(line.work / "step-70.tmp")
    rename(line.work / "step-70.tmp", line.work / "step-70")
    for final in (False, False, True):
        line.pipeline.look(final=final)
        line.pipeline.pump()
        if line.pipeline.under_way:
            line.pipeline.committed({}, 1.0)
        line.clock.now += 100
    assert [upload.step for upload in line.sent] == [70]


def test_a_second_phase_may_count_its_steps_from_the_start(tmp_path: Path) -> None:
    """It writes anew to the name of an older one: that is new, whatever its number."""
    line = Line(tmp_path, DirectoryFormat())
    for step in (100, 900, 100):
        shutil.rmtree(line.work / f"step-{step}", ignore_errors=True)
        write(line.work / f"step-{step}.tmp")
        rename(line.work / f"step-{step}.tmp", line.work / f"step-{step}")
        line.pipeline.look()
        line.pipeline.pump()
        line.pipeline.committed({}, 1.0)
    assert [upload.step for upload in line.sent] == [100, 900, 100]


@pytest.mark.parametrize(
    "files",
    [
        ["checkpoint-100/model.pt", "checkpoint-100/optimizer.pt"],
        ["weights/last.pt", "weights/best.pt", "train_batch0.jpg"],
    ],
    ids=["a loop of one's own", "beside numbered pictures"],
)
def test_auto_finds_what_a_trainer_of_no_framework_writes(tmp_path: Path, files: list[str]) -> None:
    """Names that a framework has, too, and numbers that are no steps, hide no checkpoint."""
    line = Line(tmp_path, AutoFormat())
    line.pipeline.remember_present()
    for name in files:
        (line.work / name).parent.mkdir(exist_ok=True)
        torn(line.work / name)
    for _ in range(2):
        line.pipeline.look()
        line.clock.now += 100
    line.pipeline.pump()
    (sent,) = line.sent
    assert {name for name in files if name.endswith(".pt")} <= set(sent.pin.files)


@pytest.mark.parametrize("how", ["failed", "skipped"])
def test_what_never_reached_the_store_is_tried_again_at_the_end(line: Line, tmp_path: Path, how: str) -> None:
    """By this process, or by the one that goes on after it; until then it is unsaved."""
    (line.work / "model.bin").write_bytes(b"1")
    line.pipeline.look()
    line.pipeline.pump(lambda upload: how == "failed")
    if how == "failed":
        line.pipeline.failed("denied", again=False)
    assert "step 3" in line.pipeline.unsaved
    line.pipeline.look()
    assert line.pipeline.idle
    options = Options(lineage="file:///x", attempt=1, directory=line.work, state_dir=tmp_path / "state")
    other = Pipeline(options, line.state, InPlace(), line.sent.append, line.clock)
    other.know(json.loads(json.dumps(line.pipeline.ledger())))
    for pipeline in (line.pipeline, other):
        assert "step 3" in pipeline.unsaved
        pipeline.look(final=True)
        pipeline.pump()
        pipeline.committed({}, 1.0)
        assert pipeline.unsaved == ""


def test_what_is_given_up_stays_so_once_a_newer_one_is_saved(tmp_path: Path) -> None:
    """Else it would come after it."""
    line = Line(tmp_path, DirectoryFormat())
    for step in (60, 70):
        write(line.work / f"step-{step}.tmp")
        rename(line.work / f"step-{step}.tmp", line.work / f"step-{step}")
        line.pipeline.look()
        line.pipeline.pump()
        line.pipeline.failed("out", again=False) if step == 60 else line.pipeline.committed({}, 1.0)
    line.pipeline.look(final=True)
    line.pipeline.pump()
    assert [upload.step for upload in line.sent] == [60, 70]
    assert line.pipeline.unsaved == ""


def test_a_commit_mends_nothing_that_was_lost_after_it_was_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint cannot be held while the one before is on its way, which then arrives."""
    line = Line(tmp_path, DirectoryFormat())
    write(line.work / "step-70.tmp")
    rename(line.work / "step-70.tmp", line.work / "step-70")
    line.pipeline.look()
    line.pipeline.pump()
    write(line.work / "step-80.tmp")
    rename(line.work / "step-80.tmp", line.work / "step-80")
    monkeypatch.setattr("airflow_resume_provider.runtime.pipeline.pin_files", no_space)
    line.pipeline.look(final=True)
    line.pipeline.committed({}, 1.0)
    assert "step 80" in line.pipeline.unsaved


def test_what_the_sdk_asked_for_and_was_written_to_is_unsaved(line: Line) -> None:
    """Nobody finds it again; a later one mends it."""
    for step in (1, 2):
        line.request(step)
        line.pipeline.look()
        line.pipeline.pump()
        if step == 1:
            line.pipeline.changed("model.bin")
            assert "step 1 was written to during its upload" in line.pipeline.unsaved
        else:
            line.pipeline.committed({}, 1.0)
    assert line.pipeline.unsaved == ""


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_not_asked_again_at_every_look(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that did not fit is tried again after two seconds, and is in the store when it fits."""
    copies: list[None] = []
    (line.work / "model.bin").write_bytes(b"w")
    with monkeypatch.context() as full:
        full.setattr(shutil, "copy2", lambda *_, **__: (copies.append(None), no_space()))
        for _ in range(10):
            line.clock.now += 0.1
            line.pipeline.look()
    assert len(copies) == 1
    assert "No space" in line.pipeline.unsaved
    line.clock.now += 2.5
    line.pipeline.look()
    line.pipeline.pump()
    line.pipeline.committed({}, 1.0)
    assert [upload.step for upload in line.sent] == [3]
    assert line.pipeline.unsaved == ""


def test_at_the_end_a_full_disk_holds_what_is_written_in_place(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes any more, so links do: the last checkpoint needs no space of its own."""
    monkeypatch.setattr(shutil, "copy2", no_space)
    (line.work / "model.bin").write_bytes(b"w")
    (line.work / "train.log").write_text("line")
    line.pipeline.look()
    assert line.pipeline.idle
    line.pipeline.look(final=True)
    line.pipeline.pump()
    assert [upload.pin.files for upload in line.sent] == [["model.bin", "train.log"]]
    line.pipeline.committed({}, 1.0)
    assert line.pipeline.unsaved == ""


def test_a_last_checkpoint_that_cannot_be_held_is_said(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 0 would be a lie: what is unsaved has its reason."""
    monkeypatch.setattr(os, "link", no_space)
    (line.work / "model.bin").write_bytes(b"w")
    line.pipeline.look(final=True)
    assert line.pipeline.idle
    assert "step 3 could not be held" in line.pipeline.unsaved
    assert line.held() == []


def test_what_is_doubtful_is_taken_when_nobody_writes_any_more(tmp_path: Path) -> None:
    """Half a minute without a change may be a pause between its first file and its weights."""
    line = Line(tmp_path, Doubtful())
    (line.work / "checkpoint-7").mkdir()
    (line.work / "checkpoint-7/state").write_text("s")
    for _ in range(2):
        line.pipeline.look()
        line.clock.now += 30
    assert line.pipeline.idle
    line.pipeline.look(final=True)
    line.pipeline.pump()
    assert [upload.step for upload in line.sent] == [7]


def test_a_last_checkpoint_that_is_written_to_during_its_upload_is_said(line: Line) -> None:
    """Nobody looks again, so exit 0 would be a lie."""
    (line.work / "model.bin").write_bytes(b"w")
    line.pipeline.look(final=True)
    line.pipeline.pump()
    line.pipeline.changed("model.bin")
    assert line.pipeline.idle
    assert "step 3 was written to after the training's end: model.bin" in line.pipeline.unsaved


def test_what_was_on_its_way_at_the_last_look_counts_too(line: Line) -> None:
    """It was seen before the end, and somebody who is left over writes to it after the end."""
    (line.work / "model.bin").write_bytes(b"w")
    line.pipeline.look()
    line.clock.now += 0.1
    line.pipeline.pump()
    line.pipeline.look(final=True)
    line.pipeline.changed("model.bin")
    assert "step 3 was written to after the training's end" in line.pipeline.unsaved


def test_a_training_without_a_checkpoint_gets_a_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever forgot the format learns so from the log, not from the next preemption."""
    line = Line(tmp_path, Doubtful())
    line.pipeline.look(final=True)
    assert "nothing that the format 'doubtful' takes for a finished checkpoint" in caplog.text


def test_a_directory_that_is_gone_is_no_reason_to_end(line: Line) -> None:
    """A trainer may remove RESUME_DIR itself, and make it again."""
    shutil.rmtree(line.work)
    line.pipeline.look()
    line.work.mkdir()
    (line.work / "model.bin").write_bytes(b"w")
    line.pipeline.look()
    line.pipeline.pump()
    assert len(line.sent) == 1


def test_an_answer_that_cannot_be_written_does_not_end_the_training(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's request is done with all the same."""
    pin = line.state.pins / "1"
    pin.mkdir()
    (pin / "w").write_text("w")
    stat = (pin / "w").stat()
    request = line.state.requests / "1.json"
    said = {"step": 1, "metrics": {}, "metadata": {}, "answered": True, "path": ".", "directory": str(pin)}
    stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    request.write_text(json.dumps({**said, "stamps": {"w": stamp}}))
    line.pipeline.look()
    line.pipeline.pump()
    monkeypatch.setattr(Path, "write_text", no_space)
    line.pipeline.committed({"uri": "x"}, 1.0)
    assert line.pipeline.idle
    assert not request.exists()
