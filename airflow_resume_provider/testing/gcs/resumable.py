"""Resumable uploads: sessions that survive broken connections and restarts of the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web

from .blobs import Writer
from .call import Call
from .checksums import Expected
from .names import check_object
from .preconditions import Preconditions, integer
from .receiving import receive
from .refusals import Refusal, invalid
from .resources import object_resource
from .responses import created, respond
from .settings import object_settings
from .uploads import Upload
from .versions import Segments, Version

QUANTUM = 256 * 1024
_RANGE = re.compile(r"bytes (?:(\d+)-(?:(\d+)|\*)|\*)/(?:(\d+)|\*)")


async def begin(call: Call) -> web.Response:
    """POST …/o?uploadType=resumable: open a session and say where it is."""
    given = await call.json()
    name = check_object(str(given.get("name") or call.query.get("name", "")))
    if content_type := call.headers.get("X-Upload-Content-Type"):
        given.setdefault("contentType", content_type)
    bucket = call.parts[1]
    location = f"{call.base}/upload/storage/v1/b/{bucket}/o?"
    return open_session(
        call, bucket, name, given, location + urlencode({"uploadType": "resumable", "name": name})
    )


def open_session(call: Call, bucket: str, name: str, given: dict[str, Any], location: str) -> web.Response:
    """Open a session; preconditions are checked now, and again when the object is made."""
    conditions = Preconditions.from_query(call.query)
    conditions.check_write(call.store.catalogue.live(bucket, name))
    Expected.of(given.get("crc32c"), given.get("md5Hash"))
    state = {
        "settings": object_settings(given),
        "conditions": {key: text for key, text in call.query.items() if key.startswith("if")},
        "crc32c": given.get("crc32c"),
        "md5Hash": given.get("md5Hash"),
        "total": _total(call.headers.get("X-Upload-Content-Length")),
        "size": 0,
        "crc": 0,
    }
    upload = call.store.uploads.begin("resumable", bucket, name, state)
    headers = {"Location": f"{location}&upload_id={upload.id}", "X-GUploader-UploadID": upload.id}
    return web.Response(status=200, headers=headers)


def _total(text: str | None) -> int | None:
    return integer(text, "X-Upload-Content-Length")


async def proceed(call: Call) -> web.Response:
    """PUT to a session: more bytes, or the question how many have arrived. DELETE ends it."""
    upload = call.store.uploads.find("resumable", call.query["upload_id"])
    async with _alone(upload.id):
        upload = call.store.uploads.find("resumable", upload.id)  # it may have gone on meanwhile
        if call.method == "DELETE":
            return _cancel(call, upload)
        if "generation" in upload.state:
            return _finished(call, upload)
        return await _take(call, upload, _Chunk.of(call))


_holders: dict[str, asyncio.Task[Any]] = {}


@asynccontextmanager
async def _alone(identity: str) -> AsyncIterator[None]:
    """Let the newest request have the session: an older one hangs on a connection the client gave up."""
    task = asyncio.current_task()
    assert task is not None
    while (holder := _holders.get(identity)) is not None and holder is not task:
        holder.cancel()
        await asyncio.wait([holder])
    _holders[identity] = task
    try:
        yield
    finally:
        if _holders.get(identity) is task:
            del _holders[identity]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a Content-Range says.

    No `start`: only a question. No `end`: the body ends the object. An `end`
    without a `total`: more will follow.
    """

    start: int | None
    end: int | None
    total: int | None

    @classmethod
    def of(cls, call: Call) -> _Chunk:
        text = call.headers.get("Content-Range")
        length = call.headers.get("Content-Length")
        if text is None:
            size = int(length) if length is not None else None
            return cls(0, size, size)
        match = _RANGE.fullmatch(text)
        if match is None:
            raise invalid(f"Failed to parse Content-Range header: '{text}'")
        start, last, total = (int(group) if group is not None else None for group in match.groups())
        # "bytes 5-*/*", as the Node.js client streams: from there on, and the body's end is the object's.
        end = last + 1 if last is not None else total
        chunk = cls(start, end, total)
        chunk.check(text, int(length) if length is not None else None)
        return chunk

    def check(self, text: str, length: int | None) -> None:
        """Refuse a range that contradicts itself or the body's length."""
        if self.start is None or self.end is None:
            return
        wrong = self.end <= self.start or (self.total is not None and self.end > self.total)
        if wrong or length not in (None, self.end - self.start):
            raise invalid(f"Invalid Content-Range for a body of {length} bytes: '{text}'")

    @property
    def is_last(self) -> bool:
        return self.start is None or (self.total is not None and self.end == self.total)


def _cancel(call: Call, upload: Upload) -> web.Response:
    _end(call, upload)
    return web.Response(status=499, reason="Client Closed Request")


def _end(call: Call, upload: Upload) -> None:
    upload.state["ended"] = True
    call.store.uploads.save(upload)
    call.store.blobs.discard([upload.id])


def _finished(call: Call, upload: Upload) -> web.Response:
    version = call.store.find(upload.bucket, upload.name, upload.state["generation"])
    return respond(call, object_resource(version, call.base))


