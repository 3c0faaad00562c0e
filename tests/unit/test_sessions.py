"""Processes that end with their owner, whatever becomes of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_resume_provider.testing.sessions import Sessions, members

# Starts a child in a process group of its own, as Airflow's supervisor does, and prints its id.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""
OWNER = f"""
import os, sys, time
from pathlib import Path
from airflow_resume_provider.testing.sessions import Sessions
sessions = Sessions()
sessions.remove_at_end(Path(sys.argv[1]) / "scratch with a space")
sessions.start("one", [sys.executable, "-c", {PARENT!r}], env=os.environ, log=Path(sys.argv[1]) / "log")
time.sleep(600)
"""


def until(look: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(sessions: Sessions, folder: Path, code: str = PARENT) -> int:
    """Start a parent with a child in another group and return the child's id."""
    log = folder / "log"
    sessions.start("one", [sys.executable, "-c", code], env=os.environ, log=log)
    until(lambda: log.read_text().strip())
    return int(log.read_text().split()[-1])


def test_stop_reaches_children_that_left_the_group(tmp_path: Path) -> None:
    """A child in a process group of its own ends with its session."""
    with Sessions() as sessions:
        child = start(sessions, tmp_path)
        assert is_running(child)
    assert not is_running(child)


def test_kill_ends_one_session_and_leaves_the_others(tmp_path: Path) -> None:
    """Killing one program takes its descendants along and nothing else."""
    with Sessions() as sessions:
        child = start(sessions, tmp_path)
        other = sessions.start("two", [sys.executable, "-c", PARENT], env=os.environ, log=tmp_path / "log-2")
        sessions.kill("one")
        until(lambda: not is_running(child))
        assert not sessions["one"].alive
        assert other.alive


def test_the_keeper_ends_everything_when_the_owner_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the owner ends its sessions and removes its scratch directory."""
    scratch = tmp_path / "scratch with a space"
    (scratch / "deep").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)]) as owner:
        until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().strip())
        child = int((tmp_path / "log").read_text())
        owner.kill()
    until(lambda: not is_running(child) and not scratch.exists())


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping does not wait for ever for a program that does not listen."""
    monkeypatch.setattr("airflow_resume_provider.testing.sessions.GRACE_SECONDS", 0.2)
    deaf = "import signal, os, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True)"
    with Sessions() as sessions:
        pid = start(sessions, tmp_path, f"{deaf}; time.sleep(600)")
    assert not is_running(pid)


def test_a_session_knows_its_members_and_its_last_words(tmp_path: Path) -> None:
    """The members are the program and its descendants; the tail is what it printed last."""
    with Sessions() as sessions:
        child = start(sessions, tmp_path)
        session = sessions["one"]
        assert set(members({session.process.pid})) == {session.process.pid, child}
        assert session.tail(1) == str(child)
        session.signal(signal.SIGKILL)
        until(lambda: not members({session.process.pid}))
