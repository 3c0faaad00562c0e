"""Keeps web pages out: a job runs commands, so no page in a browser may create one.

A page of another site can send a request to loopback, and by DNS rebinding even
read the answer. So the Host header must be a loopback name (or one that was
allowed), a foreign Origin is refused, and bodies must be JSON, which no form
can send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web


def host_of(header: str) -> str:
    """The host name of a Host header or an origin, without its port."""
    return urlsplit(header if "//" in header else f"//{header}").hostname or ""


def is_loopback(host: str) -> bool:
    """Whether a name is this machine by definition."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(request: web.BaseRequest, allowed: Collection[str]) -> str:
    """Why a request is refused; empty when it is not."""
    host = host_of(request.headers.get("Host", ""))
    if not is_loopback(host) and host not in allowed:
        return f"the host name {host!r} is not allowed; start with --allow-host {host}"
    origin = request.headers.get("Origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("Host", ""):
        return "requests from web pages of other origins are refused"
    if request.can_read_body and request.content_type not in ("application/json", "application/octet-stream"):
        return f"the content type {request.content_type!r} is refused; send application/json"
    return ""
