"""Restoring where something lies already: nothing of anybody's is lost, and nothing is mixed in."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from checkpoint_world import listed, read_tree, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage
from airflow_resume_provider.errors import ExitCode, InvalidInput
from airflow_resume_provider.runtime.cli import main


@pytest.fixture
def committed(lineage: Lineage, tmp_path: Path) -> Lineage:
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a", "b/c": b"c"}), attempt=1, step=1)
    return lineage


def asides(directory: Path) -> list[Path]:
    return sorted(directory.parent.glob(f"{directory.name}.replaced-*"))


@pytest.mark.parametrize("exchange", [True, False])
def test_foreign_contents_are_set_aside(
    committed: Lineage,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    exchange: bool,
) -> None:
    """A directory that a person filled is renamed, said in one line, and not mixed with the checkpoint."""
    if not exchange:
        monkeypatch.setattr("airflow_resume_provider.checkpoints.placing._exchange", lambda *_: False)
    home = write_tree(tmp_path / "home", {"thesis.txt": b"mine", "a": b"old"})
    with caplog.at_level(logging.WARNING):
        committed.restore(2, home)
    assert read_tree(home) == {"a": b"a", "b/c": b"c"}
    (aside,) = asides(home)
    assert read_tree(aside) == {"thesis.txt": b"mine", "a": b"old"}
    assert [str(aside) in record.getMessage() for record in caplog.records] == [True]


def test_uncommitted_work_is_set_aside(committed: Lineage, tmp_path: Path) -> None:
    """What a training wrote after its restore is kept when the checkpoint is restored again."""
    out = tmp_path / "out"
    committed.restore(2, out)
    write_tree(out, {"checkpoint-2000/w": b"uncommitted"})
    committed.restore(2, out)
    assert read_tree(out) == {"a": b"a", "b/c": b"c"}
    assert [read_tree(aside)["checkpoint-2000/w"] for aside in asides(out)] == [b"uncommitted"]


def test_untouched_restore_is_replaced(committed: Lineage, tmp_path: Path) -> None:
    """A copy of a checkpoint that nobody touched is replaced by the next one, and not kept."""
    out = tmp_path / "out"
    committed.restore(2, out)
    committed.commit(write_tree(tmp_path / "in2", {"a": b"2"}), attempt=1, step=2)
    committed.restore(2, out)
    assert read_tree(out) == {"a": b"2"}
    assert asides(out) == []


def test_only_the_newest_is_kept_on_request(committed: Lineage, tmp_path: Path) -> None:
    """A container that starts again and again keeps one directory that was set aside, not one per start."""
    out = tmp_path / "out"
    for number in range(3):
        write_tree(out, {"work": b"%d" % number})
        committed.restore(2, out, most_asides=1)
    assert [read_tree(aside)["work"] for aside in asides(out)] == [b"2"]


def test_fresh_start_after_a_restore(committed: Lineage, tmp_path: Path) -> None:
    """A fresh start is not poisoned by what an earlier restore and its training left; that is kept aside."""
    out = tmp_path / "out"
    committed.restore(2, out)
    write_tree(out, {"checkpoint-2000/w": b"uncommitted"})
    fresh = Lineage.open(f"file://{tmp_path}/empty").restore(1, out)
    assert fresh.reference is None
    assert listed(out) == []
    assert len(asides(out)) == 1


def test_fresh_start_in_a_users_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fresh start leaves what no restore has put there, and says that it is there."""
    home = write_tree(tmp_path / "home", {"data_position.json": b"0"})
    with caplog.at_level(logging.WARNING):
        Lineage.open(f"file://{tmp_path}/empty").restore(1, home)
    assert read_tree(home) == {"data_position.json": b"0"}
    assert "not empty" in caplog.text


def test_link_to_a_directory(committed: Lineage, tmp_path: Path) -> None:
    """A link stays a link: what it points to is restored to, and its contents are set aside there."""
    real = write_tree(tmp_path / "real", {"k": b"keep"})
    (tmp_path / "link").symlink_to("real")
    committed.restore(2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_tree(real) == {"a": b"a", "b/c": b"c"}
    assert [read_tree(aside) for aside in asides(real)] == [{"k": b"keep"}]


def test_files_are_no_directories(committed: Lineage, tmp_path: Path) -> None:
    """A file at --dir, or above it, is refused and stays."""
    (tmp_path / "file").write_text("x")
    for directory in (tmp_path / "file", tmp_path / "file/below"):
        for lineage in (committed, Lineage.open(f"file://{tmp_path}/empty")):
            with pytest.raises(InvalidInput) as caught:
                lineage.restore(2, directory)
            assert caught.value.parameter == "dir"
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("where", ["p", "p/lineage", "p/lineage/attempts", "link", "link/lineage/new"])
def test_never_over_the_lineage_itself(tmp_path: Path, where: str) -> None:
    """--dir that holds the lineage, or lies in it, also by a link, is refused; the lineage stays."""
    lineage = Lineage.open(f"file://{tmp_path}/p/lineage")
    reference = lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)
    (tmp_path / "link").symlink_to("p")
    before = read_tree(tmp_path / "p")
    for call in (
        lambda: lineage.restore(2, tmp_path / where),
        lambda: Lineage.open(f"file://{tmp_path}/none").restore(
            1, tmp_path / where, fallback=reference.uri, explicit=True
        ),
        lambda: Checkpoint.from_uri(reference.uri).to_directory(tmp_path / where),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.parameter == "dir"
    assert read_tree(tmp_path / "p") == before


def test_said_on_standard_error(committed: Lineage, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command succeeds and says where the other files are."""
    home = write_tree(tmp_path / "home", {"thesis.txt": b"mine"})
    arguments = ["restore", "--lineage", committed.uri, "--attempt", "2", "--dir", str(home)]
    assert main(arguments) == ExitCode.FINISHED
    assert str(asides(home)[0]) in caplog.text
