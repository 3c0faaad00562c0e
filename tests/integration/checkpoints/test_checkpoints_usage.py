"""`resume-run` at the edges of a terminal: a container's environment, odd encodings, closed pipes, help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_world import Raw, resume_run, write_tree

from airflow_resume_provider.batch import jobs
from airflow_resume_provider.errors import ExitCode

SUBCOMMANDS = (
    *("commit", "choose", "restore", "list", "verify", "prune"),
    *("quarantine", "pin", "sync", "finish"),
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {"model.bin": b"m" * 1000})


def test_restore_by_hand_in_a_container(raw: Raw, tmp_path: Path) -> None:
    """With the container's whole environment, `restore` is still the plain command: it records nothing."""
    raw.checkpoint(4, 0, {"a": b"a"})
    before = raw.names()
    environment = {
        "RESUME_STATE_DIR": str(tmp_path / "state"),
        "RESUME_ATTEMPT": "4",
        "RESUME_LINEAGE": raw.uri,
    }
    done = resume_run("restore", "--attempt", "5", "--dir", str(tmp_path / "x"), "--json", **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"]["attempt"] == 4
    assert raw.names() == before
    assert not (tmp_path / "state").exists()


def test_first_runnable_of_a_job_prepares_the_training(raw: Raw, tmp_path: Path) -> None:
    """`restore --for-training` says that the attempt has started and leaves the state directory."""
    raw.checkpoint(4, 0, {"a": b"a"})
    environment = {
        "RESUME_STATE_DIR": str(tmp_path / "state"),
        "RESUME_ATTEMPT": "5",
        "RESUME_LINEAGE": raw.uri,
    }
    done = resume_run("restore", "--for-training", "--dir", str(tmp_path / "x"), **environment)
    assert done.returncode == 0, done.stderr
    assert "attempts/0005/attempt.json" in raw.names()
    assert (tmp_path / "state").is_dir()


def test_job_with_sidecars_says_what_its_restore_is_for() -> None:
    """The operator's job asks for the sidecar's restore by flag, not by environment."""
    from airflow_resume_provider.batch import sidecars

    container = jobs.ContainerSpec(image="trainer:1", command=("train",), runtime_image="runtime:1")
    contract = jobs.ContractSpec(
        lineage="gs://b/l", attempt=1, training_id="t1", job_id="j", job_name="projects/p/locations/l/jobs/j"
    )
    first = sidecars.runnables(container, contract)[0]
    assert first["container"]["commands"] == ["resume-run", "restore", "--for-training"]


def test_main_help_lists_everything() -> None:
    """`resume-run --help` has a line for each subcommand and the exit codes."""
    lines = [line.split() for line in resume_run("--help").stdout.splitlines()]
    for name in SUBCOMMANDS:
        assert any(words[:1] == [name] and len(words) > 3 for words in lines)
    text = " ".join(" ".join(words) for words in lines)
    for code in ExitCode:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in text


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (("choose", "--attempt", "x"), "resume-run choose: argument --attempt"),
        (("nosuch",), "resume-run: argument SUBCOMMAND: invalid choice: 'nosuch'"),
        ((), "resume-run: there is no command"),
        (("commit", "d", "--step", "1", "--metrics", '{"l": NaN}'), "resume-run commit: argument --metrics"),
    ],
)
def test_usage_error_is_one_line(arguments: tuple[str, ...], start: str) -> None:
    """A wrong command line costs one line that names the command and the option."""
    done = resume_run(*arguments)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(start)
    assert done.stderr.count("\n") == 1


def test_ascii_terminal(tmp_path: Path, source: Path) -> None:
    """Where the output can hold ASCII only, JSON stays JSON and help is shown."""
    lineage = f"file://{tmp_path}/ü"
    arguments = ("--lineage", lineage, "--attempt", "1", "--step", "1", "--json")
    done = resume_run("commit", str(source), *arguments, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["uri"].startswith(lineage)
    assert resume_run("--help", PYTHONIOENCODING="ascii").returncode == 0


def test_reader_that_goes_away(raw: Raw) -> None:
    """`resume-run list | true` ends like any other program there: no traceback."""
    for number in range(50):
        raw.checkpoint(1, number, {"a": b"a"})
    command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", "list", "--lineage", raw.uri]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors == ""
