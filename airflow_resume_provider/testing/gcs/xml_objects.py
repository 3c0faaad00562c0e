"""Objects over the XML API, and the way to all its methods."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from aiohttp import web

from . import resumable, xml_buckets, xml_multipart, xml_subresources
from .call import Call
from .checksums import Expected
from .downloads import download
from .names import check_object
from .preconditions import Preconditions
from .receiving import receive
from .refusals import Refusal, invalid, no_method
from .store import check_generation
from .versions import timestamp
from .xml_documents import document, element, settings_of, written_headers


async def get(call: Call) -> web.StreamResponse:
    """GET or HEAD /BUCKET/OBJECT."""
    return await download(call, *call.parts)


async def put(call: Call) -> web.Response:
    """PUT /BUCKET/OBJECT: an upload, or a copy when a source is named."""
    bucket, name = call.parts
    call.store.catalogue.bucket(bucket)
    check_object(name)
    if "x-goog-copy-source" in call.headers:
        return await _copy(call, bucket, name)
    settings = settings_of(call.headers)
    expected = Expected.from_headers(call.headers)
    limit = None if expected.md5 else call.store.md5_limit
    with call.store.blobs.writing(md5_limit=limit, size=call.length) as writer:
        await receive(writer.write, call.chunks())
        expected.check(writer.crc32c, writer.md5)
        version = call.store.commit(
            bucket,
            name,
            writer.segments,
            crc32c=writer.crc32c,
            md5=writer.md5,
            settings=settings,
            conditions=Preconditions.from_headers(call.headers),
        )
    await call.hooks.created(bucket, name)
    return web.Response(headers=written_headers(version))


async def _copy(call: Call, bucket: str, name: str) -> web.Response:
    source_bucket, _, source_name = unquote(call.headers["x-goog-copy-source"]).lstrip("/").partition("/")
    generation = check_generation(call.headers.get("x-goog-copy-source-generation"))
    source = call.store.find(source_bucket, source_name, generation)
    Preconditions.from_headers(call.headers, "x-goog-copy-source-if-").check_write(source)
    replace = call.headers.get("x-goog-metadata-directive", "COPY").upper() == "REPLACE"
    settings = settings_of(call.headers) if replace else dict(source.settings)
    version = call.store.copy(source, bucket, name, settings, Preconditions.from_headers(call.headers))
    await call.hooks.created(bucket, name)
    answer = document(
        "CopyObjectResult",
        element("LastModified", timestamp(version.updated)),
        element("ETag", version.xml_etag),
    )
    answer.headers.update(written_headers(version))
    return answer


async def delete(call: Call) -> web.Response:
    """DELETE /BUCKET/OBJECT."""
    generation = check_generation(call.query.get("generation"))
    bucket, name = call.parts
    call.store.delete(bucket, name, generation, Preconditions.from_headers(call.headers))
    return web.Response(status=204)


async def answer(call: Call) -> web.StreamResponse:
    """Find the method of the XML API that a request means."""
    if not call.parts:
        if call.method in ("GET", "HEAD"):
            return await xml_buckets.list_buckets(call)
        raise no_method()
    methods = _BUCKET_METHODS if len(call.parts) == 1 else _OBJECT_METHODS
    method = (_by_query(call) if call.query else None) or methods.get(call.method)
    if method is None:
        raise no_method()
    found: web.StreamResponse = await method(call)
    return found


def _by_query(call: Call) -> Any:
    """Return the method that the parameters mean, or None when the path alone says it."""
    if subresource := xml_subresources.find(call):
        return subresource
    if len(call.parts) == 1:
        return _bucket_uploads(call)
    if "uploadId" in call.query or "uploads" in call.query:
        return xml_multipart.answer
    if "partNumber" in call.query:  # a part of nothing must not become the object
        raise invalid("partNumber needs the uploadId of the upload that it belongs to.")
    return _resumable if "upload_id" in call.query else None


def _bucket_uploads(call: Call) -> Any:
    if not {"uploadId", "partNumber", "upload_id"}.isdisjoint(call.query):
        raise invalid("An upload belongs to an object, and the request names none.")
    if "uploads" not in call.query:
        return None
    if call.method != "GET":
        raise no_method()
    return xml_multipart.list_uploads


async def _resumable(call: Call) -> web.Response:
    if "upload_id" in call.query:
        return await resumable.proceed(call)
    if call.headers.get("x-goog-resumable") != "start":
        raise Refusal(400, "invalid", "POST object expects x-goog-resumable: start.", code="InvalidArgument")
    bucket, name = call.parts
    call.store.catalogue.bucket(bucket)
    location = resumable.xml_location(call, bucket, check_object(name))
    conditions = Preconditions.from_headers(call.headers)
    call.query |= {} if conditions.generation_match is None else {
        "ifGenerationMatch": str(conditions.generation_match)
    }  # fmt: skip
    opened = resumable.open_session(call, bucket, name, settings_of(call.headers), location)
    opened.set_status(201)
    return opened


_BUCKET_METHODS: dict[str, Any] = {
    "GET": xml_buckets.list_objects,
    "HEAD": xml_buckets.head_bucket,
    "PUT": xml_buckets.put_bucket,
    "DELETE": xml_buckets.delete_bucket,
}
_OBJECT_METHODS: dict[str, Any] = {"GET": get, "HEAD": get, "PUT": put, "POST": _resumable, "DELETE": delete}
