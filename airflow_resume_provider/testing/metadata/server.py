"""One VM's metadata server: the paths that training code and google-auth ask for.

As on Compute Engine: plain HTTP, the header `Metadata-Flavor: Google` is
required, directories end in `/`, `?wait_for_change=true` waits for the value to
change (with `last_etag` and `timeout_sec`), `?recursive=true` gives JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_TOKEN_SECONDS = 3599
_ROOT = "/computeMetadata/v1/"


@dataclass(frozen=True)
class Identity:
    """What a VM knows about itself."""

    project: str
    project_number: str
    zone: str
    instance_id: str
    hostname: str
    machine_type: str = "e2-standard-4"
    provisioning: str = "STANDARD"
    service_account: str = ""
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)
    tags: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def email(self) -> str:
        """The service account, by default Compute Engine's own."""
        return self.service_account or f"{self.project_number}-compute@developer.gserviceaccount.com"


class MetadataServer:
    """Serves one VM's metadata on a loopback port of its own."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.tree: dict[str, Any] = _tree(identity)
        self.silent = self._stopped = False
        self.requests: list[str] = []
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """`host:port`, the form of GCE_METADATA_HOST."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> MetadataServer:
        """Listen on a free port."""
        self._http = web.Server(self._answer, access_log=None)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        # Nothing is awaited until the server is held, so a cancelled start can be stopped.
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._http, sock=listener, start_serving=False)
        await self._server.start_serving()
        return self

    async def stop(self) -> None:
        """Stop listening and drop whoever waits."""
        self._stopped = True
        async with self._changed:
            self._changed.notify_all()
        if self._server and self._http:
            self._server.close()
            await self._http.shutdown(0.01)
            await self._server.wait_closed()
            self._server = None

    async def set(self, path: str, value: Any) -> None:
        """Change a value and wake whoever waits for it; `path` is like "instance/preempted"."""
        *folders, leaf = path.split("/")
        node = self.tree
        for folder in folders:
            node = node[folder]
        node[leaf] = value
        async with self._changed:
            self._changed.notify_all()

    async def preempt(self) -> None:
        """Give the preemption notice."""
        await self.set("instance/preempted", "TRUE")

    async def maintain(self, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Announce a maintenance event; "NONE" ends it."""
        await self.set("instance/maintenance-event", event)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.silent:
            # As seen in the field after a notice: the connection is taken, no answer ever comes.
            async with self._changed:
                await self._changed.wait_for(lambda: self._stopped)
            return _dropped(request)
        if request.path == "/":
            return _text("computeMetadata/\n")
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return _text("Missing Metadata-Flavor:Google header.\n", 403)
        if not request.path.startswith(_ROOT):
            return _text("Not found\n", 404)
        try:
            return await self._value(request, request.path.removeprefix(_ROOT))
        except KeyError:
            return _text("Not found\n", 404)

    async def _value(self, request: web.BaseRequest, path: str) -> web.Response:
        query = request.query
        if query.get("wait_for_change", "").lower() == "true":
            await self._wait(path, query.get("last_etag", ""), float(query.get("timeout_sec", 0) or 0))
            if self._stopped:
                return _dropped(request)
        value = self._find(path, request)
        if isinstance(value, dict) and query.get("recursive", "").lower() == "true":
            return _json(value)
        if isinstance(value, dict):
            if path and not path.endswith("/"):
                return web.Response(status=301, headers={**FLAVOR, "Location": request.path + "/"})
            names = [name + "/" if isinstance(child, dict) else name for name, child in value.items()]
            return _text("\n".join(names) + "\n")
        if query.get("alt") == "json" and not callable(value):
            return _json(value)
        return value() if callable(value) else _text(str(value))

    def _find(self, path: str, request: web.BaseRequest) -> Any:
        node: Any = self.tree
        for part in [part for part in path.split("/") if part]:
            if not isinstance(node, dict):
                raise KeyError(path)
            if part == "token" and "email" in node:
                return lambda: _json(_token(self.identity))
            if part == "identity" and "email" in node:
                return lambda: _identity_token(self.identity, request.query.get("audience", ""))
            node = node[part]
        return node

    async def _wait(self, path: str, last_etag: str, timeout: float) -> None:
        seen = last_etag or etag(self._find_plain(path))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout or None), self._changed:
                await self._changed.wait_for(lambda: self._stopped or etag(self._find_plain(path)) != seen)

    def _find_plain(self, path: str) -> Any:
        node: Any = self.tree
        for part in [part for part in path.split("/") if part]:
            if not isinstance(node, dict):
                raise KeyError(path)
            node = node[part]
        return node


def etag(value: Any) -> str:
    """Sixteen hex digits that change whenever the value does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _dropped(request: web.BaseRequest) -> web.Response:
    """Cut a connection: what a machine that is gone answers is nothing, so nobody gets this response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


def _text(text: str, status: int = 200) -> web.Response:
    headers = {**FLAVOR, "ETag": etag(text)}
    return web.Response(text=text, status=status, headers=headers, content_type="application/text")


def _json(value: Any) -> web.Response:
    return web.json_response(value, headers={**FLAVOR, "ETag": etag(value)})


def _token(identity: Identity) -> dict[str, Any]:
    return {
        "access_token": f"local-{identity.instance_id}-{int(time.time())}",
        "expires_in": _TOKEN_SECONDS,
        "token_type": "Bearer",
    }


def _identity_token(identity: Identity, audience: str) -> web.Response:
    if not audience:
        return _text("non-empty audience parameter required\n", 400)
    # Shaped like a JWT, and signed by nobody: it can authenticate nothing.
    return _text(f"local.{hashlib.sha256((identity.email + audience).encode()).hexdigest()}.unsigned")


def _tree(identity: Identity) -> dict[str, Any]:
    account = {
        "aliases": "default",
        "email": identity.email,
        "scopes": "\n".join(identity.scopes) + "\n",
    }
    spot = identity.provisioning in ("SPOT", "PREEMPTIBLE")
    zone = f"projects/{identity.project_number}/zones/{identity.zone}"
    return {
        "instance": {
            "attributes": dict(identity.attributes),
            "hostname": identity.hostname,
            "id": identity.instance_id,
            "machine-type": f"projects/{identity.project_number}/machineTypes/{identity.machine_type}",
            "maintenance-event": "NONE",
            "name": identity.hostname.split(".")[0],
            "preempted": "FALSE",
            "scheduling": {
                "automatic-restart": "FALSE" if spot else "TRUE",
                "on-host-maintenance": "TERMINATE" if spot else "MIGRATE",
                "preemptible": "TRUE" if spot else "FALSE",
            },
            "service-accounts": {"default": account, identity.email: dict(account)},
            "tags": json.dumps(list(identity.tags)),
            "zone": zone,
        },
        "project": {
            "attributes": {},
            "numeric-project-id": identity.project_number,
            "project-id": identity.project,
        },
    }
