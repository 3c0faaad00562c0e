"""One port for everything: HTTP/2 goes to the gRPC server, all else to the HTTP handler.

The first bytes of a connection are looked at without being read, so a plain
HTTP connection is handed over as it is; a gRPC one is piped to grpc's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CHUNK = 256 * 1024
_SNIFF_SECONDS = 30.0


class Port:
    """A listening socket that serves two protocols.

    Args:
        grpc_socket: unix socket of the gRPC server.
        http: makes an HTTP protocol for a connection.
    """

    def __init__(self, grpc_socket: Path, http: Callable[[], asyncio.Protocol]) -> None:
        self._grpc_socket, self._http = grpc_socket, http
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address.

        Raises:
            OSError: the address is taken.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        address = self._listener.getsockname()
        return address[0], address[1]

    def start(self) -> None:
        """Begin to accept."""
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listener:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(0.05)  # out of file descriptors: those in use may come back
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(_SNIFF_SECONDS):
                is_grpc = await _begins_with_preface(connection)
            if is_grpc:
                await self._pipe(connection)
            else:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(self._http, connection)
        except (OSError, TimeoutError):
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _pipe(self, connection: socket.socket) -> None:
        outer_reader, outer_writer = await asyncio.open_connection(sock=connection, limit=_CHUNK)
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(
                str(self._grpc_socket), limit=_CHUNK
            )
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(outer_reader, inner_writer))
                    both.create_task(_copy(inner_reader, outer_writer))
            finally:
                await _close(inner_writer)
        finally:
            await _close(outer_writer)

    async def stop(self) -> None:
        """Stop accepting and cut what is connected."""
        if self._accepting:
            self._accepting.cancel()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._listener:
            self._listener.close()
            self._listener = None


async def _begins_with_preface(connection: socket.socket) -> bool:
    """Look at the first bytes, as soon as they decide the question."""
    while True:
        seen = await _peek(connection, len(PREFACE))
        if not PREFACE.startswith(seen[: len(PREFACE)]) or not seen:
            return False
        if len(seen) >= len(PREFACE):
            return True
        await asyncio.sleep(0.005)  # a part of the preface: peeking again would spin


async def _peek(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _settle, readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection)
    return connection.recv(count, socket.MSG_PEEK)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
