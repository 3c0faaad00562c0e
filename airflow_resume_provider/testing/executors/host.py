"""The host of all local VMs: a small process that forks one init process per VM.

Run as a script with isolated imports, standard library only, so that a VM costs
a fork and not an interpreter start. Three facts make "no process left behind"
hold, whatever dies:

* Every VM init is a *child subreaper*: whatever its processes do (`setsid`,
  double fork), orphans come back to it, so killing its children until it has
  none ends every process of the VM.
* Each VM init holds one end of a socket whose other end only the server holds.
  When the server dies, even by SIGKILL, the kernel closes it and the init ends
  its VM.
* The host is a subreaper too and ends the orphans of an init that was killed.

Protocol: JSON lines. To the host: one line per boot, with the init's socket
attached. To an init: `run`, `signal`, `destroy`. From an init: `started`,
`exited`, `gone`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Container
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHUNK = 65536
LAST_SECONDS = 30
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBC = ctypes.CDLL(None, use_errno=True)
Order = dict[str, Any]


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(parent: int) -> list[int]:
    """Process ids whose parent is `parent`, read from /proc."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = os.open(f"/proc/{entry.name}/stat", os.O_RDONLY)
            parts = os.read(stat, 4096).rpartition(b")")[2].split()
            os.close(stat)
            if int(parts[1]) == parent:
                found.append(int(entry.name))
    return found


