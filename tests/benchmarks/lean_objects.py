"""What the lean store keeps, and what it answers: the part of both APIs that the measured clients speak."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from airflow_resume_provider.checkpoints import checksum

_PAGE = 1000
_STARTED = datetime.now(UTC)
_DATE = _STARTED.isoformat(timespec="milliseconds").replace("+00:00", "Z")
_HTTP_DATE = _STARTED.strftime("%a, %d %b %Y %H:%M:%S GMT")


@dataclass(slots=True)
class Blob:
    """Bytes in memory, or in files one after the other."""

    size: int
    crc: int
    data: bytes | None = None
    files: list[tuple[str, int]] = field(default_factory=list)
    generation: int = 0

    def spans(self, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield file, offset and length of what lies between `start` and `end`."""
        for path, size in self.files:
            if start < size and end > 0:
                yield path, max(start, 0), min(end, size) - max(start, 0)
            start, end = start - size, end - size

    def delete(self) -> None:
        """Remove the files."""
        for path, _ in self.files:
            Path(path).unlink()


@dataclass(slots=True)
class Request:
    """A request's head; `rest` is what has come of its body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[bytes, bytes]
    length: int
    rest: bytes = b""

    @classmethod
    def of(cls, head: bytes) -> Request:
        """Take a head apart."""
        first, *lines = head.split(b"\r\n")
        method, target, _ = first.decode().split(" ", 2)
        pairs = (line.partition(b":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        path, _, query = target.partition("?")
        asked = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        return cls(method, path, asked, headers, int(headers.get(b"content-length", 0)))


@dataclass(slots=True)
class Answer:
    """What goes back: a head with `fields`, then `body`, or a part of a blob's files."""

    status: str = "200 OK"
    fields: str = ""
    body: bytes = b""
    blob: Blob | None = None
    span: tuple[int, int] = (0, 0)
    empty: bool = False  # of a HEAD

    def head(self) -> bytes:
        """Return the head's bytes."""
        length = self.span[1] - self.span[0] if self.blob else len(self.body)
        return f"HTTP/1.1 {self.status}\r\n{self.fields}Content-Length: {length}\r\n\r\n".encode()


