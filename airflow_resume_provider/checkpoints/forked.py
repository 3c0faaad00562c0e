"""A store for processes that are forked after their parent has talked to a bucket.

obstore's threads do not survive a fork: any request of the child waits for ever.
Data loaders and launchers fork all the same, so a child gets a fresh process that
talks to the bucket in its place, one for each child, started on its first request
and gone when the child is.

    socket pair (control)   each message hands over one end of a new connection
    a connection            (uri, options, method, arguments) → pieces, then a result or an error
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints.retrying import Transient
from airflow_resume_provider.checkpoints.store import Buffer, Listed, Store, StoreOptions, Take
from airflow_resume_provider.errors import StoreMisconfigured, StoreUnavailable

Message = tuple[str, Any]


class ForkSafeStore:
    """A bucket in the process that has opened it, and a helper's in processes forked from that."""

    def __init__(self, store: Store, used_before_fork: Callable[[], bool]) -> None:
        self._store, self._used_before_fork = store, used_before_fork
        self.uri = store.uri

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def options(self) -> StoreOptions:
        """How the store is reached; may be changed meanwhile."""
        return self._store.options

    @options.setter
    def options(self, options: StoreOptions) -> None:
        self._store.options = options

    def objects(self, prefix: str) -> list[Listed]:
        """List everything below the directory `prefix`."""
        return self._now().objects(prefix)

    def directories(self, prefix: str) -> list[str]:
        """List the names of the directories right below `prefix`."""
        return self._now().directories(prefix)

    def read(self, name: str) -> bytes:
        """Return a small object."""
        return self._now().read(name)

    def stream(self, name: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield `length` bytes from `start` on."""
        return self._now().stream(name, start, length)

    def sweep(self, wanted: Sequence[tuple[str, int]], take: Take) -> list[int]:
        """Fetch what can be had at once of many small objects."""
        return self._now().sweep(wanted, take)

    def create(self, name: str, data: bytes) -> None:
        """Write a small object that must not be there yet."""
        self._now().create(name, data)

    def size(self, name: str) -> int:
        """Return an object's size."""
        return self._now().size(name)

    def upload(self, name: str, size: int, pieces: Callable[[int], Iterator[Buffer]]) -> None:
        """Write a file."""
        self._now().upload(name, size, pieces)

    def make_directory(self, name: str) -> None:
        """A bucket has no directories."""
        self._store.make_directory(name)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._now().delete(name)

    def local_path(self, name: str) -> Path | None:
        """Objects of a bucket do not lie on this machine."""
        return self._store.local_path(name)

    def _now(self) -> Store:
        return _Remote(_helpers.get(self.uri), self._store) if self._used_before_fork() else self._store


class _Remote:
    """The same store as seen through the helper."""

    def __init__(self, helper: Helper, store: Store) -> None:
        self._helper = helper
        self.uri, self.options = store.uri, store.options
        self.make_directory, self.local_path = store.make_directory, store.local_path

    def objects(self, prefix: str) -> list[Listed]:
        return list(self._ask("objects", prefix))

    def directories(self, prefix: str) -> list[str]:
        return list(self._ask("directories", prefix))

    def read(self, name: str) -> bytes:
        return bytes(self._ask("read", name))

    def stream(self, name: str, start: int, length: int) -> Iterator[Buffer]:
        with self._helper.connection(self.uri) as connection:
            self._send(connection, "stream", name, start, length)
            while (piece := _receive(connection, self.uri)) is not None:
                yield memoryview(piece)

    def sweep(self, wanted: Sequence[tuple[str, int]], take: Take) -> list[int]:
        return list(range(len(wanted)))

    def create(self, name: str, data: bytes) -> None:
        self._ask("create", name, data)

    def size(self, name: str) -> int:
        return int(self._ask("size", name))

    def upload(self, name: str, size: int, pieces: Callable[[int], Iterator[Buffer]]) -> None:
        with self._helper.connection(self.uri) as connection:
            self._send(connection, "upload", name, size)
            source: Iterator[Buffer] = iter(())
            while (request := _receive(connection, self.uri)) is not None:
                source = pieces(request) if request else source
                self._answer(connection, source)

    def delete(self, name: str) -> None:
        self._ask("delete", name)

    def _answer(self, connection: Connection, source: Iterator[Buffer]) -> None:
        """Send the next piece; what goes wrong here is raised here, and ends the helper's upload."""
        piece = next(source, None)
        connection.send(None if piece is None else bytes(piece))

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._helper.connection(self.uri) as connection:
            self._send(connection, method, *arguments)
            return _receive(connection, self.uri)

    def _send(self, connection: Connection, method: str, *arguments: Any) -> None:
        try:
            connection.send((self.uri, self.options, method, arguments))
        except (TypeError, AttributeError) as error:
            raise StoreMisconfigured(
                f"This process was forked after {self.uri} had been used, and needs a helper process to"
                f" reach it, to which its credential_provider cannot be handed ({error}).",
                can="Use the start method spawn, or a credential_provider that can be pickled.",
                uri=self.uri,
            ) from error


class Helper:
    """The fresh process that talks to buckets for this one; it ends when this one does."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [sys.executable, "-P", "-m", "airflow_resume_provider.checkpoints.forked", str(fd)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        nothing = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[fd], env=environment, stdin=nothing, stdout=nothing
            )

    def lives(self) -> bool:
        """Return whether it is this process's own, and at work."""
        return self._pid == os.getpid() and self._process.poll() is None

    def disown(self) -> None:
        """In a forked child: do not keep the parent's helper at work."""
        self._control.close()

    def connection(self, uri: str) -> Connection:
        """Return a new connection to it; raises `StoreUnavailable` when it is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise _gone(uri) from error
        return Connection(ours.detach())


class _Helpers:
    """This process's helper, and after a fork another one."""

    def __init__(self) -> None:
        self._newest: Helper | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def get(self, uri: str) -> Helper:
        with self._lock:
            if self._newest is None or not self._newest.lives():
                self._newest = self._start(uri)
            return self._newest

    def _start(self, uri: str) -> Helper:
        try:
            return Helper()
        except OSError as error:
            raise StoreUnavailable(
                f"This process was forked after {uri} had been used, and the helper process that it"
                f" needs to reach it does not start ({error}).",
                can="Use the start method spawn.",
                uri=uri,
            ) from error

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._newest:
            self._newest.disown()


_helpers = _Helpers()


def _receive(connection: Connection, uri: str) -> Any:
    try:
        kind, value = connection.recv()
    except (EOFError, OSError) as error:
        raise _gone(uri) from error
    if kind == "error":
        raise value
    return value


def _gone(uri: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The helper process that talks to {uri} for this forked process has ended.",
        can="See what it has said on standard error.",
        uri=uri,
    )


class Service:
    """What the helper does: serves each connection in a thread of its own."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def serve(self, control: socket.socket) -> None:
        """Serve until the process that we help is gone."""
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            threading.Thread(target=self._one, args=(Connection(fds[0]),), daemon=True).start()

    def _one(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            uri, options, method, arguments = connection.recv()
            try:
                result = self._carry_out(connection, self._store(uri, options), method, arguments)
            except Exception as error:
                connection.send(("error", _portable(error)))
            else:
                connection.send(("result", result))

    def _store(self, uri: str, options: StoreOptions) -> Store:
        from airflow_resume_provider.checkpoints.gcs_store import GcsStore

        with self._lock:
            if uri not in self._stores:
                self._stores[uri] = GcsStore(uri, options)
            self._stores[uri].options = options
            return self._stores[uri]

    def _carry_out(
        self, connection: Connection, store: Store, method: str, arguments: tuple[Any, ...]
    ) -> Any:
        if method == "upload":
            name, size = arguments
            return store.upload(name, size, lambda length: _pulled(connection, length))
        if method == "stream":
            for piece in store.stream(*arguments):
                connection.send(("piece", bytes(piece)))
            return None
        return getattr(store, method)(*arguments)


def _pulled(connection: Connection, length: int) -> Iterator[bytes]:
    """Yield the file's pieces as the other process reads them, from the start."""
    connection.send(("pieces", length))
    while (piece := connection.recv()) is not None:
        yield piece
        connection.send(("pieces", 0))


def _portable(error: Exception) -> Exception:
    """Return what the other process can raise."""
    from airflow_resume_provider.errors import ResumeError

    known = isinstance(error, ResumeError | Transient)
    return error if known else StoreUnavailable(f"{type(error).__name__}: {error}", uri="")


def main() -> None:
    """Serve the process at the other end of the socket that was inherited."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the process that it helps
    Service().serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
