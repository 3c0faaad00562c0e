"""Buckets and their listings over the XML API."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from aiohttp import web

from .call import Call
from .listing import Page, Query, page_token
from .names import check_bucket
from .preconditions import natural
from .refusals import invalid
from .settings import bucket_settings
from .versions import Version, timestamp
from .xml_documents import document, element


async def list_objects(call: Call) -> web.Response:
    """GET /BUCKET, both versions of the listing."""
    query, second, versions = call.query, "list-type" in call.query, "versions" in call.query
    if query.get("list-type", "2") != "2" or (second and versions):
        raise invalid(f"Invalid list-type: '{query['list-type']}'")
    wanted = Query(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start_after=query.get("start-after", "") if second else query.get("marker", ""),
        limit=min(natural(query.get("max-keys", "1000"), "max-keys"), 1000),
        token=query.get("continuation-token", "") if second else _marked(query),
    )
    page = call.store.list(call.parts[0], wanted, versions=versions) if wanted.limit else Page()
    return document("ListBucketResult", *_listing(call, wanted, page, second))


def _marked(query: dict[str, str]) -> str:
    """Return where a listing of versions goes on: after one generation of a name."""
    if "versions" not in query or not query.get("generation-marker"):
        return ""
    return page_token(query.get("marker", ""), natural(query["generation-marker"], "generation-marker"))


def _listing(call: Call, wanted: Query, page: Page, second: bool) -> list[str]:
    quoted = _quoter(call.query.get("encoding-type"))
    parts = [element("Name", call.parts[0]), element("Prefix", quoted(wanted.prefix))]
    if wanted.delimiter:
        parts.append(element("Delimiter", quoted(wanted.delimiter)))
    parts += [element("MaxKeys", wanted.limit), element("IsTruncated", str(bool(page.token)).lower())]
    if second:
        parts.append(element("KeyCount", len(page)))
        parts += [element("NextContinuationToken", page.token)] if page.token else []
    elif page.token:
        last = max([version.name for version in page.items[-1:]] + page.prefixes[-1:])
        parts.append(element("NextMarker", quoted(last)))
        if "versions" in call.query and page.items and page.items[-1].name == last:
            parts.append(element("NextGenerationMarker", page.items[-1].generation))
    parts += [_entry(version, quoted, "versions" in call.query) for version in page.items]
    parts += [
        f"<CommonPrefixes>{element('Prefix', quoted(prefix))}</CommonPrefixes>" for prefix in page.prefixes
    ]
    return parts


def _quoter(kind: str | None) -> Any:
    return (lambda text: quote(text, safe="/")) if kind == "url" else (lambda text: text)


def _entry(version: Version, quoted: Any, versions: bool) -> str:
    # Only a name and a class are texts of somebody else's; listings have a thousand of these.
    more = f"<IsLatest>{str(version.deleted is None).lower()}</IsLatest>" if versions else ""
    if version.deleted is not None:
        more += f"<DeletedTime>{timestamp(version.deleted)}</DeletedTime>"
    tag = "Version" if versions else "Contents"
    return (
        f"<{tag}>{element('Key', quoted(version.name))}<Generation>{version.generation}</Generation>"
        f"<MetaGeneration>{version.metageneration}</MetaGeneration>"
        f"<LastModified>{timestamp(version.updated)}</LastModified>"
        f"<ETag>{version.xml_etag}</ETag><Size>{version.size}</Size>"
        f"{element('StorageClass', version.storage_class)}{more}</{tag}>"
    )


async def list_buckets(call: Call) -> web.Response:
    """GET /."""
    entries = "".join(
        f"<Bucket>{element('Name', b.name)}{element('CreationDate', timestamp(b.created))}</Bucket>"
        for b in call.store.catalogue.buckets()
    )
    return document("ListAllMyBucketsResult", f"<Buckets>{entries}</Buckets>")


async def put_bucket(call: Call) -> web.Response:
    """PUT /BUCKET."""
    name, settings = check_bucket(call.parts[0]), {}
    text = (await call.body()).decode(errors="replace")
    for tag, key in (("LocationConstraint", "location"), ("StorageClass", "storageClass")):
        if match := re.search(f"<{tag}>([^<]+)</{tag}>", text):
            settings[key] = match.group(1)
    call.store.catalogue.create_bucket(name, bucket_settings(settings))
    return web.Response()


async def head_bucket(call: Call) -> web.Response:
    """HEAD /BUCKET."""
    bucket = call.store.catalogue.bucket(call.parts[0])
    return web.Response(headers={"x-goog-metageneration": str(bucket.metageneration)})


async def delete_bucket(call: Call) -> web.Response:
    """DELETE /BUCKET."""
    call.store.catalogue.bucket(call.parts[0])
    call.store.catalogue.delete_bucket(call.parts[0])
    return web.Response(status=204)