class Store:
    """One bucket's objects and uploads."""

    def __init__(self, root: Path, bucket: str, drop: str = "") -> None:
        self._root, self.bucket, self.endpoint = root, bucket, ""
        self._drop = drop
        self._blobs: dict[str, Blob] = {}
        self._numbers = itertools.count(time.time_ns() // 1000)
        self._uploads: dict[str, dict[int, Blob]] = {}
        self._sessions: dict[str, tuple[str, list[Blob]]] = {}
        self._lock = threading.Lock()
        self._object = f"/{bucket}/"
        self._media = f"/download/storage/v1/b/{bucket}/o/"
        self._metadata = f"/storage/v1/b/{bucket}"

    def file(self) -> Path:
        """Return the path of a new file."""
        return self._root / f"{next(self._numbers)}"

    def keeps(self, request: Request) -> bool:
        """Say whether the bytes of this upload are to be kept."""
        if session := request.query.get("upload_id"):
            name = self._sessions[session][0]
        else:
            name = unquote(request.path.removeprefix(self._object))
        return not (self._drop and name.startswith(self._drop))

    def answer(self, request: Request, body: Blob) -> Answer:
        """Answer a request whose body has come."""
        path = request.path
        if path.startswith(self._object):
            return self._xml(request, unquote(path[len(self._object) :]), body)
        if path.startswith(self._media):
            return self._send(request, unquote(path[len(self._media) :]))
        if path.startswith("/upload/"):
            # gcsfs sends the pieces of a session with POST.
            session = "upload_id" in request.query
            return self._put_session(request, body) if session else self._post(request, body)
        if path == f"/{self.bucket}":
            return self._list_xml(request.query)
        if path == f"{self._metadata}/o":
            return self._list_json(request.query)
        if path == self._metadata:
            return _json({"kind": "storage#bucket", "id": self.bucket, "name": self.bucket})
        return Answer("404 Not Found")

    def _xml(self, request: Request, name: str, body: Blob) -> Answer:
        query = request.query
        if request.method == "PUT":
            return self._part(query, body) if "uploadId" in query else self._put(request, name, body)
        if request.method == "POST":
            return self._complete(name, query) if "uploadId" in query else self._begin()
        if request.method == "DELETE":
            with self._lock:
                found = self._blobs.pop(name, None)
            if found:
                found.delete()
            return Answer("204 No Content" if found else "404 Not Found")
        return self._send(request, name)

    def _send(self, request: Request, name: str) -> Answer:
        blob = self._blobs.get(name)
        if blob is None:
            return Answer("404 Not Found", body=b"" if request.method == "HEAD" else b"<Error/>")
        start, end, status, fields = 0, blob.size, "200 OK", ""
        if asked := request.headers.get(b"range"):
            first, _, last = asked.decode().removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else blob.size, blob.size)
            status, fields = "206 Partial Content", f"Content-Range: bytes {start}-{end - 1}/{blob.size}\r\n"
        fields += (
            f'ETag: "{blob.generation}"\r\nLast-Modified: {_HTTP_DATE}\r\n'
            f"Content-Type: application/octet-stream\r\nx-goog-generation: {blob.generation}\r\n"
            f"x-goog-hash: crc32c={checksum.encode(blob.crc)}\r\n"
        )
        return Answer(status, fields, blob=blob, span=(start, end), empty=request.method == "HEAD")

    def _put(self, request: Request, name: str, body: Blob) -> Answer:
        create = request.headers.get(b"x-goog-if-generation-match") == b"0"
        if not self._keep(name, body, create=create):
            return Answer("412 Precondition Failed", body=b"<Error><Code>PreconditionFailed</Code></Error>")
        return Answer(fields=f'ETag: "{body.generation}"\r\nx-goog-generation: {body.generation}\r\n')

    def _keep(self, name: str, blob: Blob, *, create: bool = False) -> bool:
        with self._lock:
            old = self._blobs.get(name)
            if old and create:
                return False
            blob.generation = next(self._numbers)
            self._blobs[name] = blob
        if old:
            old.delete()
        return True

    def _begin(self) -> Answer:
        identity = f"u{next(self._numbers)}"
        self._uploads[identity] = {}
        said = (
            f"<InitiateMultipartUploadResult><UploadId>{identity}</UploadId></InitiateMultipartUploadResult>"
        )
        return _document(said)

    def _part(self, query: dict[str, str], body: Blob) -> Answer:
        self._uploads[query["uploadId"]][int(query["partNumber"])] = body
        return Answer(fields=f'ETag: "{query["partNumber"]}"\r\n')

    def _complete(self, name: str, query: dict[str, str]) -> Answer:
        parts = self._uploads.pop(query["uploadId"])
        self._keep(name, _joined([parts[number] for number in sorted(parts)], self.file))
        return _document('<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')

    def _post(self, request: Request, body: Blob) -> Answer:
        assert body.data is not None, "metadata or a small object"
        if request.query["uploadType"] == "multipart":
            name, data = _parts(request.headers[b"content-type"], body.data)
            blob = Blob(len(data), checksum.extend(data), data)
            self._keep(name, blob)
            return _json(self._described(name, blob))
        name = request.query.get("name") or json.loads(body.data)["name"]
        identity = f"s{next(self._numbers)}"
        self._sessions[identity] = (name, [])
        where = f"{self.endpoint}{request.path}?uploadType=resumable&upload_id={identity}"
        return Answer(fields=f"Location: {where}\r\n")

    def _put_session(self, request: Request, body: Blob) -> Answer:
        identity = request.query["upload_id"]
        name, parts = self._sessions[identity]
        parts.append(body)
        sent = sum(part.size for part in parts)
        if int(request.headers[b"content-range"].rpartition(b"/")[2].replace(b"*", b"-1")) != sent:
            return Answer("308 Resume Incomplete", f"Range: bytes=0-{sent - 1}\r\n")
        del self._sessions[identity]
        blob = _joined(parts, self.file)
        self._keep(name, blob)
        return _json(self._described(name, blob))

    def _described(self, name: str, blob: Blob) -> dict[str, str]:
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{name}/{blob.generation}",
            "name": name,
            "bucket": self.bucket,
            "generation": str(blob.generation),
            "metageneration": "1",
            "size": str(blob.size),
            "crc32c": checksum.encode(blob.crc),
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            "etag": str(blob.generation),
            "timeCreated": _DATE,
            "updated": _DATE,
            "mediaLink": f"{self.endpoint}{self._media}{quote(name, safe='')}?alt=media",
        }

    def _page(self, query: dict[str, str], token: str) -> tuple[list[tuple[str, Blob]], list[str], str]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found: dict[str, Blob | None] = {}
        with self._lock:
            names = sorted(name for name in self._blobs if name.startswith(prefix) and name > token)
            for name in names:
                inner, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                if cut:
                    found[f"{prefix}{inner}{cut}"] = None
                else:
                    found[name] = self._blobs[name]
                if len(found) > _PAGE:
                    break
        page = list(found.items())[:_PAGE]
        last = page[-1][0] if len(found) > _PAGE else ""
        last += "\U0010ffff" if last.endswith(delimiter or "\0") else ""
        return [(n, b) for n, b in page if b], [n for n, b in page if b is None], last

    def _list_xml(self, query: dict[str, str]) -> Answer:
        blobs, prefixes, last = self._page(query, query.get("continuation-token", ""))
        rows = [
            f"<Contents><Key>{escape(name)}</Key><Generation>{blob.generation}</Generation>"
            f'<LastModified>{_DATE}</LastModified><ETag>"{blob.generation}"</ETag><Size>{blob.size}</Size>'
            "</Contents>"
            for name, blob in blobs
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes]
        if last:
            rows.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
        flag = str(bool(last)).lower()
        return _document(
            f"<ListBucketResult><IsTruncated>{flag}</IsTruncated>{''.join(rows)}</ListBucketResult>"
        )

    def _list_json(self, query: dict[str, str]) -> Answer:
        blobs, prefixes, last = self._page(query, query.get("pageToken", ""))
        said = {
            "kind": "storage#objects",
            "items": [self._described(name, blob) for name, blob in blobs],
            "prefixes": prefixes,
        }
        return _json({**said, "nextPageToken": last} if last else said)


