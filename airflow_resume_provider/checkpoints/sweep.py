"""Fetching many small objects from one thread, over as many connections as the answers' delay asks for.

Threads that wait for small answers spend most of their time handing the interpreter to each other.
Here one thread takes each answer when it is there. It takes only whole answers that are exactly
what was asked for; whatever else happens to an object (an error, a broken or silent connection, an
odd head) leaves it to the caller, who can ask again and say what is wrong.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress

from airflow_resume_provider.checkpoints.direct import HEAD_END, Declined, DirectReader, Head
from airflow_resume_provider.checkpoints.store import Take

#: The largest object that it fetches; a connection's buffer holds one.
LARGEST = 256 * 1024
_LONGEST_HEAD = 16 * 1024
_FIRST = 8
# So many objects in a row that were not to be had: something is wrong that more requests do not mend.
_MOST_FAILURES = 8
# How often it is looked who has been silent for too long, and whether more connections would help.
_LOOK = 0.02
# Above this share of the time at work, more connections would only wait longer each.
_AT_WORK = 0.5

# When taking an object takes so long, as on a disk behind a network, threads that do so side by side
# are faster. So many objects tell.
_SLOW = 0.002
_ENOUGH_TO_TELL = 40


def sweep(reader: DirectReader, wanted: Sequence[tuple[str, int]], take: Take, most: int) -> list[int]:
    """Fetch objects, `(key, size)` of 1 to `LARGEST` bytes each, over at most `most` connections.

    `take(number, data)` gets each one, in the order in which they come; `data` is gone when it
    returns, and what it raises ends the sweep. Returns the numbers of those that were not fetched:
    all of them where the system or the way to the bucket does not allow it, and most of them where
    `take` is slow.
    """
    if not (reader.usable and wanted and hasattr(select, "epoll")):
        return list(range(len(wanted)))
    return _Sweep(reader, wanted, take, most).run()


class _Sweep:
    def __init__(
        self, reader: DirectReader, wanted: Sequence[tuple[str, int]], take: Take, most: int
    ) -> None:
        self._reader, self._wanted, self._take, self._most = reader, wanted, take, most
        self._numbers = iter(range(len(wanted)))
        self._left = set(range(len(wanted)))
        self._room = _LONGEST_HEAD + max(size for _, size in wanted)
        self._connections: dict[int, _Connection] = {}
        self._failures = 0
        self._taking = 0.0
        self._looked, self._idle = time.monotonic(), 0.0

    def run(self) -> list[int]:
        try:
            self._poll = select.epoll()
        except OSError:  # no descriptors left
            return sorted(self._left)
        try:
            self._begin(self._first_socket(), next(self._numbers))
            self._open(min(_FIRST, self._most) - 1)
            while self._connections:
                self._wait()
        except Declined:
            pass  # there is no way to go on
        finally:
            for connection in list(self._connections.values()):
                self._close(connection)
            self._poll.close()
        return sorted(self._left)

    def _first_socket(self) -> socket.socket:
        """Connect once with all the patience that the others need not have any more."""
        try:
            first = socket.create_connection(self._reader.address, self._reader.options.connect_seconds)
        except (OSError, ValueError) as error:  # nobody there, or a name that nobody can have
            raise Declined from error
        try:
            self._family, self._address = first.family, first.getpeername()
        except OSError as error:  # gone again already
            first.close()
            raise Declined from error
        return first

    def _wait(self) -> None:
        before = time.monotonic()
        ready = self._poll.poll(_LOOK)
        now = time.monotonic()
        self._idle += now - before
        arrived = []
        # One that is closed on the way may have left its number to another.
        for connection in [self._connections[fd] for fd, _ in ready if fd in self._connections]:
            whole = self._step(connection) if self._connections.get(connection.fd) is connection else None
            if whole is not None:
                self._failures = 0
                arrived.append((connection, connection.number, whole))
        # All that follow are asked for at once, so that they are on their way while these are taken:
        # a service that is woken for each request takes longer, and so does who has to wake it.
        for connection, _, _ in arrived:
            self._go_on(connection)
        for _, number, whole in arrived:
            self._arrived(number, whole)
        # What our own work has kept from being read is nobody's silence.
        spent = time.monotonic() - now
        for connection in self._connections.values() if spent > _LOOK else ():
            connection.deadline += spent
        if now >= self._looked + _LOOK:
            self._look(now)

    def _look(self, now: float) -> None:
        # Whoever has said something until `now` has got more time in the meantime.
        for connection in list(self._connections.values()):
            if now > connection.deadline:
                self._fail(connection)
        if self._idle / (now - self._looked) > 1 - _AT_WORK:
            self._open(min(len(self._connections), self._most - len(self._connections)))
        self._looked, self._idle = now, 0.0

    def _open(self, count: int) -> None:
        for _ in range(count):
            if self._failures >= _MOST_FAILURES or (number := next(self._numbers, None)) is None:
                return
            sock = None
            try:
                sock = socket.socket(self._family, socket.SOCK_STREAM)
                sock.setblocking(False)
                if (code := sock.connect_ex(self._address)) not in (0, errno.EINPROGRESS):
                    raise OSError(code, "connect")
            except OSError:  # no more descriptors, or ports, or the service has gone
                self._failures += 1
                # Half of them have to do: who takes what we fetch may need a descriptor, too.
                self._most = max(1, len(self._connections) // 2)
                if sock:
                    sock.close()
                return
            self._begin(sock, number)

    def _begin(self, sock: socket.socket, number: int) -> None:
        connection = _Connection(sock, self._reader, self._room)
        try:
            self._poll.register(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError as error:  # the system's own bound
            connection.close()
            raise Declined from error
        self._connections[connection.fd] = connection
        self._ask(connection, number)

    def _ask(self, connection: _Connection, number: int) -> None:
        key, size = self._wanted[number]
        connection.ask(number, self._reader.request(key, 0, size), size)

    def _step(self, connection: _Connection) -> memoryview | None:
        """Take a connection as far as it gets; returns its object when that is whole."""
        try:
            if connection.connected:
                return connection.receive()
            self._poll.modify(connection.fd, connection.connect())
        except (OSError, Declined):
            self._fail(connection)
        return None

    def _go_on(self, connection: _Connection) -> None:
        """Ask for the next object over a connection whose last one is whole; its bytes stay meanwhile."""
        wanted = connection.keeps and len(self._connections) <= self._most
        following = next(self._numbers, None) if wanted else None
        if following is None:
            keeps = connection.keeps
            self._close(connection)
            # Who takes what has come may need the descriptor, where there are few.
            if not keeps and len(self._connections) < self._most:
                self._open(1)
            return
        try:
            self._ask(connection, following)
        except OSError:
            self._fail(connection)

    def _arrived(self, number: int, whole: memoryview) -> None:
        began = time.monotonic()
        self._take(number, whole)
        self._left.discard(number)
        self._taking += time.monotonic() - began
        if len(self._wanted) - len(self._left) == _ENOUGH_TO_TELL and self._taking > _ENOUGH_TO_TELL * _SLOW:
            self._numbers = iter(())

    def _fail(self, connection: _Connection) -> None:
        self._failures += 1
        self._close(connection)
        self._open(1)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.fd]
        # A process that was forked meanwhile may hold a copy, which closing ours does not forget.
        with suppress(OSError):
            self._poll.unregister(connection.fd)
        connection.close()


class _Connection:
    """One connection that never blocks, with what it is at and its buffer."""

    def __init__(self, sock: socket.socket, reader: DirectReader, room: int) -> None:
        self._reader, self._socket = reader, sock
        self._socket.setblocking(False)
        self.fd = sock.fileno()
        self.connected = False
        self.deadline = time.monotonic() + reader.options.connect_seconds
        self.keeps = True
        self.number = -1
        self._buffer = bytearray(room)
        self._view = memoryview(self._buffer)
        self._request = b""
        self._size = self._filled = self._begins = 0

    def ask(self, number: int, request: bytes, size: int) -> None:
        """Ask for an object; what has been received before stays until `receive` is called."""
        self.number, self._request, self._size = number, request, size
        self._filled = self._begins = 0
        if self.connected:
            self._send()

    def connect(self) -> int:
        """Go on connecting, and when that is done ask; returns what to wait for."""
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, "connect")
        context = self._reader.tls()
        if context and not isinstance(self._socket, ssl.SSLSocket):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = context.wrap_socket(
                self._socket, server_hostname=self._reader.address[0], do_handshake_on_connect=False
            )
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return select.EPOLLIN
        except ssl.SSLWantWriteError:
            return select.EPOLLOUT
        self.connected = True
        self._send()
        return select.EPOLLIN

    def _send(self) -> None:
        self.deadline = time.monotonic() + self._reader.options.read_seconds
        if self._socket.send(self._request) < len(self._request):
            raise BlockingIOError(errno.EAGAIN, "a few hundred bytes have no room")

    def receive(self) -> memoryview | None:
        """Take what has come; returns the object when it is whole."""
        secure = isinstance(self._socket, ssl.SSLSocket)
        while True:
            try:
                got = self._socket.recv_into(self._view[self._filled :])
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            if not got:
                raise Declined
            self._filled += got
            self.deadline = time.monotonic() + self._reader.options.read_seconds
            if self._begins or self._head():
                end = self._begins + self._size
                if self._filled > end:
                    raise Declined
                if self._filled == end:
                    return self._view[self._begins : end]
            # What TLS has decrypted already would not wake us.
            if not secure:
                return None

    def _head(self) -> bool:
        """Return whether the head is there and is the one that was expected."""
        end = self._buffer.find(HEAD_END, 0, min(self._filled, _LONGEST_HEAD))
        if end < 0:
            if self._filled >= _LONGEST_HEAD:
                raise Declined
            return False
        answer = Head.of(bytes(self._view[:end]))
        answer.require(b"bytes 0-%d/" % (self._size - 1), self._size)
        self.keeps = answer.keeps
        self._begins = end + len(HEAD_END)
        return True

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._socket.close()
