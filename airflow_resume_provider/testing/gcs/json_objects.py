"""Objects over the JSON API: metadata, listing, copies, compositions. Uploads have their own module."""

from __future__ import annotations

import base64
import json
from typing import Any

from aiohttp import web

from .call import Call
from .downloads import check_etags, download
from .listing import Page, Query
from .names import check_object
from .preconditions import Preconditions, integer, natural
from .refusals import Refusal, invalid, required
from .resources import object_resource, wants_full
from .responses import page_size, respond
from .settings import check_custom_time, object_settings
from .store import check_generation
from .versions import Version

_MAX_SOURCES = 32


async def get(call: Call) -> web.StreamResponse:
    """GET /b/BUCKET/o/OBJECT, the metadata or with alt=media the bytes."""
    _, bucket, _, name = call.parts
    if call.is_media:
        return await download(call, bucket, name)
    version = call.store.find(bucket, name, check_generation(call.query.get("generation")))
    Preconditions.from_query(call.query).check_read(version)
    check_etags(call, version, version.etag)
    return respond(call, object_resource(version, call.base, full=wants_full(call.query)))


async def list_all(call: Call) -> web.Response:
    """GET /b/BUCKET/o."""
    query = call.query
    if query.get("matchGlob") and query.get("delimiter", "/") != "/":
        raise invalid("matchGlob can only be used with delimiter '/'", location="delimiter")
    wanted = Query(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start=query.get("startOffset", ""),
        end=query.get("endOffset", ""),
        trailing_delimiter=call.flag("includeTrailingDelimiter"),
        glob=query.get("matchGlob", ""),
        limit=page_size(call),
        token=query.get("pageToken", ""),
    )
    page = call.store.list(call.parts[1], wanted, versions=call.flag("versions"))
    if call.flag(
        "softDeleted"
    ):  # nothing is ever kept that way here; the bucket has to be there all the same
        page = Page()
    return respond(call, _page_resource(call, page))


def _page_resource(call: Call, page: Page) -> dict[str, Any]:
    full = wants_full(call.query)
    resource: dict[str, Any] = {"kind": "storage#objects"}
    if page.token:
        resource["nextPageToken"] = page.token
    if page.prefixes:
        resource["prefixes"] = page.prefixes
    if page.items:
        resource["items"] = [object_resource(version, call.base, full=full) for version in page.items]
    return resource


async def patch(call: Call) -> web.Response:
    """PATCH /b/BUCKET/o/OBJECT: change the given fields."""
    given = await call.json()
    return await _change(call, lambda before: object_settings(given, before))


async def update(call: Call) -> web.Response:
    """PUT /b/BUCKET/o/OBJECT: replace all that may be set."""
    given = await call.json()

    def replaced(before: dict[str, Any]) -> dict[str, Any]:
        settings = object_settings({"storageClass": before.get("storageClass"), **given})
        check_custom_time(settings.get("customTime"), before.get("customTime"))
        return settings

    return await _change(call, replaced)


async def _change(call: Call, change: Any) -> web.Response:
    _, bucket, _, name = call.parts
    generation = check_generation(call.query.get("generation"))
    version = call.store.change(bucket, name, generation, Preconditions.from_query(call.query), change)
    return respond(call, object_resource(version, call.base, full=wants_full(call.query)))


async def delete(call: Call) -> web.Response:
    """DELETE /b/BUCKET/o/OBJECT."""
    _, bucket, _, name = call.parts
    generation = check_generation(call.query.get("generation"))
    call.store.delete(bucket, name, generation, Preconditions.from_query(call.query))
    return web.Response(status=204)


async def compose(call: Call) -> web.Response:
    """POST /b/BUCKET/o/OBJECT/compose."""
    _, bucket, _, name, _ = call.parts
    request = await call.json()
    sources = sources_of(call, bucket, request.get("sourceObjects"))
    given = request.get("destination") or {}
    if "contentType" not in given and (common := sources[0].settings.get("contentType")):
        given = {**given, "contentType": common}
    version = call.store.compose(
        sources,
        bucket,
        check_object(name),
        object_settings(given),
        Preconditions.from_query(call.query),
    )
    await call.hooks.created(bucket, name)
    if request.get("deleteSourceObjects"):
        for source in sources:
            call.store.delete(bucket, source.name)
    return respond(call, object_resource(version, call.base))