def _json(value: object) -> Answer:
    return Answer(fields="Content-Type: application/json\r\n", body=json.dumps(value).encode())


def _document(text: str) -> Answer:
    return Answer(fields="Content-Type: application/xml\r\n", body=f"<?xml version='1.0'?>{text}".encode())


def _parts(kind: bytes, body: bytes) -> tuple[str, bytes]:
    """Return the name and the bytes of a multipart upload."""
    boundary = re.escape(kind.partition(b"boundary=")[2].strip(b'"'))
    first, second, last = list(re.finditer(rb"\r?\n?--" + boundary, body))[:3]
    blank = re.compile(rb"\r?\n\r?\n")
    metadata = blank.search(body, first.end())
    content = blank.search(body, second.end())
    assert metadata
    assert content
    return json.loads(body[metadata.end() : second.start()])["name"], body[content.end() : last.start()]


def _joined(parts: list[Blob], new_file: Callable[[], Path]) -> Blob:
    """Return one blob of several; what is in memory becomes a file when it is not alone."""
    if len(parts) == 1:
        return parts[0]
    crc = 0
    for part in parts:
        crc = checksum.combine(crc, part.crc, part.size)
        if part.data is not None:
            path = new_file()
            path.write_bytes(part.data)
            part.files = [(str(path), part.size)]
    return Blob(sum(part.size for part in parts), crc, files=[file for part in parts for file in part.files])
