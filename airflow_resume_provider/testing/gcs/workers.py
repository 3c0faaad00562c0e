"""Several processes that serve the same buckets on the same port, for more load than one can take.

Each connection belongs to one of them. What one has written the others see at once, and generations go up
over all of them; only hooks and faults are things of a single process, so there are none here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from .server import GcsServer

_HERE = "127.0.0.1"


class Workers:
    """The processes, from start to stop; the directory must have been opened by a single server before.

    Args:
        root: directory of the buckets.
        count: how many processes.
        port: port, or 0 for a free one.
        durable: survive a power cut, not only a kill.

    Raises:
        RuntimeError: one of them did not start; its own words are on stderr.
    """

    def __init__(self, root: Path, count: int, *, port: int = 0, durable: bool = False) -> None:
        self._root, self._count, self._durable = root, count, durable
        self._processes: list[subprocess.Popen[bytes]] = []
        # Takes no connections, and keeps the port for those that do.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind((_HERE, port))

    @property
    def port(self) -> int:
        """The port that all of them listen on."""
        return int(self._port.getsockname()[1])

    @property
    def endpoint(self) -> str:
        """The address, as for STORAGE_EMULATOR_HOST."""
        return f"http://{_HERE}:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> Workers:
        command = [sys.executable, "-m", __name__, str(self._root), str(self.port), str(int(self._durable))]
        try:
            for _ in range(self._count):
                # The pipe to it breaks when this process is gone, however that came.
                self._processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                )
            if not all(process.stdout and process.stdout.readline() for process in self._processes):
                raise RuntimeError("A process of the object store did not start.")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.communicate()
        self._port.close()


async def _work(root: Path, port: int, durable: bool) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for the one that started this
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    async with GcsServer(root, port=port, shared=True, durable=durable):
        print(os.getpid(), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"))
