"""One version of one object, as the catalogue keeps it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from typing import Any

Segments = tuple[tuple[str, int], ...]  # (file, bytes) one after the other


def timestamp(micros: int) -> str:
    """Write microseconds since 1970 as the JSON API does (RFC 3339, milliseconds, Z)."""
    return f"{_second(micros // 1_000_000)}.{micros % 1_000_000 // 1000:03d}Z"


@lru_cache(maxsize=4096)  # a checkpoint's objects are all of a few seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def http_date(micros: int) -> str:
    """Write microseconds since 1970 as HTTP headers do."""
    return _http_date(micros // 1_000_000)


@lru_cache(maxsize=4096)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class Version:
    """Everything about one version of an object, its bytes excepted.

    `deleted` is the time at which it stopped being the live one, or None.
    `settings` holds what the client chose: contentType, metadata, storageClass …
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    crc32c: int
    md5: bytes | None
    segments: Segments
    created: int
    updated: int
    deleted: int | None = None
    components: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    # What downloads say about it, made once: small objects are read more often than anything else happens.
    described: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def etag(self) -> str:
        """The JSON API's entity tag: changes with content and with metadata."""
        raw = b"\x08" + _varint(self.generation) + b"\x10" + _varint(self.metageneration)
        return base64.b64encode(raw).decode()

    @property
    def xml_etag(self) -> str:
        """The XML API's entity tag: the md5 in hex, or an opaque one where there is no md5."""
        return f'"{self.md5.hex() if self.md5 else self.etag}"'

    @property
    def content_type(self) -> str:
        """The media type to serve it with."""
        return str(self.settings.get("contentType") or "application/octet-stream")

    @property
    def content_encoding(self) -> str:
        """The stored Content-Encoding, or an empty string."""
        return str(self.settings.get("contentEncoding") or "")

    @property
    def storage_class(self) -> str:
        """The storage class."""
        return str(self.settings.get("storageClass") or "STANDARD")

    def row(self) -> tuple[Any, ...]:
        """Return the columns of the catalogue, in their order."""
        return (
            self.bucket,
            self.name,
            self.generation,
            self.metageneration,
            self.size,
            self.crc32c,
            self.md5,
            json.dumps(self.segments),
            self.created,
            self.updated,
            self.deleted,
            self.components,
            json.dumps(self.settings),
        )

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Version:
        """Return the version that a row of the catalogue holds."""
        *plain, md5, segments, created, updated, deleted, components, settings = row
        bucket, name, generation, metageneration, size, crc32c = plain
        return cls(
            bucket=bucket,
            name=name,
            generation=generation,
            metageneration=metageneration,
            size=size,
            crc32c=crc32c,
            md5=md5,
            segments=tuple((file, length) for file, length in json.loads(segments)),
            created=created,
            updated=updated,
            deleted=deleted,
            components=components,
            settings=json.loads(settings),
        )
