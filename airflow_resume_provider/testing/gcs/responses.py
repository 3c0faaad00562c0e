"""Answers of the JSON API."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from .call import Call
from .preconditions import natural
from .projection import project
from .resources import object_resource, wants_full
from .versions import Version


def respond(call: Call, resource: Any, status: int = 200) -> web.Response:
    """Return a JSON response, reduced to the `fields` that were asked for."""
    body = json.dumps(project(resource, call.query.get("fields")), ensure_ascii=False).encode()
    headers = {"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"}
    if isinstance(resource, dict) and "etag" in resource:
        headers["ETag"] = resource["etag"]
    return web.Response(
        status=status, body=body, headers=headers, content_type="application/json", charset="UTF-8"
    )


def page_size(call: Call, parameter: str = "maxResults") -> int:
    """Return how many entries fit one page: at most 1,000, whatever the client asks."""
    return min(natural(call.query.get(parameter, "1000"), parameter) or 1000, 1000)


async def created(call: Call, version: Version) -> web.Response:
    """Tell the hooks, then the client."""
    await call.hooks.created(version.bucket, version.name)
    resource = object_resource(version, call.base, full=wants_full(call.query))
    response = respond(call, resource)
    response.headers["x-goog-hash"] = f"crc32c={resource['crc32c']}"
    return response
