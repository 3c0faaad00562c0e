"""Many small calls in one request: multipart/mixed of application/http."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDict

from .call import Call
from .refusals import Refusal, invalid

_MAX_CALLS = 100
_MAX_BODY = 10 << 20

Answer = Callable[[Call], Awaitable[web.StreamResponse]]


async def batch(call: Call, answer: Answer) -> web.Response:
    """Answer each call of the batch with `answer`, in order; one that fails does not stop the rest."""
    match = re.search(r'boundary="?([^";]+)"?', call.headers.get("Content-Type", ""))
    if match is None:
        raise invalid("Failed to parse batch request: no boundary.")
    parts = _parts(await call.body(_MAX_BODY), match.group(1).encode())
    if len(parts) > _MAX_CALLS:
        raise invalid(f"The batch request could not be parsed: more than {_MAX_CALLS} calls.")
    boundary = f"batch_{secrets.token_hex(16)}"
    body = b"".join([await _answer_part(call, part, boundary, answer) for part in parts])
    body += f"--{boundary}--\r\n".encode()
    return web.Response(body=body, headers={"Content-Type": f"multipart/mixed; boundary={boundary}"})


def _parts(body: bytes, boundary: bytes) -> list[bytes]:
    pieces = re.split(rb"(?:^|\r?\n)--" + re.escape(boundary) + rb"(?:--)?[ \t]*(?:\r?\n|$)", body)
    return [piece for piece in pieces if piece.strip()]


async def _answer_part(call: Call, part: bytes, boundary: str, answer: Answer) -> bytes:
    outer, _, inner = re.sub(rb"\r?\n", b"\r\n", part).partition(b"\r\n\r\n")
    identity = BytesParser(policy=HTTP).parsebytes(outer.lstrip() + b"\r\n\r\n").get("Content-ID", "")
    try:
        response = await answer(_inner_call(call, inner))
    except Refusal as refusal:
        response = web.Response(
            status=refusal.status, text=refusal.as_json(), content_type="application/json"
        )
    return _render(response, identity, boundary)


def _inner_call(call: Call, raw: bytes) -> Call:
    line, _, rest = raw.lstrip().partition(b"\r\n")
    head, _, body = rest.partition(b"\r\n\r\n")
    words = line.decode().split()
    if len(words) < 2:
        raise invalid("Failed to parse a call of the batch request.")
    parsed = BytesParser(policy=HTTP).parsebytes(head + b"\r\n\r\n")
    address = urlsplit(words[1])
    target = address.path + (f"?{address.query}" if address.query else "")
    inner = Call(
        call.store,
        call.hooks,
        method=words[0],
        target=target,
        headers=CIMultiDict((key, str(value)) for key, value in parsed.items()),
        base=call.base,
        body=body,
    )
    if inner.kind != "metadata" or inner.is_media:
        raise invalid("Uploads and downloads of media are not supported in a batch.")
    return inner


def _render(response: web.StreamResponse, identity: str, boundary: str) -> bytes:
    body = response.body if isinstance(response, web.Response) and isinstance(response.body, bytes) else b""
    answered = "<response-" + identity.lstrip("<") if identity else ""
    head = [f"--{boundary}", "Content-Type: application/http"]
    head += [f"Content-ID: {answered}"] if answered else []
    head += ["", f"HTTP/1.1 {response.status} {response.reason or 'OK'}", f"Content-Length: {len(body)}"]
    if body:
        head.append(f"Content-Type: {response.headers.get('Content-Type', 'application/json')}")
    if "ETag" in response.headers:
        head.append(f"ETag: {response.headers['ETag']}")
    return "\r\n".join([*head, "", ""]).encode() + body + b"\r\n"
