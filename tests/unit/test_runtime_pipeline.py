"""From a finished checkpoint to an upload: what is held, when, and what is said when it cannot be."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_resume_provider.runtime.formats import Format, Found
from airflow_resume_provider.runtime.formats.auto import AutoFormat
from airflow_resume_provider.runtime.formats.directory import was_renamed
from airflow_resume_provider.runtime.options import Options
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

    def held(self) -> list[Path]:
        return [path for path in self.state.pins.rglob("*") if path.is_file()]


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


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