async def _take(call: Call, upload: Upload, chunk: _Chunk) -> web.Response:
    state = upload.state
    _check_total(state, chunk)
    if chunk.start is None:
        if chunk.total is not None and chunk.total == state["size"]:
            return await _finish(call, upload, call.headers)
        return _so_far(call, state["size"])
    if chunk.start > state["size"]:
        raise Refusal(
            503,
            "backendError",
            "Invalid request.  According to the Content-Range header, the upload offset is "
            f"{chunk.start} byte(s), which exceeds already uploaded size of {state['size']} byte(s).",
        )
    await _append(call, upload, chunk)
    complete = chunk.is_last if chunk.end is not None else True
    if complete:
        return await _finish(call, upload, call.headers)
    return _so_far(call, state["size"])


def _check_total(state: dict[str, Any], chunk: _Chunk) -> None:
    known = state["total"]
    if chunk.total is None:
        return
    if known is not None and known != chunk.total:
        raise invalid(
            f"Invalid request.  The total size in the Content-Range header ({chunk.total}) is not the "
            f"size that was announced before ({known})."
        )
    if chunk.total < state["size"]:
        raise invalid(
            f"Invalid request.  {state['size']} bytes have arrived, more than the total of {chunk.total}."
        )
    state["total"] = chunk.total


def _so_far(call: Call, size: int) -> web.Response:
    """308: this many bytes are safe. No Range header means none.

    Google's Go client (rclone, gcsfuse) asks for another status, since some proxies follow a 308.
    """
    headers = {"Range": f"bytes=0-{size - 1}"} if size else {}
    if call.headers.get("X-GUploader-No-308", "").lower() == "yes":
        return web.Response(status=200, headers={**headers, "X-Http-Status-Code-Override": "308"})
    return web.Response(status=308, reason="Resume Incomplete", headers=headers)


async def _append(call: Call, upload: Upload, chunk: _Chunk) -> None:
    """Write the chunk behind what is there. What is not known to be the end is kept in whole quanta."""
    assert chunk.start is not None
    state = upload.state
    writer = call.store.blobs.appending(upload.id, at=state["size"], crc=state["crc"])
    inlet = _Inlet(writer, skip=state["size"] - chunk.start)
    whole = False
    try:
        await receive(inlet.write, call.chunks())
        whole = chunk.end is None or inlet.received == chunk.end - chunk.start
        if not whole:
            raise invalid("The request body ended early.")
        _check_length(chunk, inlet.received)
    finally:
        if not (whole and (chunk.is_last or chunk.end is None)):
            writer.cut(*inlet.quantum)
        state["size"], state["crc"] = writer.size, writer.crc32c
        writer.close(durable=call.store.blobs.durable)
        call.store.uploads.save(upload)


def _check_length(chunk: _Chunk, received: int) -> None:
    if not chunk.is_last and chunk.end is not None and received < QUANTUM:
        raise invalid(
            "Invalid request.  The number of bytes uploaded is required to be equal or greater than "
            f"{QUANTUM}, except for the final request (it's recommended to be the exact multiple of "
            f"{QUANTUM}).  The received request contained {received} bytes, which does not meet this "
            "requirement."
        )


class _Inlet:
    """Skips what is there already and remembers the state at the last whole quantum."""

    def __init__(self, writer: Writer, skip: int) -> None:
        self._writer, self._skip = writer, skip
        self.received = 0
        self.quantum = (writer.size, writer.crc32c)

    def write(self, batch: list[bytes]) -> None:
        """Write what is new of some pieces of the body."""
        for data in batch:
            self.received += len(data)
            view = memoryview(data)[self._skip :]
            self._skip = max(0, self._skip - len(data))
            while view:
                room = QUANTUM - self._writer.size % QUANTUM
                self._writer.write([view[:room]])
                view = view[room:]
                if self._writer.size % QUANTUM == 0:
                    self.quantum = (self._writer.size, self._writer.crc32c)


async def _finish(call: Call, upload: Upload, headers: Any) -> web.Response:
    version = await _make_object(call, upload, headers)
    return await created(call, version)


async def _make_object(call: Call, upload: Upload, headers: Any) -> Version:
    state, store = upload.state, call.store
    received: Segments = ((upload.id, state["size"]),) if state["size"] else ()
    expected = Expected.of(state["crc32c"], state["md5Hash"]) | Expected.from_headers(headers)
    md5 = None
    if expected.md5 or state["size"] <= store.md5_limit:
        md5 = await asyncio.to_thread(store.blobs.md5, received, state["size"])
    try:
        expected.check(state["crc"], md5)
        version = _commit(call, upload, received, md5)
    except Refusal:
        _end(call, upload)
        raise
    store.blobs.discard([upload.id])  # the object has the same bytes under another name
    return version


def _commit(call: Call, upload: Upload, received: Segments, md5: bytes | None) -> Version:
    """Make the object and mark the session finished, both or neither."""

    def mark(version: Version) -> None:
        upload.state["generation"] = version.generation
        call.store.uploads.save(upload)

    with call.store.shared(received) as segments:
        return call.store.commit(
            upload.bucket,
            upload.name,
            segments,
            crc32c=upload.state["crc"],
            md5=md5,
            settings=upload.state["settings"],
            conditions=Preconditions.from_query(upload.state["conditions"]),
            within=mark,
        )


def xml_location(call: Call, bucket: str, name: str) -> str:
    """Where a session that the XML API opened is."""
    return f"{call.base}/{bucket}/{quote(name)}?uploadType=resumable"
