"""Multipart uploads over the XML API: initiate, parts, list, complete, abort."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from aiohttp import web

from .blobs import SMALL, Writer
from .call import Call
from .checksums import Expected, combine, crc_text, md5_text
from .names import check_object
from .preconditions import Preconditions, natural
from .receiving import receive
from .refusals import Refusal, invalid, no_method
from .uploads import Part, Upload
from .versions import Version, timestamp
from .xml_documents import document, element, settings_of, written_headers

_MAX_PARTS = 10_000


async def answer(call: Call) -> web.Response:
    """Find the method that a request with `uploads` or `uploadId` means."""
    if call.method == "POST" and "uploads" in call.query:
        return await initiate(call)
    methods: dict[str, Any] = {"PUT": put_part, "POST": complete, "DELETE": abort, "GET": list_parts}
    if "uploadId" not in call.query or call.method not in methods:
        raise no_method()
    found: web.Response = await methods[call.method](call)
    return found


async def initiate(call: Call) -> web.Response:
    """POST /BUCKET/OBJECT?uploads."""
    bucket, name = call.parts
    call.store.catalogue.bucket(bucket)
    state = {"settings": settings_of(call.headers)}
    upload = call.store.uploads.begin("multipart", bucket, check_object(name), state)
    return document(
        "InitiateMultipartUploadResult",
        element("Bucket", bucket),
        element("Key", name),
        element("UploadId", upload.id),
    )


def _upload(call: Call) -> Upload:
    upload = call.store.uploads.find("multipart", call.query["uploadId"])
    if [upload.bucket, upload.name] != call.parts:
        raise Refusal(404, "notFound", "The requested upload was not found.", code="NoSuchUpload")
    return upload


async def put_part(call: Call) -> web.Response:
    """PUT /BUCKET/OBJECT?partNumber=N&uploadId=ID."""
    upload, number = _upload(call), _part_number(call)
    expected = Expected.from_headers(call.headers)
    limit = _md5_limit(call, expected)
    with call.store.blobs.writing(md5_limit=limit, size=call.length) as writer:
        await receive(writer.write, call.chunks())
        expected.check(writer.crc32c, writer.md5)
        part = _part(call, number, writer)
        replaced = call.store.uploads.put_part(upload, part)
    call.store.blobs.discard([replaced] if replaced else [])
    hashes = f"crc32c={crc_text(writer.crc32c)}" + (f",md5={md5_text(writer.md5)}" if writer.md5 else "")
    return web.Response(headers={"ETag": part.etag, "x-goog-hash": hashes})


def _part_number(call: Call) -> int:
    text = call.query.get("partNumber", "")
    if not 1 <= natural(text, "partNumber") <= _MAX_PARTS:
        raise invalid(f"Part number must be an integer between 1 and {_MAX_PARTS}, inclusive: '{text}'")
    return int(text)


def _md5_limit(call: Call, expected: Expected) -> int | None:
    """Parts are many and big; their md5 is only worth its price to a client that will look at it."""
    if expected.md5 or "X-Goog-API-Client" in call.headers:
        return None
    return SMALL


def _part(call: Call, number: int, writer: Writer) -> Part:
    # Opaque where no md5 was kept; differs for every upload of the part, as it must.
    etag = writer.md5.hex() if writer.md5 else f"{writer.crc32c:08x}{writer.name:0>24}"
    return Part(number, writer.name, writer.size, writer.crc32c, f'"{etag}"', call.store.catalogue.micros())


async def complete(call: Call) -> web.Response:
    """POST /BUCKET/OBJECT?uploadId=ID: make the object of the parts that the body lists."""
    upload = _upload(call)
    there = {part.number: part for part in call.store.uploads.parts(upload)}
    wanted = _wanted(await call.body(4 << 20))
    chosen = [_chosen(there, number, etag) for number, etag in wanted]
    _check_sizes(chosen, call.store.min_part)
    version = _assemble(call, upload, chosen)
    keep = {part.file for part in chosen}
    call.store.blobs.discard(part.file for part in there.values() if part.file not in keep)
    await call.hooks.created(upload.bucket, upload.name)
    answer = document(
        "CompleteMultipartUploadResult",
        element("Location", f"{call.base}/{upload.bucket}/{upload.name}"),
        element("Bucket", upload.bucket),
        element("Key", upload.name),
        element("ETag", version.xml_etag),
    )
    answer.headers.update(written_headers(version))
    return answer


def _wanted(body: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - local, and expat refuses entity bombs
        parts = [(int(_text(part, "PartNumber")), _text(part, "ETag")) for part in root]
    except (ElementTree.ParseError, ValueError):
        raise invalid("The XML you provided was not well-formed.", code="MalformedXML") from None
    if not parts:
        raise invalid("You must specify at least one part.", code="MalformedXML")
    if any(second[0] <= first[0] for first, second in pairwise(parts)):
        raise invalid("The list of parts was not in ascending order.", code="InvalidPartOrder")
    return parts


def _text(part: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in part if child.tag.rpartition("}")[2] == name), "").strip()


def _chosen(there: dict[int, Part], number: int, etag: str) -> Part:
    part = there.get(number)
    if part is None or part.etag.strip('"') != etag.strip('"'):
        raise invalid(
            "One or more of the specified parts could not be found. The part might not have been uploaded, "
            "or the specified entity tag might not have matched the part's entity tag.",
            code="InvalidPart",
        )
    return part


def _check_sizes(parts: list[Part], least: int) -> None:
    if any(part.size < least for part in parts[:-1]):
        raise invalid("Your proposed upload is smaller than the minimum allowed size.", code="EntityTooSmall")


def _assemble(call: Call, upload: Upload, parts: list[Part]) -> Version:
    crc = 0
    for part in parts:
        crc = combine(crc, part.crc32c, part.size)
    return call.store.commit(
        upload.bucket,
        upload.name,
        tuple((part.file, part.size) for part in parts if part.size),
        crc32c=crc,
        md5=None,
        settings=upload.state["settings"],
        conditions=Preconditions.from_headers(call.headers),
        within=lambda _: call.store.uploads.forget(upload),
    )


async def abort(call: Call) -> web.Response:
    """DELETE /BUCKET/OBJECT?uploadId=ID."""
    upload = _upload(call)
    files = [part.file for part in call.store.uploads.parts(upload)]
    with call.store.catalogue.transaction():
        call.store.uploads.forget(upload)
    call.store.blobs.discard(files)
    return web.Response(status=204)


async def list_parts(call: Call) -> web.Response:
    """GET /BUCKET/OBJECT?uploadId=ID."""
    upload = _upload(call)
    after = natural(call.query.get("part-number-marker", "0"), "part-number-marker")
    limit = natural(call.query.get("max-parts", "1000"), "max-parts")
    parts = [part for part in call.store.uploads.parts(upload) if part.number > after]
    shown, more = parts[:limit], len(parts) > limit
    return document(
        "ListPartsResult",
        element("Bucket", upload.bucket),
        element("Key", upload.name),
        element("UploadId", upload.id),
        element("StorageClass", upload.state["settings"].get("storageClass", "STANDARD")),
        element("PartNumberMarker", after),
        element("NextPartNumberMarker", shown[-1].number if shown else 0),
        element("MaxParts", limit),
        element("IsTruncated", str(more).lower()),
        *(_part_entry(part) for part in shown),
    )


def _part_entry(part: Part) -> str:
    fields = (
        ("PartNumber", part.number),
        ("LastModified", timestamp(part.created)),
        ("ETag", part.etag),
        ("Size", part.size),
    )
    return f"<Part>{''.join(element(key, value) for key, value in fields)}</Part>"


async def list_uploads(call: Call) -> web.Response:
    """GET /BUCKET?uploads."""
    bucket = call.parts[0]
    call.store.catalogue.bucket(bucket)
    uploads = call.store.uploads.of_bucket(bucket, call.query.get("prefix", ""))
    entries = (
        f"<Upload>{element('Key', upload.name)}{element('UploadId', upload.id)}"
        f"{element('Initiated', timestamp(upload.created))}</Upload>"
        for upload in uploads[:1000]
    )
    return document(
        "ListMultipartUploadsResult",
        element("Bucket", bucket),
        element("IsTruncated", str(len(uploads) > 1000).lower()),
        *entries,
    )
