"""Processes that end with their owner: each in a session of its own, watched by a keeper.

A process group is not enough for Airflow, whose tasks leave their parent's
group; a session holds them all. The keeper is a small process that sees the
owner die (even by SIGKILL) as the end of its standard input, and then ends
every session and removes every directory that it was told about.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

# How long a SIGTERM may take before the session is killed.
GRACE_SECONDS = 5.0


class Session:
    """One started program and everything that it has started since, by session id."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    def __repr__(self) -> str:
        return f"<Session {self.name} pid={self.process.pid} {'alive' if self.alive else 'ended'}>"

    @property
    def alive(self) -> bool:
        """Whether the program itself still runs."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its descendants."""
        for pid in members({self.process.pid}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of what it printed."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Sessions:
    """A set of sessions that end together, at the latest when this process does."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._sids: set[int] = set()
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Session:
        return self._sessions[name]

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def start(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> Session:
        """Start a program in a new session, its output appended to `log`."""
        self._ensure_keeper()
        with log.open("ab") as output:
            process = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._sids.add(process.pid)
        self._tell(f"end {process.pid}")
        self._sessions[name] = Session(name, process, log)
        return self._sessions[name]

    def remove_at_end(self, folder: Path) -> None:
        """Have a directory removed should this process die before it can do so itself."""
        self._ensure_keeper()
        self._tell(f"remove {folder}")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal one session and wait until its program has ended."""
        self[name].signal(number)
        self[name].process.wait()

    def stop(self) -> None:
        """End every session: SIGTERM, a grace, SIGKILL; returns when nothing is left."""
        for session in self:
            session.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(session.alive for session in self) and time.monotonic() < deadline:
            time.sleep(0.05)
        end(self._sids)
        for session in self:
            session.process.wait()
        self._sessions.clear()
        self._sids.clear()
        self._dismiss_keeper()

    def _ensure_keeper(self) -> None:
        if self._keeper is None:
            # In its own session, so that a Ctrl-C in the terminal does not reach it.
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, start_new_session=True
            )

    def _tell(self, order: str) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{order}\n".encode())
        self._keeper.stdin.flush()

    def _dismiss_keeper(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None


def members(sids: Collection[int]) -> list[int]:
    """Return the processes, zombies left out, that belong to one of these sessions."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) in sids and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def end(sids: Collection[int], timeout: float = 10.0) -> None:
    """Kill whatever belongs to these sessions, again and again until nothing does."""
    deadline = time.monotonic() + timeout
    while (pids := members(sids)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def keep() -> None:
    """Read orders until the owner is gone, then carry them out."""
    orders = [line.rstrip("\n").split(" ", 1) for line in sys.stdin]
    if sids := {int(what) for order, what in orders if order == "end"}:
        end(sids)
    for folder in (what for order, what in orders if order == "remove"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep()
