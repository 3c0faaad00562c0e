"""Pinned files survive what trainers do to them, or say that they did not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_resume_provider.runtime import pin as pinning
from airflow_resume_provider.runtime.pin import Changed, Pin, pin_files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in {"checkpoint-1/a": "one", "checkpoint-1/sub/b": "two", "train.log": "line\n"}.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "work"


FILES = ["checkpoint-1/a", "checkpoint-1/sub/b"]


def test_a_pin_survives_rotation(source: Path, tmp_path: Path) -> None:
    """The framework may delete the checkpoint; its bytes stay until the pin is released."""
    pin = pin_files(source, FILES, tmp_path / "pin")
    for name in FILES:
        (source / name).unlink()
    pin.check()
    assert (pin.directory / "checkpoint-1/a").read_text() == "one"
    assert pin.total_bytes == 6


def test_a_pin_is_a_hard_link(source: Path, tmp_path: Path) -> None:
    """No byte is copied when both lie on one file system."""
    pin = pin_files(source, FILES, tmp_path / "pin")
    assert (pin.directory / FILES[0]).stat().st_ino == (source / FILES[0]).stat().st_ino


def test_writing_in_place_is_noticed(source: Path, tmp_path: Path) -> None:
    """A hard link shares the inode: a trainer that opens the file again changes the pin, too."""
    pin = pin_files(source, FILES, tmp_path / "pin")
    with (source / FILES[0]).open("r+") as file:
        file.write("ONE")
        os.utime(source / FILES[0], ns=(1, 1))
    with pytest.raises(Changed):
        pin.check()


def test_a_copy_is_not_touched_by_writing_in_place(source: Path, tmp_path: Path) -> None:
    """Whoever writes in place gets copies."""
    pin = pin_files(source, FILES, tmp_path / "pin", copy=True)
    (source / FILES[0]).write_text("other")
    pin.check()
    assert (pin.directory / FILES[0]).read_text() == "one"


def test_files_that_only_grow_are_copied(source: Path, tmp_path: Path) -> None:
    """A log that grows on is no reason to drop a checkpoint."""
    pin = pin_files(source, [*FILES, "train.log"], tmp_path / "pin", appended={"train.log"})
    with (source / "train.log").open("a") as log:
        log.write("another\n")
    pin.check()
    assert (pin.directory / "train.log").read_text() == "line\n"


def test_another_file_system_gets_a_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a hard link is impossible the bytes are copied."""

    def no_link(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(pinning.os, "link", no_link)
    pin = pin_files(source, FILES, tmp_path / "pin")
    assert (pin.directory / FILES[0]).read_text() == "one"


def test_a_vanished_file_leaves_no_pin(source: Path, tmp_path: Path) -> None:
    """A checkpoint that is rotated away while it is pinned is let go as a whole."""
    with pytest.raises(Changed):
        pin_files(source, [*FILES, "gone"], tmp_path / "pin")
    assert not (tmp_path / "pin").exists()


def test_a_full_disk_leaves_no_pin(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC while copying is raised, and what was copied is removed."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pinning.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space"):
        pin_files(source, FILES, tmp_path / "pin", copy=True)
    assert not (tmp_path / "pin").exists()


def test_a_pin_travels_to_another_process(source: Path, tmp_path: Path) -> None:
    """The JSON form holds all that the uploader must know."""
    pin = pin_files(source, FILES, tmp_path / "pin")
    again = Pin.from_json(pin.to_json())
    again.check()
    assert again == pin
