"""What a person names: `--from` is exactly that, and a URI of the wrong kind is called by its name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Raw, read_tree

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.runtime.cli import main


class Cli:
    """Runs a subcommand and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self._capsys, self._caplog = capsys, caplog
        self.out = self.err = ""

    def __call__(self, *arguments: object, code: int = 0) -> Any:
        self._capsys.readouterr()
        self._caplog.clear()
        got = main([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        self.err += self._caplog.text
        assert got == code, self.err
        return json.loads(self.out) if self.out else None


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Cli:
    return Cli(capsys, caplog)


@pytest.fixture
def uris(raw: Raw) -> list[str]:
    return [raw.checkpoint(1, index, {"a": b"%d" % index}) for index in range(2)]


def test_named_checkpoint_wins(cli: Cli, raw: Raw, uris: list[str], tmp_path: Path) -> None:
    """`--from` is restored although the lineage has a newer one, and chosen likewise."""
    at = ("--lineage", raw.uri, "--attempt", 2, "--from", uris[0])
    assert cli("restore", *at, "--dir", tmp_path / "out")["checkpoint"]["uri"] == uris[0]
    assert read_tree(tmp_path / "out") == {"a": b"0"}
    assert cli("choose", *at)["checkpoint"]["uri"] == uris[0]


@pytest.mark.parametrize("empty", [True, False])
def test_named_checkpoint_that_cannot_be_used(
    cli: Cli, raw: Raw, uris: list[str], tmp_path: Path, empty: bool
) -> None:
    """A named checkpoint that is missing or broken is an error, whatever else there is."""
    raw.put("attempts/0001/checkpoints/000001/a", b"x")
    lineage = f"file://{tmp_path}/none" if empty else raw.uri
    at = ("--lineage", lineage, "--attempt", 2, "--from")
    missing = f"{raw.uri}/attempts/0001/checkpoints/000077"
    for words in (("choose",), ("restore", "--dir", tmp_path / "out")):
        cli(*words, *at, missing, code=ExitCode.CHECKPOINT_NOT_FOUND)
        cli(*words, *at, uris[1], code=ExitCode.CHECKPOINT_BROKEN)
        cli(*words, *at, "nonsense", code=ExitCode.USAGE)
    assert not (tmp_path / "out").exists()


def test_offered_by_the_environment_comes_last(
    cli: Cli, raw: Raw, uris: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RESUME_FROM is what the container was offered: the lineage's own come first."""
    monkeypatch.setenv("RESUME_FROM", uris[0])
    assert cli("choose", "--lineage", raw.uri, "--attempt", 2)["checkpoint"]["uri"] == uris[1]
    assert cli("choose", "--lineage", f"{raw.uri}-2", "--attempt", 2)["checkpoint"]["uri"] == uris[0]


def test_quarantined_but_named(cli: Cli, uris: list[str], tmp_path: Path) -> None:
    """A quarantined checkpoint that is named is restored, and it is said that it is quarantined."""
    cli("quarantine", uris[1], "--reason", "nan")
    cli("restore", "--from", uris[1], "--dir", tmp_path / "out")
    assert "quarantined" in cli.err
    assert cli("verify", uris[1])["quarantined"] == "nan"
    assert "nan" in cli.err


def test_undo(cli: Cli, raw: Raw, uris: list[str]) -> None:
    """A mark is taken back with `--undo`; taking back what is not there is harmless."""
    at = ("choose", "--lineage", raw.uri, "--attempt", 2)
    cli("quarantine", uris[1])
    assert cli(*at)["checkpoint"]["uri"] == uris[0]
    assert cli("quarantine", uris[1], "--undo")["state"] == "not quarantined"
    assert cli(*at)["checkpoint"]["uri"] == uris[1]
    cli("quarantine", uris[1], "--undo")
    assert "was not quarantined" in cli.err
    cli("pin", uris[0])
    cli("pin", uris[0], "--undo")
    assert cli("prune", "--lineage", raw.uri, "--keep-last", 1)["deleted"] == [uris[0]]


def test_uris_of_the_wrong_kind(cli: Cli, raw: Raw, uris: list[str], tmp_path: Path) -> None:
    """A lineage is no checkpoint, a checkpoint no lineage, a manifest neither; each is called by its name."""
    for words in (("verify",), ("restore", "--dir", tmp_path / "out", "--from"), ("choose", "--from")):
        cli(*words, raw.uri, code=ExitCode.CHECKPOINT_NOT_FOUND)
        assert "It is a lineage, not a checkpoint" in cli.err
        cli(*words, f"{raw.uri}/attempts/none", code=ExitCode.CHECKPOINT_NOT_FOUND)
        assert "no lineage either" in cli.err
        cli(*words, f"{uris[0]}/manifest.json", code=ExitCode.USAGE)
        assert "Name the directory" in cli.err
    cli("list", "--lineage", uris[0], code=ExitCode.USAGE)
    assert f"Its lineage is {raw.uri}." in cli.err
    assert cli("list", "--lineage", f"{raw.uri}-none")["attempts"] == []
    assert "There is no lineage" in cli.err


def test_json_only_where_no_person_looks(
    cli: Cli, raw: Raw, uris: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe gets JSON, a terminal words, and `--json` gets JSON anywhere."""
    lists, choice = ("list", "--lineage", raw.uri), ("choose", "--lineage", raw.uri, "--attempt", 2)
    assert cli(*lists)["lineage"] == raw.uri
    assert cli(*choice)["checkpoint"]["uri"] == uris[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    assert cli(*choice) is None
    assert "resumes at step" in cli.err
    assert cli(*choice, "--json")["checkpoint"]["uri"] == uris[1]
    with pytest.raises(ValueError, match="Expecting value"):
        cli(*lists)
    assert uris[1] in cli.out
