"""Reading ranges of objects over sockets, straight into a buffer that is used again and again.

Beside obstore with the same ranges this costs two thirds of the processor time over TLS, and
four fifths without. It only understands the answer that a range should get, and errors; all else
is `Declined`, and left to obstore, which knows proxies and redirects.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from airflow_resume_provider.checkpoints.retrying import Transient
from airflow_resume_provider.checkpoints.store import StoreOptions

_SERVICE = "https://storage.googleapis.com"
HEAD_END = b"\r\n\r\n"
_LONGEST_HEAD = 64 * 1024
_MOST_DIGITS = 20
_ESCAPES = {code: f"%{code:02X}" for code in range(128) if not chr(code).isalnum()}
# Python's own quoting leaves these as they are.
_KEPT = {ord(character): f"%{ord(character):02X}" for character in "-._~"}
# A connection that was idle for longer may be one that only this side still believes in.
_IDLE_SECONDS = 20.0
# Of a token's time, so that no request is under way when it ends.
_SPARE = timedelta(minutes=1)


class Declined(Exception):
    """This cannot be read here; obstore can, or knows what to say."""


class DirectReader:
    """Reads from one bucket. May be used by several threads, each with a connection of its own."""

    def __init__(self, bucket: str, options: StoreOptions, endpoint: str) -> None:
        where = urllib.parse.urlsplit(endpoint or _SERVICE)
        self._secure = where.scheme == "https"
        self.address = where.hostname or "", where.port or (443 if self._secure else 80)
        self._path = f"{where.path.rstrip('/')}/{urllib.parse.quote(bucket)}/"
        self.options = options
        self._token: Callable[[], str] = _Token(options.credential_provider) if not endpoint else _any_token
        self._constant = f"Host: {where.netloc}\r\nUser-Agent: airflow-resume-provider\r\n"
        if options.user_project:
            self._constant += f"x-goog-user-project: {options.user_project}\r\n"
        self.usable = (
            where.scheme in ("http", "https")
            and bool(endpoint or options.credential_provider)
            and (bool(endpoint) or not _goes_by_proxy(where))
            and (where.netloc + options.user_project).isprintable()
        )
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    def stream(self, key: str, start: int, length: int) -> Iterator[memoryview]:
        """Yield `length` bytes from `start` on; each piece is gone when the next one is asked for.

        Raises:
            Declined: not to be had here, from the end of what was yielded on.
            Transient: asking again may help.
            OSError: what the service said, in obstore's words.
        """
        if not self.usable or not length:
            raise Declined
        connection = self._ask(self.request(key, start, length))
        complete = False
        try:
            yield from connection.body(f"bytes {start}-{start + length - 1}/".encode(), length)
            complete = connection.keeps
        except TimeoutError as error:
            raise Transient(f"nothing came for {self.options.read_seconds:g} s") from error
        except OSError as error:
            if not isinstance(error, Refused):
                raise Transient(f"the connection broke: {error}") from error
            if error.status == 401 and isinstance(self._token, _Token):
                self._token.forget()
            raise
        finally:
            if complete:
                connection.rest()
                self._idle.append(connection)
            else:
                connection.close()

    def request(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes of a request for a range; raises `Declined` where there is no token."""
        wanted = f"Range: bytes={start}-{start + length - 1}\r\n"
        head = f"GET {self._path}{_spelt(key)} HTTP/1.1\r\n{wanted}{self._constant}"
        return f"{head}Authorization: Bearer {self._token()}\r\n\r\n".encode()

    def tls(self) -> ssl.SSLContext | None:
        """Return what a connection is to be secured with, if it is."""
        if self._secure and self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    def _ask(self, request: bytes) -> _Connection:
        """Send a request; a connection that was idle may have been closed by the service meanwhile."""
        while True:
            known = self._take_idle()
            connection = known or self._connect()
            try:
                connection.send(request)
                return connection
            except OSError as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    raise Transient(f"no answer came for {self.options.read_seconds:g} s") from error
                if not known:
                    raise Transient(f"the connection broke: {error}") from error

    def _take_idle(self) -> _Connection | None:
        with suppress(IndexError):
            while connection := self._idle.pop():
                if connection.is_fresh():
                    return connection
                connection.close()
        return None

    def _connect(self) -> _Connection:
        """Connect; where that fails, obstore does everything from now on."""
        try:
            sock = socket.create_connection(self.address, self.options.connect_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context := self.tls():
                sock = context.wrap_socket(sock, server_hostname=self.address[0])
        except OSError as error:
            self.usable = False
            raise Declined(str(error)) from error
        sock.settimeout(self.options.read_seconds)
        return _Connection(sock, self.options.chunk_bytes)


class Refused(OSError):
    """The service said no."""

    def __init__(self, status: int, reason: str, said: str) -> None:
        # Worded like obstore's, so that it means the same.
        super().__init__(f"Server returned non-2xx status code: {status} {reason}: {said}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer that can be understood here."""

    status: int
    reason: str
    length: int
    span: bytes
    keeps: bool

    @classmethod
    def of(cls, head: bytes) -> Head:
        """Read a head without its end; raises `Declined` for what only obstore understands."""
        first, *lines = head.split(b"\r\n")
        version, _, status = first.partition(b" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = fields.get(b"content-length", b"")
        if (
            version != b"HTTP/1.1"
            or not (status[:3].isdigit() and length.isdigit() and len(length) < _MOST_DIGITS)
            or b"transfer-encoding" in fields
            or b"content-encoding" in fields
        ):
            raise Declined(first.decode(errors="replace"))
        keeps = fields.get(b"connection", b"").lower() != b"close"
        span = fields.get(b"content-range", b"")
        return cls(int(status[:3]), status[4:].decode(errors="replace"), int(length), span, keeps)

    def require(self, span: bytes, length: int) -> None:
        """Raise `Declined` unless it announces `length` bytes of the range `span`."""
        if self.status != 206 or self.length != length or not self.span.startswith(span):
            raise Declined(f"{self.status} {self.reason}")


class _Connection:
    """One connection with its buffer."""

    def __init__(self, sock: socket.socket, chunk_bytes: int) -> None:
        self._socket = sock
        self._buffer = bytearray(max(chunk_bytes, _LONGEST_HEAD))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.keeps = False
        self._used = time.monotonic()

    def rest(self) -> None:
        """Note that it has nothing to do from now on."""
        self._used = time.monotonic()

    def is_fresh(self) -> bool:
        """Return whether it may be used again: used lately, not closed since, and nothing came unasked."""
        news = select.poll()
        news.register(self._socket, select.POLLIN)
        return time.monotonic() - self._used < _IDLE_SECONDS and not news.poll(0)

    def send(self, request: bytes) -> None:
        """Send a request and wait for the beginning of the answer."""
        self.keeps, self._filled = False, 0
        self._socket.sendall(request)
        self._more()

    def body(self, span: bytes, length: int) -> Iterator[memoryview]:
        """Yield the body of the answer that a request for the range `span` should get."""
        while (end := self._buffer.find(HEAD_END, 0, min(self._filled, _LONGEST_HEAD))) < 0:
            if self._filled >= _LONGEST_HEAD:
                raise Declined("a head without an end")
            self._more()
        begins = end + len(HEAD_END)
        self._check(bytes(self._view[:end]), begins, span, length)
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

    def _more(self, end: int | None = None) -> None:
        got = self._socket.recv_into(self._view[self._filled : end])
        if not got:
            raise ConnectionResetError("closed by the other side")
        self._filled += got

    def _check(self, head: bytes, begins: int, span: bytes, length: int) -> None:
        """Take the expected answer; raises for any other."""
        answer = Head.of(head)
        if answer.status >= 400:
            raise self._refused(answer, begins)
        answer.require(span, length)
        self.keeps = answer.keeps

    def _refused(self, answer: Head, begins: int) -> OSError:
        end = min(begins + answer.length, len(self._view))
        with suppress(OSError):  # what has come of the explanation has to do
            while self._filled < end:
                self._more(end)
        said = bytes(self._view[begins : min(end, self._filled)]).decode(errors="replace")
        return Refused(answer.status, answer.reason, said)

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._socket.close()


class _Token:
    """A token of a credential provider, asked for once for as long as it is good."""

    def __init__(self, provider: Callable[[], Any] | None) -> None:
        self._provider, self._lock = provider, threading.Lock()
        self._held, self._until = "", datetime.min.replace(tzinfo=UTC)

    def __call__(self) -> str:
        """Return it; where there is none, obstore may know why."""
        with self._lock:  # many threads find at the same moment that it has run out
            return self._good_one()

    def _good_one(self) -> str:
        now = datetime.now(UTC)
        if self._provider and (not self._held or now >= self._until):
            try:
                said = self._provider()
                self._held = str(said["token"])
                self._until = now + ((said.get("expires_at") or now) - now) - _SPARE
            except Exception as error:  # anybody's code
                raise Declined(str(error)) from error
        if not self._held or not self._held.isprintable():
            raise Declined("no token")
        return self._held

    def forget(self) -> None:
        """Ask again next time."""
        with self._lock:
            self._held = ""


def _spelt(key: str) -> str:
    """Return a name as obstore spells it, so that an object has one spelling in the service's logs."""
    above, slash, name = key.rpartition("/")
    return _above(above + slash) + _quoted(name)


def _quoted(text: str) -> str:
    return text.translate(_ESCAPES) if text.isascii() else urllib.parse.quote(text, safe="").translate(_KEPT)


@lru_cache(maxsize=256)
def _above(text: str) -> str:
    return _quoted(text)


def _any_token() -> str:
    return "emulator"


def _goes_by_proxy(where: urllib.parse.SplitResult) -> bool:
    proxies = urllib.request.getproxies()
    by_one = proxies.get(where.scheme) or proxies.get("all")
    return bool(by_one) and not urllib.request.proxy_bypass(where.hostname or "")


def _close_all(connections: list[_Connection]) -> None:
    for connection in connections:
        connection.close()
