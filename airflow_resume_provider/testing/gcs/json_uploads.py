"""Uploads over the JSON API in one request: media and multipart."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from aiohttp import web

from . import resumable
from .blobs import Writer
from .call import Call, parse_json
from .checksums import Expected
from .names import check_object
from .preconditions import Preconditions
from .receiving import receive
from .refusals import Refusal, invalid, required
from .responses import created
from .settings import object_settings
from .versions import Version

_MAX_HEAD = 1 << 20
_PIECE = 1 << 20


async def insert(call: Call) -> web.StreamResponse:
    """POST /upload/…/b/BUCKET/o in one of its three protocols."""
    kind = call.query.get("uploadType", "")
    if "upload_id" in call.query:
        return await resumable.proceed(call)
    call.store.catalogue.bucket(call.parts[1])
    if kind == "media":
        return await _insert_media(call)
    if kind == "multipart":
        return await _insert_multipart(call)
    if kind == "resumable":
        return await resumable.begin(call)
    raise invalid(f"Invalid uploadType: '{kind}'", location="uploadType")


def _as_sent(call: Call) -> AsyncIterator[bytes]:
    """Return the body; what is zipped for the way only (`gcloud storage cp --gzip-in-flight`) unzipped."""
    zipped = call.headers.get("Content-Encoding", "").lower() == "gzip"
    return _unzipped(call.chunks()) if zipped else call.chunks()


async def _unzipped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        async for chunk in chunks:
            while chunk:
                # In pieces: a small body may unzip to a very large one.
                yield unzip.decompress(chunk, _PIECE)
                chunk = unzip.unconsumed_tail
    except zlib.error:
        raise invalid("Request body is not valid gzip.") from None
    if not unzip.eof:
        raise invalid("Request body is not valid gzip: it ends early.")


async def _insert_media(call: Call) -> web.Response:
    given: dict[str, Any] = {"contentType": call.headers.get("Content-Type", "application/octet-stream")}
    if "contentEncoding" in call.query:
        given["contentEncoding"] = call.query["contentEncoding"]
    name = check_object(call.query.get("name", ""))
    return await _store(call, name, given, _as_sent(call))


async def _insert_multipart(call: Call) -> web.Response:
    body = _Related(_as_sent(call), _boundary(call.headers.get("Content-Type", "")))
    headers, raw = await body.head()
    if not headers.get("Content-Type", "application/json").startswith("application/json"):
        raise invalid("The first part of a multipart upload must be JSON.")
    given = parse_json(raw)
    media_headers = await body.media_headers()
    given.setdefault("contentType", media_headers.get("Content-Type", "application/octet-stream"))
    name = check_object(str(given.get("name") or call.query.get("name", "")))
    return await _store(call, name, given, body.media())


def expected_of(given: dict[str, Any], call: Call) -> Expected:
    """Return the checksums that the metadata or the headers promise."""
    return Expected.of(given.get("crc32c"), given.get("md5Hash")) | Expected.from_headers(call.headers)


async def _store(call: Call, name: str, given: dict[str, Any], chunks: AsyncIterator[bytes]) -> web.Response:
    settings = object_settings(given)
    expected = expected_of(given, call)
    limit = None if expected.md5 else call.store.md5_limit
    with call.store.blobs.writing(md5_limit=limit, size=call.length) as writer:
        await receive(writer.write, chunks)
        expected.check(writer.crc32c, writer.md5)
        version = commit(call, name, settings, writer)
    return await created(call, version)


def commit(call: Call, name: str, settings: dict[str, Any], writer: Writer) -> Version:
    """Make the written file the object's live version."""
    return call.store.commit(
        call.parts[1],
        name,
        writer.segments,
        crc32c=writer.crc32c,
        md5=writer.md5,
        settings=settings,
        conditions=Preconditions.from_query(call.query),
    )


def _boundary(content_type: str) -> bytes:
    match = re.search(r'boundary="([^"]+)"|boundary=([^;\s]+)|boundary=\'([^\']+)\'', content_type)
    if not content_type.startswith("multipart/") or not match:
        raise invalid("Multipart content-type with a boundary is required for a multipart upload.")
    return next(group for group in match.groups() if group).strip("'").encode()


class _Related:
    """A multipart/related body, read as a stream: metadata first, then the media to its last boundary."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks, self._mark = chunks, b"--" + boundary
        self._buffer = b""

    async def _more(self) -> bool:
        async for chunk in self._chunks:
            self._buffer += chunk
            return True
        return False

    async def _until(self, pattern: re.Pattern[bytes]) -> tuple[bytes, re.Match[bytes]]:
        """Take everything before the first match, and the match, out of the buffer."""
        while True:
            match = pattern.search(self._buffer)
            if match and match.end() < len(self._buffer):
                before, self._buffer = self._buffer[: match.start()], self._buffer[match.end() :]
                return before, match
            if len(self._buffer) > _MAX_HEAD or not await self._more():
                raise Refusal(400, "badContent", "Malformed multipart body.")

    async def head(self) -> tuple[Any, bytes]:
        """Return headers and body of the first part."""
        await self._until(re.compile(rb"(?:^|\n)" + re.escape(self._mark) + rb"[ \t]*\r?\n"))
        headers = await self.media_headers()
        raw, _ = await self._until(re.compile(rb"\r?\n" + re.escape(self._mark) + rb"[ \t]*\r?\n"))
        return headers, raw

    async def media_headers(self) -> Any:
        """Return the headers of the part that follows."""
        if self._buffer[:1] == b"\n" or self._buffer[:2] == b"\r\n":
            raw = b""
            self._buffer = self._buffer.removeprefix(b"\r").removeprefix(b"\n")
        else:
            raw, _ = await self._until(re.compile(rb"\r?\n\r?\n"))
        return BytesParser(policy=HTTP).parsebytes(raw + b"\r\n\r\n")

    async def media(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the last part; without its end mark the upload is refused."""
        hold = len(self._mark) + 16
        while await self._more():
            if len(self._buffer) > 4 * hold:
                yield self._buffer[:-hold]
                self._buffer = self._buffer[-hold:]
        end = re.compile(rb"\r?\n" + re.escape(self._mark) + rb"--\s*\Z").search(self._buffer)
        if end is None:
            raise required("Missing end boundary in multipart body.")
        yield self._buffer[: end.start()]
