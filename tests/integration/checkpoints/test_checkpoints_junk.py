"""What else may lie in a lineage: it is never taken for a checkpoint, and never hides one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_resume_provider.checkpoints import EndRecord, EndState, Lineage, checksum
from airflow_resume_provider.errors import StoreMisconfigured
from airflow_resume_provider.runtime.cli import main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A lineage whose first attempt has committed steps 1 and 2."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights.bin").write_bytes(b"w" * 100)
    root = tmp_path / "lineage"
    for step in (1, 2):
        Lineage.open(f"file://{root}").commit(source, attempt=1, step=step)
    return root


def _link(name: str, target: str) -> Callable[[Path], None]:
    def lay(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return lay


def _file(name: str) -> Callable[[Path], None]:
    def lay(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("junk")

    return lay


def _directory(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).mkdir(parents=True)


JUNK = {
    "a link to itself among the attempts": _link("attempts/latest", "latest"),
    "a link to itself among the checkpoints": _link("attempts/0001/checkpoints/latest", "latest"),
    "a link back inside a checkpoint": _link("attempts/0001/checkpoints/000001/loop", "."),
    "a link to itself inside a checkpoint": _link("attempts/0001/checkpoints/000001/self", "self"),
    "a link to itself among the quarantined": _link("quarantine/loop", "loop"),
    "a link to itself among the pins": _link("pins/loop", "loop"),
    "a link to itself among the claims": _link("attempts/0001/claims/loop", "loop"),
    "a link to nothing": _link("attempts/latest", "nope"),
    "a file where checkpoints would be": _file("attempts/0002/checkpoints"),
    "a file where claims would be": _file("attempts/0002/claims"),
    "a file where quarantined ones would be": _file("quarantine"),
    "an attempt in other digits": _directory("attempts/٣/checkpoints"),
    "an index in other digits": _directory("attempts/0001/checkpoints/٣٣"),
    "a mark in other digits": _file("quarantine/0001-00000١.json"),
}


@pytest.mark.parametrize("lay", JUNK.values(), ids=JUNK.keys())
def test_junk_changes_nothing(root: Path, tmp_path: Path, lay: Callable[[Path], None]) -> None:
    """The newest checkpoint is chosen and restored, and the next commit gets the next index."""
    lay(root)
    lineage = Lineage.open(f"file://{root}")
    choice = lineage.choose(3)
    assert choice.reference is not None
    assert (choice.reference.index, choice.reference.step) == (1, 2)
    lineage.restore(3, tmp_path / "out")
    assert (tmp_path / "out" / "weights.bin").read_bytes() == b"w" * 100
    assert lineage.commit(tmp_path / "source", attempt=3, step=3).index == 2


BROKEN = {
    "a schema version of 6,000 digits": {"schema": "1" * 6000},
    "a schema version in other digits": {"schema": "١"},
    "fewer bytes than none": {"total_bytes": -1},
    "a step before the first": {"step": -7},
    "that it has no files": {"files": [], "total_bytes": 0},
    "that it is a directory without files": {"files": [], "total_bytes": 0, "directories": ["empty"]},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN.keys())
def test_a_manifest_that_says_nonsense_is_passed_over(root: Path, changes: dict[str, object]) -> None:
    """The one before is taken, and the reason is said; nothing fails."""
    path = root / "attempts/0001/checkpoints/000001/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    lineage = Lineage.open(f"file://{root}")
    choice = lineage.choose(2)
    assert choice.reference is not None
    assert choice.reference.step == 1
    assert [each.reason for each in choice.passed_over] != [""]


def test_what_only_a_newer_attempt_can_have_made_is_no_source(root: Path, tmp_path: Path) -> None:
    """An attempt that records to have resumed from the future is not believed: that would fork the chain."""
    lineage = Lineage.open(f"file://{root}")
    newer = lineage.commit(tmp_path / "source", attempt=3, step=3)
    path = root / "attempts/0002/attempt.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"schema": 1, "attempt": 2, "resumed_from": newer.uri}))
    choice = lineage.choose(3)
    assert choice.reference is not None
    assert (choice.reference.attempt, choice.reference.step) == (1, 2)


@pytest.mark.parametrize("source", ["file:///x\ud800/attempts/0001/checkpoints/000001", "file:///x\0", "\0"])
def test_a_source_that_no_file_can_have_is_passed_over(root: Path, source: str) -> None:
    """A record by somebody else names what cannot be a path: choosing and pruning go on."""
    path = root / "attempts/0002/attempt.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"schema": 1, "attempt": 2, "resumed_from": source}))
    (root / "attempts/0002/intent.json").write_text(json.dumps({"attempt": 2, "offered": source}))
    lineage = Lineage.open(f"file://{root}")
    choice = lineage.choose(3)
    assert choice.reference is not None
    assert choice.reference.step == 2
    lineage.prune(keep_last=1)


@pytest.mark.parametrize(("place", "mark"), [("quarantine", "quarantine"), ("pins", "pin")])
def test_a_mark_that_could_not_be_made_is_an_error(root: Path, place: str, mark: str) -> None:
    """A file where the marks would lie: it is not said that there is a mark now."""
    (root / place).write_text("junk")
    lineage = Lineage.open(f"file://{root}")
    with pytest.raises(StoreMisconfigured, match="not a directory"):
        getattr(lineage, mark)(f"{lineage.uri}/attempts/0001/checkpoints/000001", "why")


def test_pruning_removes_links_and_not_what_they_lead_to(root: Path) -> None:
    """Two checkpoints show the same file through a link to its directory: the one that stays keeps it."""
    shared = root.parent / "shared"
    shared.mkdir()
    (shared / "base.bin").write_bytes(b"b" * 10)
    entry = {"path": "base/base.bin", "size": 10, "crc32c": checksum.encode(checksum.extend(b"b" * 10))}
    for index in ("000000", "000001"):
        top = root / "attempts/0001/checkpoints" / index
        (top / "base").symlink_to(shared)
        manifest = json.loads((top / "manifest.json").read_text())
        manifest["files"].append(entry)
        manifest["total_bytes"] += 10
        (top / "manifest.json").write_text(json.dumps(manifest))
    lineage = Lineage.open(f"file://{root}")
    lineage.end_attempt(EndRecord(attempt=1, state=EndState.FINISHED, exit_code=0))
    assert len(lineage.prune(keep_last=1).deleted) == 1
    assert (shared / "base.bin").read_bytes() == b"b" * 10
    assert not (root / "attempts/0001/checkpoints/000000").exists()
    choice = lineage.choose(2, contents=True)
    assert choice.reference is not None
    assert choice.reference.index == 1


def test_a_defect_of_ours_is_one_code_and_json(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever nobody thought of ends in 99, and programs get an object as always."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(Lineage, "overview", fails)
    assert main(["list", "--lineage", f"file://{root}", "--json"]) == 99
    assert "nobody thought of it" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("command", ["choose", "restore", "list", "prune"])
def test_a_checkpoint_is_no_lineage(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Whoever names a checkpoint where a lineage belongs is told so, and gets no fresh start."""
    uri = f"file://{root}/attempts/0001/checkpoints/000001"
    options = {
        "choose": ["--attempt", "2"],
        "restore": ["--attempt", "2", "--dir", str(tmp_path / "out")],
        "list": [],
        "prune": ["--keep-last", "1"],
    }[command]
    assert main([command, "--json", "--lineage", uri, *options]) == 2
    said = json.loads(capsys.readouterr().out)["error"]["message"]
    assert f"Its lineage is file://{root}." in said
    assert not (tmp_path / "out").exists()


def test_programs_are_told_of_errors_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--json` standard output has one JSON object in every case."""
    uri = f"file://{tmp_path}/nothing/attempts/0001/checkpoints/000000"
    code = main(["verify", "--json", uri])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["exit_code"], error["type"]) == (code, "CheckpointNotFound")
    assert error["uri"] == uri


def test_a_directory_that_cannot_be_made_is_one_clear_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for a place where nothing can be created."""
    assert main(["restore", "--lineage", f"file://{root}", "--attempt", "2", "--dir", "/proc/nope/x"]) == 2
    assert capsys.readouterr().out == ""
