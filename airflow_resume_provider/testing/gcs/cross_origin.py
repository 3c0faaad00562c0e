"""What browsers ask before pages of other origins may use the server."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

_JSON = (
    "/storage/v1",
    "/upload/storage/v1",
    "/resumable/upload/storage/v1",
    "/download/storage/v1",
    "/batch",
)
_EXPOSED = (
    "Content-Length, Content-Range, Content-Type, Date, ETag, Location, Range, X-Goog-Generation, "
    "X-Goog-Hash, X-Goog-Metageneration, X-GUploader-UploadID"
)


def preflight(path: str, headers: Mapping[str, str]) -> web.Response:
    """Answer OPTIONS: the JSON API allows every origin, the XML API none, as for buckets without rules."""
    allowed = allowed_origin(path, headers)
    if not allowed:
        return web.Response()
    asked = {
        "Access-Control-Allow-Methods": headers.get("Access-Control-Request-Method", ""),
        "Access-Control-Allow-Headers": headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": "3600",
    }
    return web.Response(headers=allowed | {key: text for key, text in asked.items() if text})


def allowed_origin(path: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that let a page of another origin read an answer; none for the XML API."""
    origin = headers.get("Origin")
    if origin is None or not path.startswith(_JSON):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _EXPOSED,
        "Vary": "Origin, X-Origin",
    }
