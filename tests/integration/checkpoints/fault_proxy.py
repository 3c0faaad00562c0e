"""An HTTP proxy in front of the store that disturbs requests, as a bad network or a busy service would."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from types import SimpleNamespace

from airflow_resume_provider.testing.gcs import Fault, FaultPlan

_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)")
_CONNECTION = re.compile(rb"(?im)^connection:[^\r\n]*\r\n")
_CALM = Fault()


class FaultProxy:
    """Passes requests on to `port`, each with the fault that `plan` has for it.

    `Fault.after` counts bytes of the response's body; 0 sends nothing of the
    response at all, although the store has done what it was asked.
    """

    def __init__(self, plan: FaultPlan, port: int) -> None:
        self._plan, self._behind = plan, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end all connections."""
        if self._server:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; `False` ends the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        request = SimpleNamespace(method=method.decode(), raw_path=path.decode())
        fault = await self._plan(request) or _CALM  # type: ignore[arg-type]
        await asyncio.sleep(fault.latency)
        length = _LENGTH.search(head)
        body = await self._receive(reader, int(length[1]) if length else 0, fault)
        if fault.status:
            writer.write(b"HTTP/1.1 %d Fault\r\nContent-Length: 5\r\n\r\nfault" % fault.status)
            return True
        if fault.reset and fault.after is None:
            return False
        answer_head, answer = await self._pass_on(head, body)
        return await self._answer(writer, answer_head, answer, fault)

    async def _receive(self, reader: asyncio.StreamReader, length: int, fault: Fault) -> bytes:
        if not fault.bandwidth:
            return await reader.readexactly(length)
        parts = []
        while length > 0:
            part = await reader.read(min(length, max(fault.bandwidth // 20, 1)))
            if not part:
                raise ConnectionResetError
            await asyncio.sleep(len(part) / fault.bandwidth)
            length -= len(part)
            parts.append(part)
        return b"".join(parts)

    async def _pass_on(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            writer.write(_CONNECTION.sub(b"", head)[:-2] + b"Connection: close\r\n\r\n" + body)
            answer = await reader.read()
        finally:
            writer.close()
        answer_head, _, rest = answer.partition(b"\r\n\r\n")
        return _CONNECTION.sub(b"", answer_head + b"\r\n\r\n"), rest

    async def _answer(self, writer: asyncio.StreamWriter, head: bytes, body: bytes, fault: Fault) -> bool:
        if fault.corrupt is not None and fault.corrupt < len(body):
            body = body[: fault.corrupt] + bytes([body[fault.corrupt] ^ 1]) + body[fault.corrupt + 1 :]
        if fault.after is None:
            await _send(writer, head + body, fault)
            return True
        if fault.after:
            await _send(writer, head + body[: fault.after], fault)
        await asyncio.sleep(fault.stall)
        if fault.stall and not fault.reset:
            await _send(writer, body[fault.after :], fault)
            return True
        return False


async def _send(writer: asyncio.StreamWriter, data: bytes, fault: Fault) -> None:
    piece = max(fault.bandwidth // 20, 1) if fault.bandwidth else max(len(data), 1)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
        await writer.drain()
        if fault.bandwidth:
            await asyncio.sleep(piece / fault.bandwidth)
