"""A directory that several processes use: what one adds, another one's call does not take away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, Raw, read_tree, resume_run, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage
from airflow_resume_provider.errors import InvalidInput

FILES = {"model.bin": b"m" * 300_000, "s/opt.bin": b"o"}


@pytest.fixture
def remote(gs_uri: str, tmp_path: Path, server: DisturbedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RESUME_CACHE", str(tmp_path / "cache"))
    reference = Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    return reference.uri


@pytest.mark.parametrize("extra", [".lock", "__pycache__/m.pyc", "s/notes.txt"])
def test_reader_that_leaves_a_file(remote: str, server: DisturbedServer, extra: str) -> None:
    """A file that an early reader adds makes no late reader fetch again, and stays (ray#48726)."""
    with Checkpoint.from_uri(remote).as_directory() as early:
        write_tree(early, {extra: b"x"})
        before = (early / "model.bin").stat().st_ino
        with Checkpoint.from_uri(remote).as_directory() as late:
            assert late == early
        assert (early / "model.bin").stat().st_ino == before
        assert (early / extra).exists()
    assert not early.exists()
    assert server.count("GET", "model%2Ebin") == 1


def test_shared_directory_with_another_file(remote: str, server: DisturbedServer) -> None:
    """`to_directory()` goes on to share a directory into which somebody has written a file of his own."""
    directory = Checkpoint.from_uri(remote).to_directory()
    write_tree(directory, {"__pycache__/m.pyc": b"x"})
    assert Checkpoint.from_uri(remote).to_directory() == directory
    assert read_tree(directory) == {**FILES, "__pycache__/m.pyc": b"x"}
    assert server.count("GET", "model%2Ebin") == 1


def test_late_rank_keeps_what_the_first_has_written(
    remote: str, tmp_path: Path, server: DisturbedServer
) -> None:
    """Rank 1 comes to a ready path after rank 0 has trained there: nothing is fetched, nothing lost."""
    work = tmp_path / "work"
    Checkpoint.from_uri(remote).to_directory(work)
    write_tree(work, {"checkpoint-2000/w": b"precious"})
    Checkpoint.from_uri(remote).to_directory(str(work))
    assert read_tree(work) == {**FILES, "checkpoint-2000/w": b"precious"}
    assert server.count("GET", "model%2Ebin") == 1


def test_missing_or_short_file_is_put_back_beside_the_others(remote: str, tmp_path: Path) -> None:
    """A path that lost some of the checkpoint gets it back, and what else lies there stays."""
    work = tmp_path / "work"
    Checkpoint.from_uri(remote).to_directory(work)
    write_tree(work, {"mine": b"x", "model.bin": b"short"})
    (work / "s" / "opt.bin").unlink()
    Checkpoint.from_uri(remote).to_directory(work)
    assert read_tree(work) == {**FILES, "mine": b"x"}


def test_another_checkpoint_replaces_the_first_ones_files_only(gs_raw: Raw, tmp_path: Path) -> None:
    """One path for one checkpoint after the other: no stale shard of the first, all of the user's files."""
    first = gs_raw.checkpoint(1, 0, {"old.bin": b"1", "both.bin": b"1"})
    second = gs_raw.checkpoint(1, 1, {"new.bin": b"2", "both.bin": b"2"})
    work = write_tree(tmp_path / "work", {"thesis": b"t"})
    Checkpoint.from_uri(first).to_directory(work)
    Checkpoint.from_uri(second).to_directory(work)
    assert read_tree(work) == {"new.bin": b"2", "both.bin": b"2", "thesis": b"t"}


def test_link_out_of_the_directory_is_not_followed(gs_raw: Raw, tmp_path: Path) -> None:
    """A link where the checkpoint has a directory is in the way, not a way out."""
    uri = gs_raw.checkpoint(1, 0, {"s/opt.bin": b"o"})
    outside = write_tree(tmp_path / "outside", {"opt.bin": b"mine"})
    work = write_tree(tmp_path / "work", {"x": b"x"})
    (work / "s").symlink_to(outside)
    with pytest.raises(InvalidInput):
        Checkpoint.from_uri(uri).to_directory(work)
    assert read_tree(outside) == {"opt.bin": b"mine"}


def test_exactly(remote: str, tmp_path: Path) -> None:
    """With `exactly` the directory holds the checkpoint alone, and what was there is set aside."""
    work = write_tree(tmp_path / "work", {"mine": b"x"})
    Checkpoint.from_uri(remote).to_directory(work, exactly=True)
    assert read_tree(work) == FILES
    (aside,) = tmp_path.glob("work.replaced-*")
    assert read_tree(aside) == {"mine": b"x"}


def test_long_directory_names(gs_raw: Raw, tmp_path: Path) -> None:
    """A name as long as the file system allows works; a longer one is said to be the directory's."""
    gs_raw.checkpoint(1, 0, {"a": b"a"})
    at = ("restore", "--lineage", gs_raw.uri, "--attempt", "2", "--dir")
    fits = tmp_path / ("x" * 255)
    assert resume_run(*at, str(fits)).returncode == 0
    assert read_tree(fits) == {"a": b"a"}
    done = resume_run(*at, str(tmp_path / ("y" * 256)))
    assert done.returncode == 2
    assert "The name of the directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_directory_below_a_file(gs_raw: Raw, tmp_path: Path) -> None:
    """A directory that cannot be, because a file is in the way, is one clear line."""
    gs_raw.checkpoint(1, 0, {"a": b"a"})
    (tmp_path / "file").write_text("x")
    for lineage in (gs_raw.uri, f"{gs_raw.uri}-empty"):
        arguments = ("--lineage", lineage, "--attempt", "2", "--dir", str(tmp_path / "file" / "x"))
        done = resume_run("restore", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert os.fspath(tmp_path / "file") in done.stderr
