"""The server's side of `host.py`: boots local VMs, runs commands in them, ends them for certain."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HOST_SCRIPT = Path(__file__).with_name("host.py")


@dataclass(frozen=True)
class Command:
    """One runnable, ready to be executed in a VM.

    Args:
        container: signals go to the main process only and its end ends the
            rest, as in a container; otherwise signals go to the process group.
        log: file that gets one JSON line per line of output.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    container: bool = False
    runnable: int = 0
    attempt: int = 0


class Execution:
    """A command that runs, or ran, in a VM."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number, self.pid = machine, number, 0
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Execution {self.number} pid={self.pid} exited={self.exited.done()}>"

    def signal(self, number: int) -> None:
        """Send a signal to this runnable only."""
        self.machine.send(do="signal", id=self.number, number=int(number))

    async def wait(self) -> int:
        """Exit code, 128 + n for signal n."""
        return await asyncio.shield(self.exited)


class Machine:
    """One VM: a process tree that ends as a whole."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._writer: asyncio.StreamWriter | None = None
        self._executions: dict[int, Execution] = {}
        self._numbers = itertools.count(1)
        self._listener: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()

    async def connect(self) -> Machine:
        """Take up the line to the VM's init process."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._listener = asyncio.create_task(self._listen(reader))
        return self

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._heard(json.loads(line))
        self.gone.set()
        for execution in self._executions.values():
            if not execution.exited.done():
                execution.exited.set_result(128 + signal.SIGKILL)

    def _heard(self, event: dict[str, Any]) -> None:
        execution = self._executions.get(event.get("id", 0))
        if execution and event["event"] == "started":
            execution.pid = event["pid"]
        elif execution and event["event"] == "exited" and not execution.exited.done():
            execution.exited.set_result(event["code"])

    def send(self, **order: Any) -> None:
        """Give the init an order; a VM that is gone hears nothing."""
        if self._writer and not self.gone.is_set():
            with contextlib.suppress(ConnectionError):
                self._writer.write(json.dumps(order).encode() + b"\n")

    async def start(self, command: Command) -> Execution:
        """Start a command; returns at once."""
        execution = Execution(self, next(self._numbers))
        self._executions[execution.number] = execution
        self.send(do="run", id=execution.number, **asdict(command))
        if self.gone.is_set():
            execution.exited.set_result(128 + signal.SIGKILL)
        return execution

    def signal_all(self, number: int) -> None:
        """Send a signal to everything that was started in the VM, as a shutdown does."""
        self.send(do="signal", id=None, number=int(number))

    def at_end(self, argv: list[str]) -> None:
        """Have the VM's init run a command when the VM ends, however it ends."""
        self.send(do="at_end", argv=argv)

    @property
    def running(self) -> bool:
        """Whether any command has not exited yet."""
        return any(not execution.exited.done() for execution in self._executions.values())

    async def wait_idle(self, timeout: float) -> None:
        """Wait until every command has exited, `timeout` seconds at most."""
        waiting = [execution.exited for execution in self._executions.values() if not execution.exited.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)

    async def destroy(self) -> None:
        """End every process of the VM; returns when none is left."""
        self.send(do="destroy")
        await self.gone.wait()
        if self._writer:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()


class MachineHost:
    """Owner of the host process; a new one is started should it die."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the host process. It ends by itself when this process does.

        Raises:
            RuntimeError: this is not Linux.
        """
        if not sys.platform.startswith("linux"):
            raise RuntimeError(
                "The local stack needs Linux: its VMs are process trees held together by a kernel feature. "
                "On another system run it in a Linux container."
            )
        ours, theirs = socket.socketpair()
        with self._log.open("ab") as log, theirs:
            command = [sys.executable, "-I", "-S", "-B", str(HOST_SCRIPT), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin"},
            )
        self._control = ours

    @property
    def alive(self) -> bool:
        """Whether the host process runs."""
        return self._process is not None and self._process.poll() is None

    async def boot(self) -> Machine:
        """Boot a VM: about two milliseconds."""
        if not self.alive or self._control is None:
            self._close()
            self.start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            socket.send_fds(self._control, [b"b"], [theirs.fileno()])
        return await Machine(ours).connect()

    def _close(self) -> None:
        if self._control:
            self._control.close()
        self._control = None

    async def stop(self) -> None:
        """End the host and with it every VM that still runs."""
        self._close()
        if self._process:
            await asyncio.to_thread(self._process.wait)
        self._process = None
