"""What cannot be read or understood is an error: never a fresh start, never somebody else's checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import Raw, listed, write_tree

from airflow_resume_provider.checkpoints import Lineage
from airflow_resume_provider.errors import (
    ExitCode,
    InvalidInput,
    ManifestUnreadable,
    StoreMisconfigured,
    UnknownSchema,
)
from airflow_resume_provider.runtime.cli import main


def test_newer_schema_is_never_passed_over(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """A newest checkpoint of a newer major version is an error, not a reason to take an older one."""
    raw.checkpoint(1, 0, {"a": b"x"})
    newest = raw.checkpoint(2, 1, {"a": b"y"}, schema="2.0")
    for contents in (True, False):
        with pytest.raises(UnknownSchema, match=r"newer version.*Upgrade"):
            lineage.choose(3, contents=contents)
    with pytest.raises(UnknownSchema) as caught:
        lineage.restore(3, tmp_path / "out")
    assert caught.value.exit_code is ExitCode.UNKNOWN_SCHEMA
    assert caught.value.data["uri"] == newest
    assert not (tmp_path / "out").exists()
    rows = lineage.overview()["attempts"][1]["checkpoints"]
    assert "newer version" in rows[0]["state"]


def test_only_newer_schemas_are_no_fresh_start(lineage: Lineage, raw: Raw) -> None:
    """A lineage that only a newer version can read does not start again from nothing."""
    raw.checkpoint(1, 0, {"a": b"x"}, schema=2)
    with pytest.raises(UnknownSchema):
        lineage.choose(2)


def test_quarantine_is_the_way_past_a_newer_schema(lineage: Lineage, raw: Raw) -> None:
    """A person may say that the training goes on without what only a newer version reads."""
    older = raw.checkpoint(1, 0, {"a": b"x"})
    lineage.quarantine(raw.checkpoint(1, 1, {"a": b"y"}, schema=2), "made by a trial of version 2")
    choice = lineage.choose(2)
    assert choice.reference is not None
    assert choice.reference.uri == older


@pytest.mark.parametrize("where", ["file", "file/below", "loop", "loop/below", "gone", "gone/below"])
def test_what_is_no_directory_is_no_fresh_start(tmp_path: Path, where: str) -> None:
    """A lineage at a file, a loop of links or a link that leads nowhere could not be looked at."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("/mnt/is/not/mounted")
    lineage = Lineage.open(f"file://{tmp_path}/{where}")
    with pytest.raises(StoreMisconfigured, match="Could not look"):
        lineage.choose(3)
    with pytest.raises(StoreMisconfigured):
        lineage.restore(3, tmp_path / "out")
    with pytest.raises(StoreMisconfigured):
        lineage.training()
    with pytest.raises(StoreMisconfigured):
        lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)


@pytest.mark.parametrize("name", ["attempts", "attempts/0001", "attempts/0001/checkpoints/000000"])
def test_parts_that_are_no_directories(tmp_path: Path, name: str) -> None:
    """A link to a disk that is not mounted, in place of any directory of a lineage, is no emptiness."""
    place = tmp_path / "lineage" / name
    place.parent.mkdir(parents=True)
    place.symlink_to("/mnt/is/not/mounted")
    with pytest.raises(StoreMisconfigured, match="leads nowhere"):
        Lineage.open(f"file://{tmp_path}/lineage").choose(2)


def test_attempts_as_a_file(tmp_path: Path) -> None:
    """A file called `attempts` is no lineage without attempts."""
    (tmp_path / "attempts").write_text("x")
    with pytest.raises(StoreMisconfigured, match="not a directory"):
        Lineage.open(f"file://{tmp_path}").choose(2)


def test_absent_directory_is_a_fresh_start(tmp_path: Path) -> None:
    """A lineage whose directory simply does not exist has no attempts."""
    assert Lineage.open(f"file://{tmp_path}/not/yet").choose(2).reference is None


def test_foreign_checkpoint_without_training_json(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """Where nobody has said whose lineage it is, the oldest checkpoint decides: copies came later."""
    own = raw.checkpoint(1, 0, {"a": b"x"}, training_id="ours")
    foreign = raw.checkpoint(2, 1, {"a": b"y"}, training_id="theirs")
    choice = lineage.choose(3)
    assert choice.reference is not None
    assert choice.reference.uri == own
    assert choice.passed_over[0].uri == foreign
    assert "theirs, not ours" in choice.passed_over[0].reason
    lineage.commit(write_tree(tmp_path / "in", {"a": b"z"}), attempt=3, step=9)
    training = lineage.training()
    assert training is not None
    assert training.training_id == "ours"


@pytest.mark.parametrize("text", ['{"schema":1,"train', "", "[]", '{"schema": 1}'])
def test_unreadable_training_json(lineage: Lineage, raw: Raw, tmp_path: Path, text: str) -> None:
    """Whose lineage it is has been said and cannot be read: that is not the same as unsaid."""
    raw.put("training.json", text)
    raw.checkpoint(1, 0, {"a": b"x"})
    for call in (lineage.training, lambda: lineage.choose(2), lambda: lineage.restore(2, tmp_path / "o")):
        with pytest.raises(ManifestUnreadable, match=r"training\.json"):
            call()


@pytest.mark.parametrize("tree", [{}, {"only/empty/": b""}])
def test_empty_commit_is_refused(lineage: Lineage, raw: Raw, tmp_path: Path, tree: dict[str, bytes]) -> None:
    """A directory without a file is no checkpoint, and does not come before a good one."""
    with pytest.raises(InvalidInput, match="holds no file"):
        lineage.commit(write_tree(tmp_path / "in", tree), attempt=1, step=1)
    assert raw.names() == set()


def test_attempts_that_would_not_be_seen_again(tmp_path: Path) -> None:
    """An attempt's number that no reader would take for one is refused, by each subcommand."""
    tree = write_tree(tmp_path / "in", {"a": b"a"})
    at = ["--lineage", f"file://{tmp_path}/lineage", "--attempt", "1" * 20]
    assert main(["commit", str(tree), *at, "--step", "1"]) == ExitCode.USAGE
    assert main(["choose", *at]) == ExitCode.USAGE
    assert main(["restore", *at, "--dir", str(tmp_path / "out")]) == ExitCode.USAGE
    assert listed(tmp_path) == ["in"]
