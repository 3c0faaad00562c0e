"""One request, taken apart: which API, which path, which parameters."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from .faults import Fault
from .hooks import Hooks
from .refusals import Refusal, invalid
from .store import Store

_JSON_PREFIXES = {
    ("storage", "v1"): "metadata",
    ("upload", "storage", "v1"): "upload",
    ("resumable", "upload", "storage", "v1"): "upload",
    ("download", "storage", "v1"): "download",
    ("batch", "storage", "v1"): "batch",
    ("batch",): "batch",
}
_MAX_METADATA = 1 << 20


class Call:
    """A request to one of the two APIs.

    `kind` is "xml", or for the JSON API "metadata", "upload", "download" or
    "batch"; `parts` are the decoded path segments behind the API's prefix.
    """

    __slots__ = (
        "_body",
        "base",
        "fault",
        "headers",
        "hooks",
        "kind",
        "method",
        "parts",
        "query",
        "request",
        "store",
    )

    def __init__(
        self,
        store: Store,
        hooks: Hooks,
        *,
        method: str,
        target: str,
        headers: Mapping[str, str],
        base: str,
        request: web.Request | None = None,
        body: bytes = b"",
    ) -> None:
        self.store, self.hooks, self.method, self.headers = store, hooks, method, headers
        self.base, self.request, self._body = base, request, body
        self.fault: Fault | None = None
        path, _, query = target.partition("?")
        self.query = parse_query(query) if query else {}
        if not path.startswith("/"):  # absolute form, as a proxy is asked
            path = "/" + [*path.split("/", 3), ""][3]
        self.kind, self.parts = _split(path)

    @classmethod
    def of(cls, request: web.Request, store: Store, hooks: Hooks) -> Call:
        """Take a request apart. Links are made from the address the client used."""
        base = f"{request.scheme}://{request.host}"
        return cls(
            store,
            hooks,
            method=request.method,
            target=request.raw_path,
            headers=request.headers,
            base=base,
            request=request,
        )

    def flag(self, name: str) -> bool:
        """Whether a boolean parameter is set; google-cloud-storage writes "True"."""
        return self.query.get(name, "").lower() == "true"

    @property
    def length(self) -> int | None:
        """The body's length, where the client says it."""
        return self.request.content_length if self.request is not None else len(self._body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        if self.request is None:
            yield self._body
            return
        content = self.request.content
        while not content.at_eof():
            chunk, _ = await content.readchunk()  # as received, without joining chunks
            if self.fault is not None and self.fault.bandwidth:
                await asyncio.sleep(len(chunk) / self.fault.bandwidth)
            if chunk:
                yield chunk

    @property
    def is_media(self) -> bool:
        """Whether the bytes of an object are asked for."""
        return self.kind == "download" or self.query.get("alt") == "media"

    async def json(self) -> dict[str, Any]:
        """Return the JSON object in the body, or {} when there is no body."""
        body = await self.body(_MAX_METADATA)
        return parse_json(body)

    async def body(self, limit: int = _MAX_METADATA) -> bytes:
        """Return a small body, unzipped."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise Refusal(413, "uploadTooLarge", "Request entity too large", code="EntityTooLarge")
        if self.kind != "xml" and self.headers.get("Content-Encoding") == "gzip":
            try:
                return gzip.decompress(body)
            except (OSError, EOFError, zlib.error):
                raise invalid("Request body is not valid gzip.") from None
        return bytes(body)


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; anything else is refused as the cloud's parser does."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except ValueError:
        raise Refusal(400, "parseError", "Parse Error") from None
    if value is None:  # Google's Go client writes an absent resource as null
        return {}
    if not isinstance(value, dict):
        raise Refusal(400, "parseError", "Parse Error")
    return value


def parse_query(query: str) -> dict[str, str]:
    """Parse a query string; of a repeated parameter the last one counts."""
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise invalid("Request parameters are not valid UTF-8.") from None


def decode(text: str) -> str:
    """Undo percent-encoding; what is not UTF-8 then is refused."""
    if "%" not in text and text.isascii():
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise invalid("The object name is not valid UTF-8.", code="InvalidURI") from None


def _split(path: str) -> tuple[str, list[str]]:
    raw = path[1:].split("/")
    for length in (2, 3, 4, 1):
        kind = _JSON_PREFIXES.get(tuple(raw[:length]))
        if kind:
            return kind, [decode(part) for part in raw[length:] if part]
    bucket, slash, name = path[1:].partition("/")
    return "xml", [decode(bucket), decode(name)] if slash and name else [decode(bucket)] if bucket else []
