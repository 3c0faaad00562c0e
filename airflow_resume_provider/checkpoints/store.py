"""The store of checkpoints: what the rest of this package asks of `gs://` and `file://`.

Names are relative to the store's root, with `/` between segments. Every method
either answers or raises a `StoreError`; an empty answer always means that the
store was asked and has nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from airflow_resume_provider.errors import InvalidInput, ObjectNotFound, StoreMisconfigured

Buffer = bytes | bytearray | memoryview
#: Gets an object's number and its bytes, which are gone when it returns.
Take = Callable[[int, memoryview], object]
MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How a store is reached, and how long it is waited for.

    Attributes:
        credential_provider: callable that returns `{"token", "expires_at"}`; default is
            Application Default Credentials.
        emulator: endpoint of an emulator; default is `STORAGE_EMULATOR_HOST`.
        user_project: project that pays for requests to a requester-pays bucket;
            default is `RESUME_USER_PROJECT`.
        connect_seconds, read_seconds: limits of one connection and of one read.
        max_total_seconds: how long one operation is tried again before the store
            counts as unavailable; default is `RESUME_STORE_SECONDS` or 90.
        big_streams: requests in flight for large files; default is the number of cores, from 2 to 8.
        small_streams: the most requests in flight for small files; as many as the
            time to an answer asks for are used.
        range_bytes, chunk_bytes, part_bytes: pieces of ranged reads, of streamed
            reads, and of multipart uploads.
        small_bytes: mean size up to which files count as small, and are read in one go.
        upload_streams, big_files: parts of one large file, and large files, in flight; default of
            the first is the number of cores, from 2 to 4.
        bandwidth: bytes per second that uploads may use; 0 is no limit.
    """

    credential_provider: Callable[[], Any] | None = None
    emulator: str | None = None
    user_project: str = field(default_factory=lambda: os.environ.get("RESUME_USER_PROJECT", ""))
    connect_seconds: float = 5.0
    read_seconds: float = 15.0
    max_total_seconds: float = field(default_factory=lambda: _seconds("RESUME_STORE_SECONDS", 90.0))
    big_streams: int = field(default_factory=lambda: _cores(8))
    small_streams: int = 96
    range_bytes: int = 64 * MIB
    # What is checked and then written while the processor's cache still holds it.
    chunk_bytes: int = MIB // 2
    small_bytes: int = MIB
    part_bytes: int = 8 * MIB
    upload_streams: int = field(default_factory=lambda: _cores(4))
    big_files: int = 2
    bandwidth: int = 0


def _cores(most: int) -> int:
    return max(2, min(os.cpu_count() or 2, most))


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable) or str(default)
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise InvalidInput(f"{variable} is {text!r}, not a number of seconds.", parameter=variable, value=text)


class Unlistable(StoreMisconfigured):
    """An object with an empty or dotted segment in its name spoils the listing around it."""


@dataclass(frozen=True)
class Listed:
    """One entry of a listing; a name that ends in `/` is a directory placeholder."""

    name: str
    size: int


class Store(Protocol):
    """What a store can do. All methods may be called from several threads."""

    uri: str
    options: StoreOptions

    def objects(self, prefix: str) -> list[Listed]:
        """List everything below the directory `prefix`, in no particular order."""

    def directories(self, prefix: str) -> list[str]:
        """List the names of the directories right below `prefix`."""

    def read(self, name: str) -> bytes:
        """Return a small object; raises `ObjectNotFound`."""

    def stream(self, name: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield `length` bytes from `start` on, once, without trying again."""

    def sweep(self, wanted: Sequence[tuple[str, int]], take: Take) -> list[int]:
        """Fetch what can be had at once of many small objects, `(name, size)`, without trying again.

        `take(number, data)` gets each; `data` is gone when it returns. Returns the numbers of the
        others, for `stream`.
        """

    def create(self, name: str, data: bytes) -> None:
        """Write a small object; raises `AlreadyExists` and never overwrites."""

    def size(self, name: str) -> int:
        """Return an object's size; raises `ObjectNotFound`."""

    def upload(self, name: str, size: int, pieces: Callable[[int], Iterator[Buffer]]) -> None:
        """Write a file below a prefix that this writer has claimed.

        `pieces(n)` yields the file's bytes in pieces of `n`, from the start again
        for every try.
        """

    def make_directory(self, name: str) -> None:
        """Make an empty directory visible, where the store knows directories."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is no error."""

    def local_path(self, name: str) -> Path | None:
        """Return where the object lies on this machine, or `None` when it does not."""


def exists(store: Store, name: str) -> bool:
    """Return whether an object is there."""
    try:
        store.size(name)
    except ObjectNotFound:
        return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_store(uri: str, options: StoreOptions | None = None, *, parameter: str = "lineage") -> Store:
    """Open the store at `uri`; raises `InvalidInput` naming `parameter` when it is no store's URI."""
    scheme, separator, rest = uri.partition("://")
    if not _is_unicode(uri):
        raise InvalidInput(
            f"{parameter} is {uri!r}, which is not valid UTF-8.", parameter=parameter, value=uri
        )
    if separator and scheme == "gs" and rest.partition("/")[0]:
        from airflow_resume_provider.checkpoints.forked import ForkSafeStore
        from airflow_resume_provider.checkpoints.gcs_store import GcsStore, used_before_fork

        return ForkSafeStore(GcsStore(uri, options or StoreOptions(), parameter=parameter), used_before_fork)
    if separator and scheme == "file" and rest.strip("/"):
        from airflow_resume_provider.checkpoints.file_store import FileStore

        return FileStore(uri, options or StoreOptions(), parameter=parameter)
    raise InvalidInput(
        f"{parameter} is {uri!r}, which is neither gs://BUCKET/PATH nor file:///PATH.",
        parameter=parameter,
        value=uri,
    )
