"""The main job on real parts: a real Airflow, the real Batch client, real processes, and its ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

COMMAND = (sys.executable, "-m", "airflow_resume_provider.testing.demo", "--step-seconds", "0.03")


def play(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def playing(folder: Path, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a demo whose every process carries `scratch` in its environment, so that all can be found."""
    scratch.mkdir()
    command = [*COMMAND, "--folder", str(folder)]
    env = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"{words!r} never came:\n{''.join(seen)}")


def of_demo(scratch: Path) -> list[str]:
    """Return the command lines of the living processes that carry `scratch`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("TMPDIR") == str(scratch):
                found.append(" ".join(process.cmdline()))
    return found


def wait_until_nothing_is_left(scratch: Path, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while left := [*of_demo(scratch), *map(str, scratch.glob("resume-demo-*"))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_preempted_twice_and_finished_with_the_same_bytes(tmp_path: Path) -> None:
    """Three attempts, two preemptions, one try, and the weights of a training that was never interrupted."""
    done = play(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    story = json.loads((tmp_path / "story.json").read_text())
    assert story["sha256"] == story["twin"]["sha256"] != ""
    assert story["try_number"] == 1
    assert [attempt["verdict"] for attempt in story["attempts"]] == ["preempted", "preempted", "succeeded"]
    assert story["attempts"][0]["losses"]
    assert not story["attempts"][1]["losses"]
    assert story["xcoms"]["return_value"]["preemptions"] == 2
    assert story["xcoms"]["checkpoint_uri"] == story["xcoms"]["checkpoint"]["uri"]
    assert story["sha256"] in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert done.stderr == ""


def test_two_beside_each_other_and_both_ends(tmp_path: Path) -> None:
    """Two demos run side by side; Ctrl-C in one and SIGKILL of the other leave no process and no scratch."""
    first, second = tmp_path / "a", tmp_path / "b"
    with playing(tmp_path / "demo", first) as polite, playing(tmp_path / "demo-2", second) as rude:
        wait_for_line(polite, "committed step 50")
        wait_for_line(rude, "committed step 50")
        rude.kill()
        wait_until_nothing_is_left(second)
        assert of_demo(first)
        polite.send_signal(signal.SIGINT)
        assert polite.stdout is not None
        assert "interrupted" in polite.stdout.read()
        assert polite.wait() == 130
    wait_until_nothing_is_left(first)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """A taken port is named before anything is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = play(tmp_path, "--port", str(port))
    assert done.returncode == 1
    assert f"Port {port}" in done.stdout
    assert len(done.stdout.splitlines()) <= 2


def test_a_second_demo_in_the_same_folder_is_one_clear_line(tmp_path: Path) -> None:
    """Two demos never mix their reports: the second names the first and says how to go on."""
    from airflow_resume_provider.testing.demo.options import sole_user

    with sole_user(tmp_path):
        done = play(tmp_path)
    assert done.returncode == 1
    assert str(os.getpid()) in done.stdout
    assert "--folder" in done.stdout


def test_help_says_what_it_does() -> None:
    """`--help` needs neither Airflow nor a stack and names each option."""
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "preempted twice" in " ".join(done.stdout.split())
    assert "--folder" in done.stdout
