"""The training's processes: started in a session of their own, signalled and ended as a whole.

A signal to the shell in `sh -c 'python train.py'` does not reach Python, so signals go to the
process group (https://github.com/petuum/adaptdl/issues/105). Launchers such as torchrun put their
workers into sessions of their own; we are therefore the subreaper of whatever they leave behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from airflow_resume_provider.errors import ContainerError, ExitCode

_CHECK = "Check the image and the operator's `command`."
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MOST_AT_ONCE = 1000
#: Absent outside Linux, where the process group is all there is.
_prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)


class CommandNotFound(ContainerError):
    """The training's command cannot be started."""

    exit_code = ExitCode.COMMAND_NOT_FOUND


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone; runs between fork and exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def require_command(command: Sequence[str], environ: Mapping[str, str], directory: Path) -> None:
    """Raise `CommandNotFound` for what cannot be started, before anything is downloaded for it.

    What lies below `directory` may be part of the checkpoint, so it is not looked for yet.
    """
    name, path = command[0], Path(command[0])
    if "/" in name and path.absolute().is_relative_to(directory):
        return
    if shutil.which(name, path=environ.get("PATH", os.defpath)):
        return
    if "/" in name and path.exists():
        why = "it is a directory" if path.is_dir() else "it is not executable"
    else:
        why = "it is not there" if "/" in name else "it is not on the PATH"
    raise CommandNotFound(f"The command {name!r} cannot be started: {why}.", can=_CHECK)


class Child:
    """One command and everything it has started."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(  # the training lives as long as we do
                command,
                env=dict(environ),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise CommandNotFound(
                f"The command {command[0]!r} could not be started: {error.strerror}.", can=_CHECK
            ) from error
        self.pid = self._process.pid

    def report_exit(self, report: Callable[[int], None]) -> None:
        """Call `report` with the exit code, as Popen has it, from another thread."""
        threading.Thread(target=lambda: report(self._process.wait()), name="child", daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group, once each."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self, apart_from: Collection[int] = ()) -> None:
        """Bury adopted processes that have died: as the first process of a container nobody else does."""
        with contextlib.suppress(ChildProcessError):
            for _ in range(_MOST_AT_ONCE):
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if dead is None or dead.si_pid == self.pid or dead.si_pid in apart_from:
                    return
                os.waitpid(dead.si_pid, os.WNOHANG)

    def is_alive(self, apart_from: Collection[int] = ()) -> bool:
        """Say whether any process of the training is left, adopted ones included."""
        self._reap(apart_from)
        return any(True for _ in self._family(apart_from))

    def kill(self, apart_from: Collection[int] = (), patience: float = 5.0) -> None:
        """KILL everything that is left, whatever group or session it has put itself into."""
        until = time.monotonic() + patience
        self.signal(signal.SIGKILL)
        while self.is_alive(apart_from) and time.monotonic() < until:
            for pid in list(self._family(apart_from)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)  # the kernel needs a moment; nobody tells when

    def _family(self, apart_from: Collection[int]) -> Iterator[int]:
        parents = dict(_parents())
        mine = {pid for pid, parent in parents.items() if parent == os.getpid() and pid not in apart_from}
        while mine:
            yield from mine
            mine = {pid for pid, parent in parents.items() if parent in mine}

    def _reap(self, apart_from: Collection[int]) -> None:
        for pid, parent in list(_parents(zombies=True)):
            if parent == os.getpid() and pid != self.pid and pid not in apart_from:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _parents(zombies: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (pid, parent) of every process that runs, or of those that are dead and unreaped."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if (state in "ZX") == zombies:
            yield int(entry.parent.name), int(parent)
