"""Buckets on disk: the catalogue and the bytes together, one operation per method."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import checksums
from .blobs import Blobs
from .catalogue import Catalogue
from .listing import Page, Query, list_page
from .preconditions import NOTHING, Preconditions, integer
from .refusals import Refusal, no_object
from .uploads import Uploads
from .versions import Segments, Version

MIB = 1 << 20


class RootInUse(RuntimeError):
    """Another server has this directory."""


class Store:
    """All buckets below one directory; one process at a time may have it.

    Args:
        root: the directory; it is created.
        shared: have it together with other processes that say so, too. Another
            one may take away the bytes of an object while they are being read.
        durable: survive a power cut, not only a kill; costs an fsync per object.
        md5_limit: objects above this many bytes have no md5, as composite ones
            in the cloud have none.
        mutations_per_second: refuse faster changes of one object name with 429.
        min_part: smallest size of all parts but the last in an XML multipart upload.
    """

    def __init__(
        self,
        root: Path,
        *,
        shared: bool = False,
        durable: bool = False,
        md5_limit: int = 64 * MIB,
        mutations_per_second: float | None = None,
        min_part: int = 5 * MIB,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(root / "lock", shared=shared)
        self.root = root
        self.blobs = Blobs(root / "bytes", durable=durable)
        self.catalogue = Catalogue(root / "catalogue.sqlite", durable=durable, shared=shared)
        self.uploads = Uploads(self.catalogue)
        if not shared:
            self.uploads.forget_old()
            self.blobs.sweep(self.catalogue.files_in_use())
        self.md5_limit, self.min_part = md5_limit, min_part
        self._pace = mutations_per_second
        self._last_change: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Let go of the directory."""
        self.catalogue.close()
        os.close(self._lock)

    def find(self, bucket: str, name: str, generation: int | None = None) -> Version:
        """Return a version, or refuse with 404."""
        self.catalogue.bucket(bucket)
        found = self.catalogue.version(bucket, name, generation)
        if found is None:
            raise no_object(bucket, name, generation)
        return found

    def commit(
        self,
        bucket: str,
        name: str,
        segments: Segments,
        *,
        crc32c: int,
        md5: bytes | None,
        settings: dict[str, Any],
        conditions: Preconditions = NOTHING,
        components: int | None = None,
        within: Callable[[Version], object] | None = None,
    ) -> Version:
        """Make bytes that are on disk the live version of an object, or refuse and change nothing."""
        garbage: Segments = ()
        self._keep_pace(bucket, name)
        with self.catalogue.transaction():
            home = self.catalogue.bucket(bucket)  # it may have gone while the bytes came
            settings = {"storageClass": home.settings.get("storageClass", "STANDARD"), **settings}
            live = self.catalogue.live(bucket, name)
            conditions.check_write(live)
            if live:
                _check_held(live)
            if live and self.catalogue.retire(live, keep=home.versioned):
                garbage = live.segments
            generation, size = self.catalogue.next_generation(), sum(size for _, size in segments)
            now = self.catalogue.micros()
            version = Version(
                bucket, name, generation, 1, size, crc32c, md5, segments, now, now,
                components=components, settings=settings,
            )  # fmt: skip
            self.catalogue.insert(version)
            if within:
                within(version)
        self.blobs.discard(name for name, _ in garbage)
        return version

    def delete(
        self, bucket: str, name: str, generation: int | None = None, conditions: Preconditions = NOTHING
    ) -> None:
        """Delete an object, or one of its versions for good."""
        self._keep_pace(bucket, name)
        with self.catalogue.transaction():
            home = self.catalogue.bucket(bucket)
            found = self.catalogue.version(bucket, name, generation)
            version = conditions.check_existing(found, bucket, name)
            _check_held(version)
            gone = self.catalogue.retire(version, keep=home.versioned and generation is None)
        if gone:
            self.blobs.discard(name for name, _ in version.segments)

    def change(
        self,
        bucket: str,
        name: str,
        generation: int | None,
        conditions: Preconditions,
        change: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> Version:
        """Change the metadata of a version."""
        self.catalogue.bucket(bucket)
        self._keep_pace(bucket, name)
        with self.catalogue.transaction():
            found = self.catalogue.version(bucket, name, generation)
            version = conditions.check_existing(found, bucket, name)
            return self.catalogue.change(version, change(dict(version.settings)))

    def copy(
        self,
        source: Version,
        bucket: str,
        name: str,
        settings: dict[str, Any],
        conditions: Preconditions = NOTHING,
    ) -> Version:
        """Make an object of the same bytes."""
        with self.shared(source.segments) as segments:
            return self.commit(
                bucket,
                name,
                segments,
                crc32c=source.crc32c,
                md5=source.md5,
                components=source.components,
                settings=settings,
                conditions=conditions,
            )

    def move(
        self,
        source: Version,
        name: str,
        conditions: Preconditions = NOTHING,
    ) -> Version:
        """Give an object another name in its bucket, in one transaction."""
        keep = self.catalogue.bucket(source.bucket).versioned
        with self.shared(source.segments) as segments:
            moved = self.commit(
                source.bucket,
                name,
                segments,
                crc32c=source.crc32c,
                md5=source.md5,
                components=source.components,
                settings=dict(source.settings),
                conditions=conditions,
                within=lambda _: self.catalogue.retire(source, keep=keep),
            )
        if self.catalogue.version(source.bucket, source.name, source.generation) is None:
            self.blobs.discard(name for name, _ in source.segments)
        return moved

    def compose(
        self,
        sources: list[Version],
        bucket: str,
        name: str,
        settings: dict[str, Any],
        conditions: Preconditions = NOTHING,
    ) -> Version:
        """Make an object of the bytes of others, one after the other."""
        crc = 0
        for source in sources:
            crc = checksums.combine(crc, source.crc32c, source.size)
        with self.shared(tuple(segment for source in sources for segment in source.segments)) as segments:
            return self.commit(
                bucket,
                name,
                segments,
                crc32c=crc,
                md5=None,
                components=sum(source.components or 1 for source in sources),
                settings=settings,
                conditions=conditions,
            )

    def list(self, bucket: str, query: Query, versions: bool = False) -> Page:
        """Return a page of a bucket's objects."""
        self.catalogue.bucket(bucket)
        return list_page(
            lambda start, end, beyond, limit: self.catalogue.scan(
                bucket, start, end, versions, beyond, limit
            ),
            query,
        )

    @contextmanager
    def shared(self, segments: Segments) -> Iterator[Segments]:
        """The same bytes under new names, which go again when the block raises."""
        shared = self.blobs.share(segments)
        try:
            yield shared
        except BaseException:
            self.blobs.discard(name for name, _ in shared)
            raise

    def _keep_pace(self, bucket: str, name: str) -> None:
        if self._pace is None:
            return
        now, last = self.catalogue.micros(), self._last_change.get((bucket, name), 0)
        if now - last < 1_000_000 / self._pace:
            raise Refusal(
                429,
                "rateLimitExceeded",
                f"The object {bucket}/{name} exceeded the rate limit for object mutation operations "
                "(create, update, and delete). Please reduce your request rate.",
            )
        self._last_change[(bucket, name)] = now


def _check_held(version: Version) -> None:
    for hold, words in (("temporaryHold", "Temporary"), ("eventBasedHold", "Event-Based")):
        if version.settings.get(hold):
            raise Refusal(
                403,
                "forbidden",
                f"Object '{version.bucket}/{version.name}' is under active {words} hold and cannot be "
                "deleted, overwritten or archived until hold is removed.",
                code="ObjectUnderActiveHold",
            )


def _lock(path: Path, *, shared: bool) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise RootInUse(f"{path.parent} is in use by another server; give each its own directory") from None
    return file


def check_generation(text: str | None) -> int | None:
    """Parse a generation that a client names."""
    return integer(text, "generation")