def sources_of(call: Call, bucket: str, listed: Any) -> list[Version]:
    """Return the objects that a composition lists, or refuse it."""
    if not isinstance(listed, list) or not listed:
        raise required("You must provide at least one source component.", location="sourceObjects")
    if len(listed) > _MAX_SOURCES:
        message = (
            f"The number of source components provided ({len(listed)}) exceeds the maximum ({_MAX_SOURCES})"
        )
        raise invalid(message)
    call.store.catalogue.bucket(bucket)
    return [_source(call, bucket, entry) for entry in listed]


def _source(call: Call, bucket: str, entry: Any) -> Version:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise required("Required", location="sourceObjects.name")
    generation = entry.get("generation")
    version = call.store.find(
        bucket, str(entry["name"]), check_generation(str(generation) if generation else None)
    )
    wanted = (entry.get("objectPreconditions") or {}).get("ifGenerationMatch")
    if wanted is not None:
        match = integer(str(wanted), "ifGenerationMatch")
        Preconditions(generation_match=match).check_write(version)
    return version


async def copy(call: Call) -> web.Response:
    """POST /b/BUCKET/o/OBJECT/copyTo/b/BUCKET/o/OBJECT."""
    version = await _copied(call)
    return respond(call, object_resource(version, call.base, full=wants_full(call.query)))


async def rewrite(call: Call) -> web.Response:
    """POST /b/BUCKET/o/OBJECT/rewriteTo/b/BUCKET/o/OBJECT.

    Copies are links here and need no second call, but `maxBytesRewrittenPerCall`
    is honoured, so that clients' loops over rewrite tokens are exercised.
    """
    source, progress = _rewrite_progress(call)
    step = _rewrite_step(call)
    done = min(progress + step, source.size)
    resource: dict[str, Any] = {
        "kind": "storage#rewriteResponse",
        "totalBytesRewritten": str(done),
        "objectSize": str(source.size),
        "done": done >= source.size,
    }
    if done < source.size:
        resource["rewriteToken"] = _token(source, done)
        return respond(call, resource)
    version = await _copied(call)
    resource["resource"] = object_resource(version, call.base, full=wants_full(call.query))
    return respond(call, resource)


def _rewrite_step(call: Call) -> int:
    text = call.query.get("maxBytesRewrittenPerCall")
    if text is None:
        return 1 << 62
    step = natural(text, "maxBytesRewrittenPerCall")
    if not step or step % (1 << 20):
        raise invalid("maxBytesRewrittenPerCall must be a multiple of 1 MiB.")
    return step


def _token(source: Version, done: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([source.generation, done]).encode()).decode()


def _rewrite_progress(call: Call) -> tuple[Version, int]:
    source = _copy_source(call)
    token = call.query.get("rewriteToken")
    if not token:
        return source, 0
    try:
        generation, done = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError):
        raise invalid("Invalid rewrite token.", location="rewriteToken") from None
    if generation != source.generation:
        raise invalid("The source object changed since the rewrite began.", location="rewriteToken")
    return source, int(done)


def _copy_source(call: Call) -> Version:
    source = call.store.find(
        call.parts[1], call.parts[3], check_generation(call.query.get("sourceGeneration"))
    )
    Preconditions.from_query(call.query, "ifSource").check_read(source)
    return source


async def _copied(call: Call) -> Version:
    source = _copy_source(call)
    bucket, name = call.parts[6], check_object(call.parts[8])
    given = await call.json()
    settings = object_settings(given) if given else dict(source.settings)
    version = call.store.copy(source, bucket, name, settings, Preconditions.from_query(call.query))
    await call.hooks.created(bucket, name)
    return version


async def move(call: Call) -> web.Response:
    """POST /b/BUCKET/o/OBJECT/moveTo/o/OBJECT."""
    _, bucket, _, _, _, _, name = call.parts
    source = _copy_source(call)
    if name == source.name:
        raise Refusal(400, "invalid", "The source and destination object names are the same.")
    version = call.store.move(source, check_object(name), Preconditions.from_query(call.query))
    await call.hooks.created(bucket, name)
    return respond(call, object_resource(version, call.base))
