"""An object store that does as little as it can, so that a benchmark measures the clients.

It speaks the part of both APIs of Cloud Storage that the measured clients speak, keeps what it is
sent, and believes what it is told: for everything else there is the strict one in
`airflow_resume_provider.testing`. One thread answers what is small from memory; what is large is
received and sent by threads of their own, from and to files. What is large and has a name that begins
with DROP is received and checksummed, and let go: a store that is elsewhere takes no memory and no
time of this machine either. Ends with its standard input.

    python -m tests.benchmarks.lean_store DIRECTORY [DROP]
"""

from __future__ import annotations

import os
import queue
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from airflow_resume_provider.checkpoints import checksum
from tests.benchmarks.lean_objects import Answer, Blob, Request, Store

_SMALL = 512 << 10  # what is kept in memory and answered at once
_PIECE = 256 << 10


class Server:
    """Sockets in one loop, and threads for what is large."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        store.endpoint = self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._heads: dict[int, bytes] = {}
        self._requests: dict[int, tuple[Request, list[bytes], int]] = {}
        self._threads = ThreadPoolExecutor(64)
        self._back: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._wake, self._woken = os.pipe()

    def run(self) -> None:
        """Serve for ever."""
        for fd in (self._listener.fileno(), self._wake):
            self._poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._sockets:
                    try:
                        self._receive(fd)
                    except OSError:
                        self._drop(fd)
                elif fd == self._wake:
                    os.read(fd, 4096)
                    while not self._back.empty():
                        self._add(self._back.get())
                else:
                    self._accept()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._add(connection)
        except BlockingIOError:
            return

    def _add(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._sockets[connection.fileno()] = connection
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def _drop(self, fd: int) -> None:
        self._take(fd).close()

    def _take(self, fd: int) -> socket.socket:
        self._poll.unregister(fd)
        self._heads.pop(fd, None)
        self._requests.pop(fd, None)
        return self._sockets.pop(fd)

    def _receive(self, fd: int) -> None:
        data = self._sockets[fd].recv(_PIECE)
        if not data:
            return self._drop(fd)
        if fd in self._requests:
            request, pieces, left = self._requests[fd]
            pieces.append(data)
            left -= len(data)
        else:
            data = self._heads.pop(fd, b"") + data
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._heads[fd] = head
                return None
            request = Request.of(head)
            pieces, left = [data], request.length - len(data)
        if left <= 0:
            self._requests.pop(fd, None)
            body = b"".join(pieces)
            self._reply(fd, request, Blob(len(body), checksum.extend(body) if body else 0, body))
        elif request.length > _SMALL and (request.method == "PUT" or "upload_id" in request.query):
            request.rest = b"".join(pieces)
            self._in_thread(lambda connection: self._receive_large(connection, request), fd, request)
        else:
            self._requests[fd] = request, pieces, left
        return None

    def _reply(self, fd: int, request: Request, body: Blob) -> None:
        connection, answer = self._sockets[fd], self._store.answer(request, body)
        head, data = answer.head(), answer.body
        if answer.blob and not answer.empty:
            if answer.blob.data is None:
                self._in_thread(lambda connection: _send_large(connection, answer), fd, request)
                return
            start, end = answer.span
            data = answer.blob.data if end - start == answer.blob.size else answer.blob.data[start:end]
        sent = connection.sendmsg([head, data])
        if sent < len(head) + len(data):
            rest = memoryview(data)[sent - len(head) :]
            self._in_thread(lambda connection: connection.sendall(rest), fd, request)
        elif request.headers.get(b"connection") == b"close":
            self._drop(fd)

    def _in_thread(self, work: Callable[[socket.socket], None], fd: int, request: Request) -> None:
        connection = self._take(fd)

        def job() -> None:
            try:
                connection.setblocking(True)
                work(connection)
            except OSError:  # the client has gone
                connection.close()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            else:
                self._give_back(connection, request)

        self._threads.submit(job)

    def _receive_large(self, connection: socket.socket, request: Request) -> None:
        path, left = self._store.file(), request.length - len(request.rest)
        keeps = self._store.keeps(request)
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        with path.open("wb", buffering=0) if keeps else nullcontext() as file:
            crc = checksum.extend(request.rest)
            if file:
                file.write(request.rest)
            while left:
                count = connection.recv_into(piece, min(left, _PIECE))
                if not count:
                    raise ConnectionError
                crc = checksum.extend(view[:count], crc)
                if file:
                    file.write(view[:count])
                left -= count
        files = [(str(path), request.length)] if keeps else []
        answer = self._store.answer(request, Blob(request.length, crc, files=files))
        connection.sendall(answer.head() + answer.body)

    def _give_back(self, connection: socket.socket, request: Request) -> None:
        if request.headers.get(b"connection") == b"close":
            connection.close()
            return
        self._back.put(connection)
        os.write(self._woken, b".")


def _send_large(connection: socket.socket, answer: Answer) -> None:
    assert answer.blob
    connection.sendall(answer.head())
    for path, offset, count in answer.blob.spans(*answer.span):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            while count:
                sent = os.sendfile(connection.fileno(), file.fileno(), offset, count)
                offset, count = offset + sent, count - sent


def main() -> None:
    """Serve the bucket `bench` until the standard input ends; the first line says where."""
    root = Path(sys.argv[1])
    root.mkdir(exist_ok=True)
    server = Server(Store(root, "bench", drop=sys.argv[2] if len(sys.argv) > 2 else ""))
    print(f"export STORAGE_EMULATOR_HOST={server.endpoint}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
