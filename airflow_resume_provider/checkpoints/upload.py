"""Bytes from the disk to the store, in parallel; the checksum is of the bytes that were really sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from airflow_resume_provider.checkpoints import checksum, names
from airflow_resume_provider.checkpoints.manifest import FileEntry
from airflow_resume_provider.checkpoints.parallel import Batch
from airflow_resume_provider.checkpoints.progress import Meter
from airflow_resume_provider.checkpoints.sources import Source
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.errors import UploadFailed


class UploadStopped(UploadFailed):
    """The caller no longer wants this upload."""


class Upload:
    """One checkpoint's files on their way to a claimed prefix."""

    def __init__(
        self, store: Store, prefix: str, meter: Meter, should_stop: Callable[[], bool] | None = None
    ) -> None:
        self._store, self._prefix, self._meter = store, prefix, meter
        self._should_stop = should_stop or (lambda: False)
        self._batch = Batch(0, "commit")
        self._entries: dict[str, FileEntry] = {}
        self._brake = _Brake(lambda: store.options.bandwidth)

    def run(self, sources: Sequence[Source]) -> tuple[FileEntry, ...]:
        """Send all files and return their entries; raises `UploadFailed` when one changes meanwhile."""
        options = self._store.options
        mean = sum(source.size for source in sources) / max(len(sources), 1)
        tiny = mean <= options.small_bytes
        self._batch = Batch(options.small_streams if tiny else options.big_files, "commit", waiting=tiny)
        self._batch.run(partial(self._send, source) for source in sources)
        return tuple(self._entries[source.path] for source in sources)

    def _send(self, source: Source) -> None:
        crc = whole = 0

        def pieces(length: int) -> Iterator[bytes]:
            nonlocal crc, whole
            # A try that read everything and failed all the same is counted out again, too.
            self._meter.add(-whole)
            crc = sent = whole = 0
            try:
                with source.file.open("rb", buffering=0) as file:
                    while sent < source.size and (piece := file.read(min(length, source.size - sent))):
                        self._check_stop()
                        self._brake.wait(len(piece))
                        crc = checksum.extend(piece, crc)
                        sent += len(piece)
                        self._meter.add(len(piece))
                        yield piece
            except OSError as error:
                raise changed(source) from error
            finally:
                # A try that did not end well is counted out again.
                if sent < source.size:
                    self._meter.add(-sent)
            if sent < source.size:
                raise changed(source)
            whole = sent

        stored_as = names.stored_as(source.path)
        self._check_stop()
        self._store.upload(f"{self._prefix}/{stored_as or source.path}", source.size, pieces)
        if not source.unchanged():
            raise changed(source)
        self._meter.add(0, 1)
        self._entries[source.path] = FileEntry(
            path=source.path, size=source.size, crc32c=checksum.encode(crc), stored_as=stored_as
        )

    def _check_stop(self) -> None:
        if self._batch.stopped or self._should_stop():
            raise UploadStopped(
                "The upload was stopped before it was complete.", did="Nothing was committed."
            )


def changed(source: Source) -> UploadFailed:
    """Return the error of a file that did not stay as it was."""
    return UploadFailed(
        f"{source.file} changed while it was being committed.",
        did="Nothing was committed.",
        can="Write each checkpoint under a new name, or commit a copy.",
    )


class _Brake:
    """Keeps all threads together below a rate in bytes per second, which may change meanwhile."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate, self._free_at = rate, 0.0
        self._lock = threading.Lock()

    def wait(self, nbytes: int) -> None:
        rate = self._rate()
        if not rate:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + nbytes / rate
        time.sleep(start - now)
