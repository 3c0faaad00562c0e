"""Where the rest of the local stack looks in: objects that appear, requests to be disturbed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from .faults import Fault

log = logging.getLogger(__name__)

OnObjectCreated = Callable[[str, str], Awaitable[None]]
BeforeRequest = Callable[[web.Request], Awaitable["web.StreamResponse | Fault | None"]]


@dataclass
class Hooks:
    """Callbacks of the server.

    Args:
        on_object_created: awaited with (bucket, name) when an object is there,
            before the client hears of it.
        before_request: awaited with each request; may answer it itself, or
            return a `Fault` to be inflicted on it.
    """

    on_object_created: OnObjectCreated | None = None
    before_request: BeforeRequest | None = None

    async def created(self, bucket: str, name: str) -> None:
        """Tell that an object is there; a failing callback does not fail the upload."""
        if self.on_object_created is None:
            return
        try:
            await self.on_object_created(bucket, name)
        except Exception:
            log.exception("on_object_created failed for gs://%s/%s", bucket, name)
