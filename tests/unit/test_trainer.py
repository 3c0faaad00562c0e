"""The demo's trainer on its own: no provider, no Airflow, only its environment."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = Path(__file__).parents[2] / "docker" / "trainer" / "train.py"
COMMAND = (sys.executable, str(TRAINER), "--steps", "60", "--save-every", "10")


def environment(folder: Path, **more: str) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("RESUME")}
    return {**ours, "RESUME_DIR": str(folder), **more}


def train(folder: Path, *arguments: str, **more: str) -> list[dict]:
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment(folder, **more), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def start(folder: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "--step-seconds", "0.05", *arguments]
    return subprocess.Popen(command, env=environment(folder, **more), stdout=subprocess.PIPE, text=True)


def lines_until(process: subprocess.Popen[str], step: int) -> list[dict]:
    """Read what the trainer prints until it has trained that step."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if seen[-1].get("step", 0) >= step:
            break
    return seen


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return train(tmp_path_factory.mktemp("twin"))[-1]


def test_any_kind_of_end_leads_to_the_same_bytes(tmp_path: Path, uninterrupted: dict) -> None:
    """A training that was killed once and politely stopped once ends with the bits of one that was not."""
    for step, number in ((17, signal.SIGKILL), (35, signal.SIGTERM)):
        with start(tmp_path) as process:
            lines_until(process, step)
            process.send_signal(number)
    finished = train(tmp_path)[-1]
    assert finished["sha256"] == uninterrupted["sha256"]
    assert finished["samples"] == uninterrupted["samples"]


def test_sigterm_saves_the_step_that_was_reached_and_exits_zero(tmp_path: Path) -> None:
    """On SIGTERM nothing is lost: the last step that was printed is the step that was saved."""
    with start(tmp_path) as process:
        lines_until(process, 13)
        process.terminate()
        assert process.stdout is not None
        rest = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    assert rest[-1]["event"] == "stopped"
    assert (tmp_path / f"checkpoint-{rest[-1]['step']}" / "state.json").is_file()


def test_the_notice_file_stops_it_like_a_signal(tmp_path: Path) -> None:
    """The notice file alone, without a signal, ends the training after a saved step."""
    notice = tmp_path / "notice"
    with start(tmp_path / "run", RESUME_NOTICE_FILE=str(notice)) as process:
        lines_until(process, 3)
        notice.touch()
        assert process.stdout is not None
        process.stdout.read()
    assert process.returncode == 0
    assert not (tmp_path / "run" / "checkpoint-60").exists()


def test_numbers_decide_and_half_written_checkpoints_do_not_count(tmp_path: Path) -> None:
    """Step 100 is newer than step 90, and a directory without its last file is no checkpoint."""
    train(tmp_path, "--steps", "100")
    shutil.copytree(tmp_path / "checkpoint-100", tmp_path / "checkpoint-110")
    (tmp_path / "checkpoint-110" / "state.json").unlink()
    started = train(tmp_path, "--steps", "120")[0]
    assert started["step"] == 100


def test_the_log_survives_with_the_checkpoint(tmp_path: Path) -> None:
    """The checkpoint holds every step's loss once, with the attempt that trained it."""
    with start(tmp_path, RESUME_ATTEMPT="1") as process:
        lines_until(process, 15)
        process.kill()
    train(tmp_path, RESUME_ATTEMPT="2")
    log = [json.loads(line) for line in (tmp_path / "checkpoint-60" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == list(range(1, 61))
    assert {entry["attempt"] for entry in log[:10]} == {1}
    assert log[-1]["attempt"] == 2


def test_only_the_newest_local_checkpoints_are_kept_when_asked(tmp_path: Path) -> None:
    """`--keep 2` leaves the two highest steps, and the metrics are those of the last one."""
    metrics = tmp_path / "metrics.json"
    train(tmp_path / "run", "--steps", "120", "--keep", "2", RESUME_METRICS_FILE=str(metrics))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint-110", "checkpoint-120"]
    assert set(json.loads(metrics.read_text())) == {"loss", "accuracy"}


def test_the_table_is_what_scikit_learn_returns() -> None:
    """Reading the shipped table directly gives the very numbers of `load_digits`."""
    datasets = pytest.importorskip("sklearn.datasets")
    spec = importlib.util.spec_from_file_location("trainer", TRAINER)
    assert spec is not None
    assert spec.loader is not None
    trainer = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = trainer
    spec.loader.exec_module(trainer)
    ours, theirs = trainer.Digits.load(), datasets.load_digits()
    assert (ours.test_images * 16 == theirs.data[:297]).all()
    assert (ours.labels == theirs.target[297:]).all()
