"""`resume-run` on checkpoints: on both kinds of store, on lineages written by hand, with clear errors."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import DisturbedServer, Raw, read_tree, refuse, resume_run, write_tree

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.runtime.cli import main
from airflow_resume_provider.testing.gcs import Fault


class Cli:
    """Runs `resume-run` in this process and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self._capsys, self._caplog = capsys, caplog
        self.err = self.out = ""

    def __call__(self, *arguments: object, code: int = 0) -> Any:
        """Run, expect `code`, and return the JSON on standard output, if there is any."""
        self._capsys.readouterr()
        self._caplog.clear()
        try:
            got = main([str(argument) for argument in arguments])
        except SystemExit as error:
            got = error.code  # type: ignore[assignment]
        self.out, self.err = self._capsys.readouterr()
        self.err += self._caplog.text
        assert got == code, self.err
        assert "Traceback" not in self.err
        return json.loads(self.out) if self.out.startswith("{") else None


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, server: DisturbedServer) -> Cli:
    return Cli(capsys, caplog)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {"model.bin": b"m" * 1000, "s/x": b""})


def test_the_whole_way(cli: Cli, uri: str, source: Path, tmp_path: Path) -> None:
    """Commit, choose, restore, list, verify, pin, quarantine and prune, each with JSON."""
    at = ("--lineage", uri, "--json")
    assert cli("choose", *at, "--attempt", 1) == {
        "checkpoint": None,
        "passed_over": [],
        "why": "Attempt 1 starts fresh: there is no earlier attempt.",
    }
    refs = [
        cli(
            "commit", source, *at, "--attempt", 1, "--step", step, "--metrics", json.dumps({"loss": 1 / step})
        )
        for step in (900, 1000, 1100)
    ]
    assert [ref["index"] for ref in refs] == [0, 1, 2]
    assert refs[0]["metrics"] == {"loss": 1 / 900}
    assert cli("choose", *at, "--attempt", 2)["checkpoint"] == refs[2]
    restored = cli("restore", *at, "--attempt", 2, "--dir", tmp_path / "out")
    assert restored["checkpoint"] == refs[2]
    assert restored["directory"] == str(tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(source)
    assert cli("verify", refs[0]["uri"], "--json")["state"] == "complete"
    cli("pin", refs[0]["uri"], "--json")
    cli("quarantine", refs[2]["uri"], "--reason", "bad", "--json")
    chosen = cli("choose", *at, "--attempt", 2)
    assert chosen["checkpoint"] == refs[1]
    assert chosen["passed_over"] == [{"uri": refs[2]["uri"], "reason": "it is quarantined: bad"}]
    (attempt,) = cli("list", *at)["attempts"]
    assert [row["state"] for row in attempt["checkpoints"]] == [
        "complete",
        "complete",
        "it is quarantined: bad",
    ]
    assert [row["pinned"] for row in attempt["checkpoints"]] == [True, False, False]
    assert cli("prune", *at, "--keep-last", 1, "--dry-run")["deleted"] == [refs[2]["uri"]]
    assert cli("prune", *at, "--keep-last", 1)["deleted"] == [refs[2]["uri"]]
    assert cli("choose", *at, "--attempt", 2)["checkpoint"] == refs[1]


def test_plain_output_is_for_people(cli: Cli, uri: str, source: Path) -> None:
    """Without --json a commit still prints its reference, and words go to standard error."""
    reference = cli("commit", source, "--lineage", uri, "--attempt", 1, "--step", 5)
    assert reference["uri"] == f"{uri}/attempts/0001/checkpoints/000000"
    assert "Committed step 5" in cli.err
    assert cli("choose", "--lineage", uri, "--attempt", 2)["checkpoint"] == reference
    assert "resumes at step 5" in cli.err
    assert cli("list", "--lineage", uri)["attempts"][0]["checkpoints"][0]["step"] == 5
    assert reference["uri"] in cli.out


def test_options_from_the_environment(
    cli: Cli, uri: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option may come from the container contract's variables."""
    monkeypatch.setenv("RESUME_LINEAGE", uri)
    monkeypatch.setenv("RESUME_ATTEMPT", "1")
    cli("commit", source, "--step", 5)
    monkeypatch.setenv("RESUME_ATTEMPT", "2")
    monkeypatch.setenv("RESUME_DIR", str(tmp_path / "out"))
    assert cli("restore", "--json")["checkpoint"]["step"] == 5
    assert read_tree(tmp_path / "out") == read_tree(source)


def test_restore_from_a_uri(cli: Cli, uri: str, source: Path, tmp_path: Path) -> None:
    """`restore --from` restores exactly that checkpoint, or fails with its own exit code."""
    reference = cli("commit", source, "--lineage", uri, "--attempt", 1, "--step", 5)
    got = cli("restore", "--from", reference["uri"] + "/", "--dir", tmp_path / "out", "--json")
    assert got["checkpoint"] == reference
    assert read_tree(tmp_path / "out") == read_tree(source)
    cli("restore", "--from", f"{uri}/no", "--dir", tmp_path / "no", code=ExitCode.CHECKPOINT_NOT_FOUND)
    assert not (tmp_path / "no").exists()


def good(raw: Raw, attempt: int, index: int, **options: Any) -> str:
    return raw.checkpoint(attempt, index, {"model.bin": b"m%d" % index, "opt.bin": b"o" * 50}, **options)


def spoil_truncated(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.put("attempts/0001/checkpoints/000001/opt.bin", b"o" * 49)
    return uri


def spoil_empty(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.put("attempts/0001/checkpoints/000001/opt.bin", b"")
    return uri


def spoil_missing(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.delete("attempts/0001/checkpoints/000001/opt.bin")
    return uri


def spoil_checksum(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.put("attempts/0001/checkpoints/000001/opt.bin", b"p" * 50)
    return uri


def spoil_longer(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.put("attempts/0001/checkpoints/000001/opt.bin", b"o" * 51)
    return uri


def spoil_foreign(raw: Raw) -> str:
    raw.put("training.json", {"schema": 1, "training_id": "t"})
    return good(raw, 1, 1, training_id="other")


def spoil_copied(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    manifest = json.loads(raw.get("attempts/0001/checkpoints/000001/manifest.json"))
    raw.put("attempts/0001/checkpoints/000001/manifest.json", {**manifest, "index": 0})
    return uri


def spoil_unfinished(raw: Raw) -> str:
    return good(raw, 1, 1, manifest=False)


def spoil_manifest(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    text = raw.get("attempts/0001/checkpoints/000001/manifest.json")
    raw.put("attempts/0001/checkpoints/000001/manifest.json", text[: len(text) // 2])
    return uri


def spoil_empty_manifest(raw: Raw) -> str:
    uri = good(raw, 1, 1)
    raw.put("attempts/0001/checkpoints/000001/manifest.json", b"")
    return uri


def spoil_total(raw: Raw) -> str:
    return good(raw, 1, 1, total_bytes=3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_truncated, "49 bytes"),
        (spoil_empty, "0 bytes"),
        (spoil_longer, "51 bytes"),
        (spoil_missing, "opt.bin is missing"),
        (spoil_checksum, "crc32c"),
        (spoil_foreign, "another training"),
        (spoil_copied, "copy"),
        (spoil_unfinished, "no manifest"),
        (spoil_manifest, "not JSON"),
        (spoil_empty_manifest, "not JSON"),
        (spoil_total, "add up"),
    ],
)
def test_hand_made_defects(cli: Cli, raw: Raw, tmp_path: Path, spoil: Any, words: str) -> None:
    """Each way a checkpoint can be wrong is passed over with its reason, by each subcommand."""
    older, broken = good(raw, 1, 0), spoil(raw)
    at = ("--lineage", raw.uri, "--attempt", 2, "--json")
    chosen = cli("choose", *at)
    assert chosen["checkpoint"]["uri"] == older
    assert [passed["uri"] for passed in chosen["passed_over"]] == [broken]
    assert words in chosen["passed_over"][0]["reason"]
    assert cli("restore", *at, "--dir", tmp_path / "out")["passed_over"] == chosen["passed_over"]
    assert read_tree(tmp_path / "out") == {"model.bin": b"m0", "opt.bin": b"o" * 50}
    if spoil is not spoil_foreign:
        assert cli("verify", broken, code=cli_code(words)) is None
    if spoil is not spoil_checksum:
        rows = cli("list", "--lineage", raw.uri, "--json")["attempts"][0]["checkpoints"]
        assert words in rows[1]["state"]


def cli_code(words: str) -> int:
    return ExitCode.CHECKPOINT_NOT_FOUND if words == "no manifest" else ExitCode.CHECKPOINT_BROKEN


def test_listing_only_does_not_read_the_bytes(cli: Cli, raw: Raw) -> None:
    """With --listing-only a wrong checksum goes unseen, and no byte is read."""
    good(raw, 1, 0)
    broken = spoil_checksum(raw)
    chosen = cli("choose", "--lineage", raw.uri, "--attempt", 2, "--json", "--listing-only")
    assert chosen["checkpoint"]["uri"] == broken


def test_minimal_hand_made_lineage(cli: Cli, raw: Raw, tmp_path: Path) -> None:
    """No records, odd paddings, unknown objects, a stale pointer: read all the same."""
    good(raw, 9, 3, directory="attempts/9/checkpoints/3")
    newest = good(raw, 10, 1000, directory="attempts/00010/checkpoints/1000")
    good(raw, 10, 999, directory="attempts/00010/checkpoints/999")
    raw.put("latest", "attempts/9/checkpoints/3")
    raw.put("attempts/latest.json", {"checkpoint": "attempts/0009/checkpoints/000003"})
    raw.put("attempts/00010/checkpoints/latest", "999")
    raw.put("attempts/00010/checkpoints/tmp-1001/model.bin", b"x")
    raw.put("attempts/notes/readme.txt", b"x")
    raw.put("quarantine/readme", b"x")
    assert cli("choose", "--lineage", raw.uri + "/", "--attempt", 11, "--json")["checkpoint"]["uri"] == newest


def test_step_900_beside_step_1000(cli: Cli, raw: Raw) -> None:
    """The higher index wins, whatever the steps' spelling: 1000 is not smaller than 900."""
    good(raw, 1, 0, step=900)
    newest = good(raw, 1, 1, step=1000)
    assert cli("choose", "--lineage", raw.uri, "--attempt", 2, "--json")["checkpoint"]["uri"] == newest


def test_zombie_commit(cli: Cli, raw: Raw) -> None:
    """An old attempt's late commit does not win over the newer attempt's, however high its index and step."""
    good(raw, 1, 0)
    newest = good(raw, 2, 1)
    good(raw, 1, 7, step=99_999)
    assert cli("choose", "--lineage", raw.uri, "--attempt", 3, "--json")["checkpoint"]["uri"] == newest


def test_other_lineages_are_never_considered(cli: Cli, raw: Raw) -> None:
    """A neighbour whose name begins like ours, and one inside ours, are not ours."""
    Raw(f"{raw.uri}-2", os.environ["STORAGE_EMULATOR_HOST"]).checkpoint(1, 5, {"a": b"a"})
    raw.checkpoint(1, 5, {"a": b"a"}, directory="other/attempts/0001/checkpoints/000005")
    assert cli("choose", "--lineage", raw.uri, "--attempt", 2, "--json")["checkpoint"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("choose", "--lineage", "s3://b/l", "--attempt", "1"), "lineage is 's3://b/l'"),
        (("choose", "--lineage", "/tmp/l", "--attempt", "1"), "lineage is '/tmp/l'"),
        (("choose", "--lineage", "gs://", "--attempt", "1"), "lineage"),
        (("choose", "--attempt", "1"), "--lineage or RESUME_LINEAGE"),
        (("choose", "--lineage", "file:///tmp/x"), "--attempt or RESUME_ATTEMPT"),
        (("choose", "--lineage", "file:///tmp/x", "--attempt", "0"), "attempt must be"),
        (
            ("commit", "/no/such/dir", "--lineage", "file:///tmp/x", "--attempt", "1", "--step", "1"),
            "not a directory",
        ),
        (("commit", "/tmp", "--step", "1", "--metrics", "{"), "not JSON"),
        (("restore", "--lineage", "file:///tmp/x", "--attempt", "1"), "--dir or RESUME_DIR"),
        (("prune", "--lineage", "file:///tmp/x"), "No rule says what to keep"),
        (("quarantine", "file:///tmp/x"), "no checkpoint of a lineage"),
    ],
)
def test_bad_usage_is_one_clear_line(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Bad input ends with exit code 2 and a line that names the option."""
    cli(*arguments, code=ExitCode.USAGE)
    assert words in cli.err


def test_exit_codes_of_the_store(
    cli: Cli, gs_uri: str, source: Path, tmp_path: Path, server: DisturbedServer
) -> None:
    """A store that is unavailable, refuses or is misconfigured has its exit code and is no fresh start."""
    cli("commit", source, "--lineage", gs_uri, "--attempt", 1, "--step", 1)
    restore = ("restore", "--lineage", gs_uri, "--attempt", 2, "--dir", tmp_path / "out")
    server.plan.add(Fault(status=503), method="GET")
    cli(*restore, code=ExitCode.STORE_UNAVAILABLE)
    server.calm()
    server.answer = refuse(403, "x does not have storage.objects.list access")
    cli(*restore, code=ExitCode.PERMISSION_DENIED)
    assert "storage.objects.list" in cli.err
    server.answer = refuse(400, "UserProjectMissing")
    cli(*restore, code=ExitCode.STORE_MISCONFIGURED)
    assert not (tmp_path / "out").exists()


def test_superseded_exit_code(cli: Cli, raw: Raw, source: Path) -> None:
    """A superseded commit says so by its exit code."""
    good(raw, 2, 0)
    cli("commit", source, "--lineage", raw.uri, "--attempt", 1, "--step", 1, code=ExitCode.SUPERSEDED)


def test_as_a_command(uri: str, source: Path) -> None:
    """The installed command does the same, with JSON and nothing else on standard output."""
    done = resume_run("commit", str(source), "--lineage", uri, "--attempt", "1", "--step", "5", "--json")
    assert json.loads(done.stdout)["step"] == 5
    done = resume_run("choose", "--lineage", f"{uri}-nothing", "--attempt", "3", "--json")
    assert json.loads(done.stdout)["checkpoint"] is None


def test_bar_on_a_terminal_and_lines_elsewhere(uri: str, source: Path) -> None:
    """A terminal sees a bar with bytes, files and rate; a log sees plain lines."""
    command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", "commit", str(source)]
    command += ["--lineage", uri, "--attempt", "1", "--step"]
    main_end, other_end = pty.openpty()
    with os.fdopen(main_end, "rb", buffering=0) as terminal:
        process = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL, stderr=other_end)
        os.close(other_end)
        shown = b""
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:
            pass  # how a terminal says that the other end is closed
        assert process.wait(timeout=60) == 0
    assert b"\r" in shown
    assert b"[####" in shown
    assert b"2 of 2 files" in shown
    plain = subprocess.run([*command, "2"], capture_output=True, text=True, check=True, timeout=60)
    assert "\x1b" not in plain.stderr
    assert "2 of 2 files" in plain.stderr
