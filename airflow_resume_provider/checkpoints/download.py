"""Bytes from the store to the disk: ranged, in parallel, checked while they stream.

Memory is bounded by chunks and requests in flight, never by a file's size.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from airflow_resume_provider.checkpoints import checksum
from airflow_resume_provider.checkpoints.manifest import FileEntry
from airflow_resume_provider.checkpoints.parallel import Batch, Cancelled
from airflow_resume_provider.checkpoints.progress import Meter
from airflow_resume_provider.checkpoints.retrying import Patience, Transient
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.sweep import LARGEST
from airflow_resume_provider.errors import CheckpointBroken, ObjectNotFound

T = TypeVar("T")
_NO_TURN = nullcontext()
# A file with the wrong checksum is fetched once more: that tells a bad transfer from a bad object.
_FETCHES = 2


class Download:
    """One checkpoint's transfer into `target`, or only past the checksum when that is `None`."""

    def __init__(self, store: Store, prefix: str, uri: str, target: Path | None, meter: Meter) -> None:
        self._store, self._uri, self._meter = store, uri, meter
        # Text: joining thousands of `Path`s costs more than opening the files.
        self._target = None if target is None else os.fspath(target)
        self._prefix = f"{prefix}/" if prefix else ""
        self._patience = Patience(store.options.max_total_seconds)
        self._batch = Batch(0, "restore")

    def run(self, files: Sequence[FileEntry]) -> None:
        """Fetch all files; raises `CheckpointBroken` when one is not what the manifest says."""
        options = self._store.options
        big = [entry for entry in files if entry.size > options.range_bytes]
        small = [entry for entry in files if entry.size <= options.range_bytes]
        self._batch = Batch(options.big_streams, "restore")
        self._batch.run(_by_turns([self._pieces(entry) for entry in big]))
        # A range of a file of some size keeps a stream busy; tiny files are all waiting.
        tiny = sum(entry.size for entry in small) <= len(small) * options.small_bytes
        small = self._sweep(small) if tiny else small
        streams = options.small_streams if tiny else options.big_streams
        self._batch = Batch(streams, "restore", waiting=tiny)
        self._batch.run(partial(self._whole, entry) for entry in small)

    def _sweep(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Fetch what comes at once and is right; returns the others, with which there is time."""
        small = [entry for entry in entries if 0 < entry.size <= LARGEST]
        others = [entry for entry in entries if not 0 < entry.size <= LARGEST]
        wrong: list[FileEntry] = []

        def take(number: int, data: memoryview) -> None:
            entry = small[number]
            if not _right(entry, checksum.extend(data)):
                wrong.append(entry)
                return
            try:
                with self._open(entry, os.O_CREAT | os.O_TRUNC) as fd:
                    if fd is not None:
                        _write_at(fd, data, 0)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                wrong.append(entry)  # the connections have taken them all, and give them back
                return
            self._meter.add(entry.size, 1)

        left = self._store.sweep([(self._prefix + entry.stored, entry.size) for entry in small], take)
        return [*others, *wrong, *(small[number] for number in left)]

    def _whole(self, entry: FileEntry) -> None:
        for _ in range(_FETCHES):
            with self._open(entry, os.O_CREAT | os.O_TRUNC) as fd:
                crc = self._fetch(entry, fd, 0, entry.size)
            if _right(entry, crc):
                self._meter.add(0, 1)
                return
            self._meter.add(-entry.size)
        raise self._broken(
            f"{entry.path} has crc32c {checksum.encode(crc)}, its manifest says {entry.crc32c}"
        )

    def _pieces(self, entry: FileEntry) -> Iterator[Callable[[], None]]:
        """Yield the jobs that fetch a large file; the last one to finish compares the checksum."""
        step = self._store.options.range_bytes
        starts = range(0, entry.size, step)
        crcs: dict[int, int] = {}
        lock, turn = threading.Lock(), threading.Lock()
        with self._open(entry, os.O_CREAT | os.O_TRUNC) as fd:
            if fd is not None:
                os.ftruncate(fd, entry.size)

        def job(start: int) -> None:
            with self._open(entry) as fd:
                crc = self._fetch(entry, fd, start, min(step, entry.size - start), turn)
            with lock:
                crcs[start] = crc
                last = len(crcs) == len(starts)
            if last:
                self._compare(entry, crcs)

        for start in starts:
            yield partial(job, start)

    def _compare(self, entry: FileEntry, crcs: dict[int, int]) -> None:
        step, whole = self._store.options.range_bytes, 0
        for start in sorted(crcs):
            whole = checksum.combine(whole, crcs[start], min(step, entry.size - start))
        if _right(entry, whole):
            self._meter.add(0, 1)
        else:
            self._meter.add(-entry.size)
            self._whole(entry)

    def _fetch(
        self,
        entry: FileEntry,
        fd: int | None,
        start: int,
        length: int,
        turn: AbstractContextManager[object] = _NO_TURN,
    ) -> int:
        """Write a range to its place and return its checksum; a retry goes on where the last try ended.

        Who writes to a file waits for its `turn`: the kernel lets one do so at a time anyway, and
        has the others spin meanwhile.
        """
        crc, position, end = 0, start, start + length
        name = self._prefix + entry.stored

        def once() -> None:
            nonlocal crc, position
            for chunk in self._store.stream(name, position, end - position) if position < end else ():
                if self._batch.stopped:
                    raise Cancelled
                chunk = memoryview(chunk)[: end - position]
                crc = checksum.extend(chunk, crc)
                if fd is not None:
                    with turn:
                        _write_at(fd, chunk, position)
                position += len(chunk)
                self._meter.add(len(chunk))
            if position < end:
                raise Transient(f"the body ended {end - position} bytes short")

        try:
            self._patience.run("read", f"{self._store.uri}/{name}", once)
        except ObjectNotFound as error:
            raise self._broken(f"{entry.path} is missing, or shorter than its manifest says") from error
        return crc

    def _open(self, entry: FileEntry, flags: int = 0) -> _Descriptor:
        path = None if self._target is None else f"{self._target}/{entry.path}"
        return _Descriptor(path, os.O_WRONLY | flags)

    def _broken(self, reason: str) -> CheckpointBroken:
        return CheckpointBroken(f"{self._uri} is broken: {reason}.", uri=self._uri, reason=reason)


def _by_turns(files: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yield the first of each, then the second of each: ranges in flight mostly belong to different files."""
    left = list(files)
    while left:
        for jobs in list(left):
            if (job := next(jobs, None)) is None:
                left.remove(jobs)
            else:
                yield job


def _right(entry: FileEntry, crc: int) -> bool:
    return checksum.encode(crc) == entry.crc32c


class _Descriptor:
    """A file descriptor as a context; `None` when there is nothing to write to."""

    def __init__(self, path: str | None, flags: int) -> None:
        self._fd = None if path is None else os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def __enter__(self) -> int | None:
        return self._fd

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        offset += written
        data = data[written:]
