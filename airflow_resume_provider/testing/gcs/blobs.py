"""The bytes: files that are written once, then shared by hard links and never changed.

A file becomes an object only when the catalogue has a row for it; what a
crash leaves without a row is swept at the next start.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from crc32c import crc32c

from .versions import Segments

SMALL = 1 << 20


class Writer:
    """Takes the bytes of one file and knows their checksums.

    The md5 costs ten times what the crc32c does, so above `md5_limit` bytes it
    is only kept when the client gave one to compare with.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        md5_limit: int | None,
        size: int | None = None,
        append_at: int = 0,
        crc: int = 0,
    ) -> None:
        self.name, self.size, self.crc32c = name, append_at, crc
        self._path, self._limit = path, md5_limit
        self._md5 = None if md5_limit == 0 else hashlib.md5(usedforsecurity=False)
        if size is not None and md5_limit is not None and size > md5_limit:
            self._md5 = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if append_at or crc:
            os.ftruncate(self._file, append_at)
            os.lseek(self._file, append_at, os.SEEK_SET)

    def write(self, batch: Sequence[bytes | memoryview]) -> None:
        """Append pieces of data, one after the other."""
        length = 0
        for data in batch:
            self.crc32c = crc32c(data, self.crc32c)
            length += len(data)
        self.size += length
        self._update_md5(batch)
        written = os.writev(self._file, batch) if length else 0
        if written < length:  # a full disk, or very many pieces
            rest = memoryview(b"".join(batch))[written:]
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def _update_md5(self, batch: Sequence[bytes | memoryview]) -> None:
        if self._md5 is None:
            return
        if self._limit is not None and self.size > self._limit:
            self._md5 = None
            return
        for data in batch:
            self._md5.update(data)

    def cut(self, size: int, crc: int) -> None:
        """Forget everything behind the first `size` bytes, whose crc32c is `crc`."""
        os.ftruncate(self._file, size)
        self.size, self.crc32c, self._md5 = size, crc, None

    @property
    def md5(self) -> bytes | None:
        """The md5, or None where it was not kept."""
        return self._md5.digest() if self._md5 is not None else None

    @property
    def segments(self) -> Segments:
        """The file as the only segment of an object, or none when it is empty."""
        return ((self.name, self.size),) if self.size else ()

    def close(self, *, durable: bool = False) -> None:
        """End writing."""
        if durable:
            os.fsync(self._file)
        os.close(self._file)


class Blobs:
    """The directory of files."""

    def __init__(self, root: Path, *, durable: bool = False) -> None:
        self._root = root
        self.durable = durable
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()
        for shelf in range(256):
            (root / f"{shelf:02x}").mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> str:
        """Where a file lies. Names are our own, so none can lead elsewhere."""
        return f"{self._root}/{name[-2:]}/{name}"

    def new_name(self) -> str:
        """Return a name that no file has or had."""
        number = next(self._numbers)
        return f"{self._prefix}{number:08x}"

    def appending(self, name: str, *, at: int, crc: int) -> Writer:
        """Go on with a file after its first `at` bytes, whose crc32c is `crc`; no md5."""
        return Writer(self.path(name), name, md5_limit=0, append_at=at, crc=crc)

    @contextmanager
    def writing(self, *, md5_limit: int | None, size: int | None = None) -> Iterator[Writer]:
        """A new file, of `size` bytes if known, that is removed again when the block raises."""
        name = self.new_name()
        writer = Writer(self.path(name), name, md5_limit=md5_limit, size=size)
        try:
            yield writer
        except BaseException:
            writer.close()
            self.discard([writer.name])
            raise
        writer.close(durable=self.durable)
        if not writer.size:
            self.discard([writer.name])

    def share(self, segments: Iterable[tuple[str, int]]) -> Segments:
        """Return the same bytes under new names, without copying where the disk can link."""
        shared = []
        for name, size in segments:
            new = self.new_name()
            try:
                os.link(self.path(name), self.path(new))
            except OSError:
                shutil.copyfile(self.path(name), self.path(new))
            shared.append((new, size))
        return tuple(shared)

    @contextmanager
    def reading(self, segments: Segments) -> Iterator[None]:
        """Keep files that a response is being made of, also when the object is deleted meanwhile."""
        names = [name for name, _ in segments]
        self._readers.update(names)
        try:
            yield
        finally:
            self._readers.subtract(names)
            for name in names:
                if self._readers[name] <= 0:
                    del self._readers[name]
            self.discard([name for name in names if name in self._doomed])

    def discard(self, names: Iterable[str]) -> None:
        """Remove files, or let their last reader do it."""
        for name in names:
            if name in self._readers:
                self._doomed.add(name)
                continue
            self._doomed.discard(name)
            with suppress(FileNotFoundError):
                os.unlink(self.path(name))  # noqa: PTH108 - on every upload, and half as dear

    def pieces(self, segments: Segments, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Return (file, offset, bytes) that make up the range [start, end)."""
        position = 0
        for name, size in segments:
            low, high = max(start, position), min(end, position + size)
            if low < high:
                yield self.path(name), low - position, high - low
            position += size

    def read(self, segments: Segments, start: int, end: int) -> bytes:
        """Return the bytes of a range; for small ones."""
        parts = []
        for path, offset, count in self.pieces(segments, start, end):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts.append(os.pread(file, count, offset))
            finally:
                os.close(file)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def chunks(self, segments: Segments, start: int, end: int, size: int = SMALL) -> Iterator[bytes]:
        """Yield a range in chunks of at most `size` bytes."""
        for low in range(start, end, size):
            yield self.read(segments, low, min(end, low + size))

    def md5(self, segments: Segments, size: int) -> bytes:
        """Return the md5 by reading everything once."""
        digest = hashlib.md5(usedforsecurity=False)
        for chunk in self.chunks(segments, 0, size):
            digest.update(chunk)
        return digest.digest()

    def sweep(self, in_use: set[str]) -> int:
        """Remove what a crash left behind; returns how many files."""
        swept = 0
        for shelf in self._root.iterdir():
            for path in shelf.iterdir():
                if path.name not in in_use:
                    path.unlink()
                    swept += 1
        return swept
