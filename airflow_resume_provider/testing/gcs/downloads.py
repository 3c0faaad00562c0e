"""Sending an object's bytes: conditions, ranges, unzipping, checksums in headers, sendfile."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from aiohttp import web

from . import ranges
from .call import Call
from .checksums import crc_text, md5_text
from .cross_origin import allowed_origin
from .faults import Line
from .preconditions import Preconditions
from .refusals import Refusal, not_modified, precondition_failed
from .store import check_generation
from .versions import Version, http_date

_INLINE = 256 * 1024  # up to here one write of headers and body beats sendfile
_CHUNK = 256 * 1024


async def download(call: Call, bucket: str, name: str) -> web.StreamResponse:
    """Answer a GET or HEAD of an object's bytes, for both APIs."""
    version = call.store.find(bucket, name, check_generation(call.query.get("generation")))
    _check_conditions(call, version)
    if _must_unzip(call, version):
        return await _send_unzipped(call, version)
    span = ranges.parse(call.headers.get("Range"), version.size)
    start, end = span or (0, version.size)
    headers = object_headers(version) | {"ETag": _etag(call, version)}
    if call.request is not None and "Origin" in call.headers:
        headers |= allowed_origin(call.request.raw_path, call.headers)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{version.size}"
    if version.content_encoding:
        headers["Content-Encoding"] = version.content_encoding
    return await _send(call, version, start, end, headers, 206 if span else 200)


def object_headers(version: Version) -> dict[str, str]:
    """Return the headers that describe an object, as on downloads and HEAD; not to be changed."""
    if not version.described:
        version.described.update(_describe(version))
    return version.described


def _describe(version: Version) -> dict[str, str]:
    hashes = f"crc32c={crc_text(version.crc32c)}"
    if version.md5 is not None:
        hashes += f",md5={md5_text(version.md5)}"
    headers = {
        "Content-Type": version.content_type,
        "ETag": version.xml_etag,
        "Last-Modified": http_date(version.updated),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(version.generation),
        "x-goog-metageneration": str(version.metageneration),
        "x-goog-hash": hashes,
        "x-goog-storage-class": version.storage_class,
        "x-goog-stored-content-encoding": version.content_encoding or "identity",
        "x-goog-stored-content-length": str(version.size),
    }
    if version.components is not None:
        headers["x-goog-component-count"] = str(version.components)
    return headers | _chosen_headers(version.settings)


def _chosen_headers(settings: dict[str, Any]) -> dict[str, str]:
    names = {
        "cacheControl": "Cache-Control",
        "contentDisposition": "Content-Disposition",
        "contentLanguage": "Content-Language",
        "customTime": "x-goog-custom-time",
    }
    headers = {header: settings[key] for key, header in names.items() if settings.get(key)}
    for key, value in (settings.get("metadata") or {}).items():
        headers[f"x-goog-meta-{key}"] = value.replace("\r", " ").replace("\n", " ")
    return headers


def _check_conditions(call: Call, version: Version) -> None:
    if call.kind == "xml":
        Preconditions.from_headers(call.headers).check_read(version)
    else:
        Preconditions.from_query(call.query).check_read(version)
    check_etags(call, version, _etag(call, version))


def _etag(call: Call, version: Version) -> str:
    return version.xml_etag if call.kind == "xml" else version.etag


def check_etags(call: Call, version: Version, etag: str) -> None:
    """Apply If-Match, If-None-Match and the dates, in the order of RFC 9110."""
    headers, second = call.headers, version.updated // 1_000_000
    if "If-Match" in headers:
        if not _lists(headers["If-Match"], etag):
            raise precondition_failed()
    elif (since := _date(headers.get("If-Unmodified-Since"))) is not None and second > since:
        raise precondition_failed()
    if "If-None-Match" in headers:
        if _lists(headers["If-None-Match"], etag):
            raise not_modified(etag)
    elif (since := _date(headers.get("If-Modified-Since"))) is not None and second <= since:
        raise not_modified(etag)


def _lists(header: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")]
    return "*" in tags or etag.strip('"') in tags


def _date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _must_unzip(call: Call, version: Version) -> bool:
    """Decompressive transcoding: stored as gzip, and the client does not say that it takes gzip."""
    if version.content_encoding != "gzip":
        return False
    if "no-transform" in str(version.settings.get("cacheControl", "")):
        return False
    return "gzip" not in call.headers.get("Accept-Encoding", "")


async def _send(
    call: Call, version: Version, start: int, end: int, headers: dict[str, str], status: int
) -> web.StreamResponse:
    request, count = call.request, end - start
    fault = call.fault
    if call.method == "HEAD":
        return web.Response(status=status, headers=headers | {"Content-Length": str(count)})
    if count <= _INLINE and fault is None:
        return web.Response(
            status=status, headers=headers, body=call.store.blobs.read(version.segments, start, end)
        )
    assert request is not None
    response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(count)})
    with call.store.blobs.reading(version.segments):
        await response.prepare(request)
        if fault is not None:
            chunks = call.store.blobs.chunks(version.segments, start, end, 64 * 1024)
            await _send_disturbed(request, chunks, Line(fault, response))
        else:
            await _send_files(request, response, call.store.blobs.pieces(version.segments, start, end))
    await response.write_eof()
    return response


async def _send_files(
    request: web.Request, response: web.StreamResponse, pieces: Iterator[tuple[str, int, int]]
) -> None:
    # Newer versions of aiohttp hold the headers back until the first write.
    if send_headers := getattr(request._payload_writer, "send_headers", None):
        send_headers()
    loop, transport = asyncio.get_running_loop(), request.transport
    for path, offset, count in pieces:
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client went away")
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123, ASYNC230
            try:
                await loop.sendfile(transport, file, offset, count)
            except NotImplementedError:  # uvloop has no sendfile
                await _copy(response, file, offset, count)


async def _copy(response: web.StreamResponse, file: Any, offset: int, count: int) -> None:
    while count:
        chunk = os.pread(file.fileno(), min(_CHUNK, count), offset)
        await response.write(chunk)
        offset, count = offset + len(chunk), count - len(chunk)


async def _send_disturbed(request: web.Request, chunks: Iterator[bytes], line: Line) -> None:
    for chunk in chunks:
        if await line.send(chunk):
            if request.transport is not None:
                request.transport.close()
            raise ConnectionResetError("cut by a fault")


async def _send_unzipped(call: Call, version: Version) -> web.StreamResponse:
    """Serve the plain bytes of a gzip object: whole, of unknown length, without their own checksum."""
    headers = object_headers(version) | {"Warning": "214 UploadServer gunzipped", "Vary": "Accept-Encoding"}
    if call.method == "HEAD":
        return web.Response(headers=headers)
    assert call.request is not None
    if shared := allowed_origin(call.request.raw_path, call.headers):
        headers |= shared | {"Vary": f"Accept-Encoding, {shared['Vary']}"}
    with call.store.blobs.reading(version.segments):
        plain = _unzip(call.store.blobs.chunks(version.segments, 0, version.size))
        first = next(plain, b"")
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        await response.write(first)
        async for chunk in _each(plain):
            await response.write(chunk)
    await response.write_eof()
    return response


async def _each(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if chunk:
            yield chunk


def _unzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    machine = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            yield machine.decompress(chunk)
            while machine.eof and machine.unused_data:  # several members in a row
                rest, machine = machine.unused_data, zlib.decompressobj(wbits=31)
                yield machine.decompress(rest)
    except zlib.error as error:
        raise Refusal(503, "backendError", f"The stored object is not valid gzip: {error}") from error
