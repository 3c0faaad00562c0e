"""Google Cloud Storage through obstore: exact names, bounded waits, named errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from airflow_resume_provider.checkpoints.direct import Declined, DirectReader
from airflow_resume_provider.checkpoints.plain_listing import PlainListing
from airflow_resume_provider.checkpoints.retrying import Patience
from airflow_resume_provider.checkpoints.store import Buffer, Listed, StoreOptions, Take, Unlistable
from airflow_resume_provider.checkpoints.store_errors import said, translate
from airflow_resume_provider.checkpoints.sweep import sweep
from airflow_resume_provider.errors import AlreadyExists, InvalidInput, ObjectNotFound, StoreMisconfigured

T = TypeVar("T")
_FAILURES = (BaseError, OSError, ValueError)
_SHORTEST_WAIT = 1.0
# Larger pieces come from memory that the system has to find anew each time.
_PIECE_BYTES = 1 << 20
_MOST_PARTS = 9_000  # the service's own limit is 10,000
# The process in which obstore's threads run, once they do; they do not survive a fork.
_used_in: list[int] = []


def used_before_fork() -> bool:
    """Return whether this process was forked from one that had used obstore, which would hang here."""
    return bool(_used_in) and _used_in[0] != os.getpid()


class GcsStore:
    """A prefix of a bucket.

    obstore's own retries are off: ours are logged, bounded and in one place.
    """

    def __init__(self, uri: str, options: StoreOptions, *, parameter: str = "lineage") -> None:
        self.uri, self.options = uri.rstrip("/"), options
        bucket, _, self._prefix = self.uri.removeprefix("gs://").partition("/")
        if self._prefix and any(part in ("", ".", "..") for part in self._prefix.split("/")):
            raise InvalidInput(
                f"{parameter} is {uri!r}; empty, '.' and '..' segments are not supported.",
                parameter=parameter,
                value=uri,
            )
        self._patience = Patience(options.max_total_seconds)
        # Nothing is waited for longer than there is patience for all of it.
        longest = max(_SHORTEST_WAIT, options.max_total_seconds)
        options = replace(
            options,
            read_seconds=min(options.read_seconds, longest),
            connect_seconds=min(options.connect_seconds, longest),
        )
        # A range of a large file may take long; what must not take long is one read.
        self._reader = _client(bucket, options, read_timeout=options.read_seconds, timeout=24 * 3600)
        # While a part goes up nothing is read, so a read timeout would end slow uploads.
        self._writer = _client(bucket, options, timeout=120)
        self._noter = _client(bucket, options, timeout=options.read_seconds)
        self._direct = DirectReader(bucket, options, _emulator(options))
        self._plain = PlainListing(bucket, options, _emulator(options))

    def __repr__(self) -> str:
        return f"GcsStore({self.uri!r})"

    def objects(self, prefix: str) -> list[Listed]:
        """List everything below the directory `prefix`."""
        where = self._key(prefix)
        cut = len(self._prefix) + 1 if self._prefix else 0
        try:
            pages = self._ask("list", prefix, lambda: list(obstore.list(self._reader, where or None)))
        except Unlistable:
            found = self._ask("list", prefix, lambda: self._plain.objects(where))
            return [Listed(entry.name[cut:], entry.size) for entry in found]
        return [Listed(meta["path"][cut:], meta["size"]) for page in pages for meta in page]

    def directories(self, prefix: str) -> list[str]:
        """List the names of the directories right below `prefix`."""
        where = self._key(prefix)
        look = lambda: obstore.list_with_delimiter(self._reader, where or None)  # noqa: E731
        try:
            return [path.rpartition("/")[2] for path in self._ask("list", prefix, look)["common_prefixes"]]
        except Unlistable:
            return self._ask("list", prefix, lambda: self._plain.directories(where))

    def size(self, name: str) -> int:
        """Return an object's size; raises `ObjectNotFound`."""
        return self._ask("read", name, lambda: obstore.head(self._reader, self._key(name))["size"])

    def read(self, name: str) -> bytes:
        """Return a small object."""
        return self._ask("read", name, lambda: bytes(obstore.get(self._reader, self._key(name)).bytes()))

    def stream(self, name: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield `length` bytes from `start` on; raises `Transient` when asking again may help.

        A piece is gone when the next one is asked for.
        """
        key, end = self._key(name), start + length
        _note_use()
        try:
            for piece in self._direct.stream(key, start, length):
                start += len(piece)
                yield piece
        except Declined:
            yield from self._stream(name, key, start, end)
        except OSError as error:
            raise self._translate("read", name, error) from error

    def _stream(self, name: str, key: str, start: int, end: int) -> Iterator[Buffer]:
        try:
            if end - start <= self.options.small_bytes:
                yield memoryview(obstore.get_range(self._reader, key, start=start, end=end))
                return
            result = obstore.get(self._reader, key, options={"range": (start, end)})
            for chunk in result.stream(min_chunk_size=self.options.chunk_bytes):
                yield memoryview(chunk)
        except _FAILURES as error:
            raise self._translate("read", name, error) from error

    def sweep(self, wanted: Sequence[tuple[str, int]], take: Take) -> list[int]:
        """Fetch what can be had at once of many small objects."""
        keys = [(self._key(name), size) for name, size in wanted]
        return sweep(self._direct, keys, take, self.options.small_streams)

    def create(self, name: str, data: bytes) -> None:
        """Write a small object that must not be there yet.

        A lost answer makes the second try meet the first one, so equal bytes are ours.
        """
        tries: list[None] = []

        def put() -> None:
            tries.append(None)
            client = self._noter if len(data) < _PIECE_BYTES else self._writer
            obstore.put(client, self._key(name), data, mode="create", use_multipart=False)

        try:
            self._ask("write", name, put)
        except AlreadyExists:
            if len(tries) < 2 or self.read(name) != data:
                raise

    def upload(self, name: str, size: int, pieces: Callable[[int], Iterator[Buffer]]) -> None:
        """Write a file that `pieces(bytes_per_piece)` yields afresh for every try."""
        part = max(self.options.part_bytes, -(-size // _MOST_PARTS))
        key, streams = self._key(name), self.options.upload_streams

        def put() -> None:
            source = _Watched(pieces(min(part, _PIECE_BYTES)))
            try:
                if size <= part:
                    obstore.put(self._writer, key, b"".join(source), use_multipart=False)
                else:
                    obstore.put(self._writer, key, source, chunk_size=part, max_concurrency=streams)
            except _FAILURES:
                # obstore hides what the iterator raised behind an error of its own.
                source.reraise()
                raise

        self._ask("write", name, put)

    def make_directory(self, name: str) -> None:
        """A bucket has no directories; the manifest remembers them."""

    def delete(self, name: str) -> None:
        """Delete an object."""
        try:
            self._ask("delete", name, lambda: obstore.delete(self._noter, self._key(name)))
        except ObjectNotFound:
            return

    def local_path(self, name: str) -> Path | None:
        """Objects of a bucket do not lie on this machine."""
        return None

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".strip("/")

    def _ask(self, what: str, name: str, call: Callable[[], T]) -> T:
        _note_use()

        def once() -> T:
            try:
                return call()
            except _FAILURES as error:
                raise self._translate(what, name, error) from error

        return self._patience.run(what, f"{self.uri}/{name}".rstrip("/"), once)

    def _translate(self, what: str, name: str, error: Exception) -> Exception:
        return translate(error, what=what, uri=f"{self.uri}/{name}".rstrip("/"))


def _note_use() -> None:
    if not _used_in:
        _used_in.append(os.getpid())


class _Watched:
    """An iterator that remembers what it raised."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        return self

    def __next__(self) -> Buffer:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def reraise(self) -> None:
        if self._error is not None:
            raise self._error


def _client(
    bucket: str, options: StoreOptions, *, timeout: float, read_timeout: float | None = None
) -> GCSStore:
    limits: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=options.connect_seconds),
        "timeout": timedelta(seconds=timeout),
        "user_agent": "airflow-resume-provider",
    }
    if read_timeout:
        limits["read_timeout"] = timedelta(seconds=read_timeout)
    if options.user_project:
        limits["default_headers"] = {"x-goog-user-project": options.user_project}
    config: dict[str, Any] = {}
    endpoint = _emulator(options)
    if endpoint:
        limits["allow_http"] = True
        # Any token will do, and having one keeps obstore from looking for real credentials.
        config = {"base_url": endpoint, "bearer_token": "emulator"}
    try:
        return GCSStore(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=limits,  # type: ignore[arg-type]
            retry_config={"max_retries": 0},
            credential_provider=None if endpoint else options.credential_provider,
        )
    except BaseError as error:
        raise StoreMisconfigured(
            f"gs://{bucket} cannot be reached: {said(error)}.",
            can="Correct GOOGLE_APPLICATION_CREDENTIALS, or STORAGE_EMULATOR_HOST.",
            uri=f"gs://{bucket}",
        ) from error


def _emulator(options: StoreOptions) -> str:
    host = options.emulator if options.emulator is not None else os.environ.get("STORAGE_EMULATOR_HOST", "")
    host = host.strip().rstrip("/")
    return host if not host or "://" in host else f"http://{host}"
