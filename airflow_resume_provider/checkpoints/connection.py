"""One connection to the service, and the only answers that are understood on it.

Those are the one that a range should get, the one that an upload should get, and errors.
All else is `Declined`, and left to obstore, which knows proxies and redirects.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress

_HEAD_END = b"\r\n\r\n"
_LONGEST_HEAD = 64 * 1024
_LENGTH = b"content-length"
_MOST_DIGITS = 20
_JOINED = 256 * 1024  # up to here copying a body costs less than sending it on its own


class Declined(Exception):
    """This cannot be read here; obstore can, or knows what to say."""


class Refused(OSError):
    """The service said no."""

    def __init__(self, status: int, reason: str, said: str) -> None:
        # Worded like obstore's, so that it means the same.
        super().__init__(f"Server returned non-2xx status code: {status} {reason}: {said}")
        self.status = status


class Connection:
    """One connection with its buffer."""

    def __init__(self, sock: socket.socket, chunk_bytes: int) -> None:
        self._socket = sock
        self._buffer = bytearray(max(chunk_bytes, _LONGEST_HEAD))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.keeps, self.open = False, True

    def fileno(self) -> int:
        """Return the file descriptor, to wait for an answer."""
        return self._socket.fileno()

    def ask(self, request: bytes) -> None:
        """Send a request; what was yielded of the last answer stays until this one is received."""
        self.keeps, self._filled = False, 0
        self._socket.sendall(request)

    def send(self, request: bytes) -> None:
        """Send a request and wait for the beginning of the answer."""
        self.ask(request)
        self._more()

    def whole(self, length: int) -> memoryview:
        """Return the body of the answer to a request for the first `length` bytes; it has to fit."""
        self._more()
        content = next(self.body(0, length))
        if len(content) < length:
            raise Declined("in several pieces")
        return content

    def body(self, start: int, length: int) -> Iterator[memoryview]:
        """Yield the body of the answer that a request for this range should get."""
        first, status, fields, begins = self._head()
        if (
            status != b"206"
            or int(fields[_LENGTH]) != length
            or not fields.get(b"content-range", b"").startswith(
                f"bytes {start}-{start + length - 1}/".encode()
            )
        ):
            raise Declined(first.decode(errors="replace"))
        if begins + length <= len(self._view):  # small enough for one piece
            while self._filled < begins + length:
                self._more(begins + length)
        piece = self._view[begins : self._filled]
        if len(piece) > length:
            raise Declined("more than was asked for")
        left = length - len(piece)
        if piece:
            yield piece
        while left:
            self._filled, wanted = 0, min(left, len(self._view))
            while self._filled < wanted:
                self._more(wanted)
            left -= wanted
            yield self._view[:wanted]

    def put(self, request: bytes, body: bytes) -> None:
        """Send an object and wait until the service has it."""
        if len(body) <= _JOINED:
            self.ask(request + body)
        else:
            self.ask(request)
            self._socket.sendall(body)
        self._more()
        first, status, fields, begins = self._head()
        end = begins + int(fields[_LENGTH])
        if status != b"200" or end > len(self._view):
            raise Declined(first.decode(errors="replace"))
        while self._filled < end:
            self._more(end)

    def _head(self) -> tuple[bytes, bytes, Mapping[bytes, bytes], int]:
        """Return an answer's first line, status, fields, and where its body begins; raises for an error."""
        while (end := self._buffer.find(_HEAD_END, 0, min(self._filled, _LONGEST_HEAD))) < 0:
            if self._filled >= _LONGEST_HEAD:
                raise Declined("a head without an end")
            self._more()
        begins = end + len(_HEAD_END)
        first, *lines = bytes(self._view[:end]).split(b"\r\n")
        version, _, status = first.partition(b" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = fields.get(_LENGTH, b"")
        if (
            version != b"HTTP/1.1"
            or not (status[:3].isdigit() and length.isdigit() and len(length) < _MOST_DIGITS)
            or b"transfer-encoding" in fields
            or b"content-encoding" in fields
        ):
            raise Declined(first.decode(errors="replace"))
        if status[:3] >= b"400":
            raise self._refused(status, begins, int(length))
        self.keeps = fields.get(b"connection", b"").lower() != b"close"
        return first, status[:3], fields, begins

    def _more(self, end: int | None = None) -> None:
        got = self._socket.recv_into(self._view[self._filled : end])
        if not got:
            raise ConnectionResetError("closed by the other side")
        self._filled += got

    def _refused(self, status: bytes, begins: int, length: int) -> OSError:
        end = min(begins + length, len(self._view))
        with suppress(ConnectionError):  # what has come of the explanation has to do
            while self._filled < end:
                self._more(end)
        said = bytes(self._view[begins : min(end, self._filled)]).decode(errors="replace")
        return Refused(int(status[:3]), status[4:].decode(errors="replace"), said)

    def close(self) -> None:
        """End the connection."""
        self.open = False
        with suppress(OSError):
            self._socket.close()