def kill_descendants(keep: Container[int] = ()) -> None:
    """End every descendant of this process; orphans come to us, so repeat until there are none."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        victims = [pid for pid in children_of(os.getpid()) if pid not in keep]
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def exit_code(status: int) -> int:
    """A wait status as a shell shows it: 128 + n for signal n."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def reset_signals() -> None:
    """Give a child the signal handling of a fresh process."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def execute(order: Order) -> NoReturn:
    """Replace this process by the command; a command that is not there exits 127, as in a shell."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except OSError as error:
        os.write(2, f"{order['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)


def as_container(order: Order) -> NoReturn:
    """Behave as a container's shim: signals go to the main process only, and its end ends the rest."""
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    main = os.fork()
    if main == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.setsid()
        execute(order)
    for number in FORWARDED:
        signal.signal(number, lambda got, _frame: os.kill(main, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    pid, status = os.waitpid(-1, 0)
    while pid != main:
        pid, status = os.waitpid(-1, 0)
    kill_descendants()
    os._exit(exit_code(status))


def spawn(order: Order, out: int, err: int) -> int:
    """Fork a runnable in a session of its own, its output going to the two pipes."""
    pid = os.fork()
    if pid:
        return pid
    try:
        reset_signals()
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for have, want in ((null, 0), (out, 1), (err, 2)):
            os.dup2(have, want)
        os.closerange(3, 4096)
        if order["container"]:
            as_container(order)
        execute(order)
    finally:
        os._exit(126)


class Output:
    """One pipe of a runnable, written to the task's log as one JSON line per line of output."""

    def __init__(self, order: Order, severity: str) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.log, self.rest = order["log"], b""
        self.mark = {
            "log": "batch_task_logs",
            "severity": severity,
            "runnable": order["runnable"],
            "attempt": order["attempt"],
        }

    def fileno(self) -> int:
        """What `select` waits on."""
        return self.reader

    def drain(self) -> bool:
        """Take what is there; False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.reader, CHUNK)
            except BlockingIOError:
                return True
            if not data:
                self._write_lines(final=True)
                return False
            self.rest += data
            self._write_lines(final=len(self.rest) > 16 * CHUNK)

    def _write_lines(self, final: bool = False) -> None:
        lines = self.rest.split(b"\n")
        self.rest = b"" if final else lines.pop()
        if final and lines and not lines[-1]:
            lines.pop()
        if lines:
            self._append(b"".join(self._entry(line) for line in lines))

    def _entry(self, line: bytes) -> bytes:
        text = line.decode("utf-8", "replace")
        return (json.dumps(dict(self.mark, time=time.time(), message=text)) + "\n").encode()

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(log, data)
            os.close(log)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self.reader)


class Init:
    """Process 1 of one VM."""

    def __init__(self, control: socket.socket) -> None:
        self.control, self.pending = control, b""
        self.runs: dict[int, tuple[Order, list[Output]]] = {}
        self.outputs: list[Output] = []
        self.last: list[list[str]] = []
        self.wake_reader, wake_writer = os.pipe()
        for end in (self.wake_reader, wake_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        become_subreaper()

    def _send(self, **event: object) -> None:
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(event).encode() + b"\n")

    def loop(self) -> None:
        """Follow orders until the server is gone or wants the VM ended, then end it."""
        host = os.getppid()
        while os.getppid() == host:
            waiting: list[Any] = [self.control, self.wake_reader, *self.outputs]
            ready = select.select(waiting, [], [], 2)[0]
            for output in [item for item in ready if isinstance(item, Output)]:
                self._read(output)
            if self.wake_reader in ready:
                os.read(self.wake_reader, CHUNK)
            self._reap()
            if self.control in ready and not self._receive():
                break
        self._end()

    def _read(self, output: Output) -> None:
        if output in self.outputs and not output.drain():
            self.outputs.remove(output)
            output.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.runs:
                order, pipes = self.runs.pop(pid)
                for output in pipes:
                    self._read(output)
                self._send(event="exited", id=order["id"], code=exit_code(status))

    def _receive(self) -> bool:
        """Follow the orders that arrived; False when the server is gone or wants the VM ended."""
        try:
            data = self.control.recv(CHUNK)
        except OSError:
            return False
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        return bool(data) and all(self._follow(json.loads(line)) for line in lines)

    def _follow(self, order: Order) -> bool:
        if order["do"] == "run":
            self._run(order)
        elif order["do"] == "at_end":
            self.last.append(order["argv"])
        elif order["do"] == "signal":
            self._signal(order)
        return bool(order["do"] != "destroy")

    def _run(self, order: Order) -> None:
        pipes = [Output(order, "INFO"), Output(order, "ERROR")]
        pid = spawn(order, pipes[0].writer, pipes[1].writer)
        for output in pipes:
            os.close(output.writer)
        self.runs[pid] = (order, pipes)
        self.outputs += pipes
        self._send(event="started", id=order["id"], pid=pid)

    def _signal(self, wanted: Order) -> None:
        for pid, (order, _) in self.runs.items():
            if wanted["id"] in (None, order["id"]):
                with contextlib.suppress(OSError):
                    kill = os.kill if order["container"] and wanted["number"] != signal.SIGKILL else os.killpg
                    kill(pid, wanted["number"])

    def _end(self) -> None:
        kill_descendants()
        for argv in self.last:
            self._finally(argv)
        for output in list(self.outputs):
            self._read(output)
        self._send(event="gone")
        os._exit(0)

    def _finally(self, argv: list[str]) -> None:
        """Run a last command, bounded in time: what an engine holds is not ours to kill."""
        pid = os.fork()
        if pid == 0:
            reset_signals()
            execute({"argv": argv, "env": dict(os.environ), "cwd": "/"})
        deadline = time.monotonic() + LAST_SECONDS
        while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.02)
        kill_descendants()


class Host:
    """Boots VMs on request, and cleans up behind inits that were killed."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.inits: set[int] = set()
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def loop(self) -> None:
        """Boot VMs until the server is gone, then see to it that nothing is left."""
        server = os.getppid()
        while os.getppid() == server:
            if select.select([self.control], [], [], 1)[0] and not self._boot():
                break
            self._reap()
        # The inits notice by themselves that the server is gone; wait for them, then make sure.
        deadline = time.monotonic() + 15
        while self.inits and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.02)
        kill_descendants()

    def _boot(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        if not message:
            return False
        for fd in fds:
            pid = os.fork()
            if pid == 0:
                self.control.close()
                os.setsid()
                try:
                    Init(socket.socket(fileno=fd)).loop()
                finally:
                    os._exit(1)
            os.close(fd)
            self.inits.add(pid)
        return True

    def _reap(self) -> None:
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid in self.inits:
                self.inits.discard(pid)
                orphaned |= not os.WIFEXITED(status)
        if orphaned:
            kill_descendants(keep=self.inits)


if __name__ == "__main__":
    Host(socket.socket(fileno=int(sys.argv[1]))).loop()
