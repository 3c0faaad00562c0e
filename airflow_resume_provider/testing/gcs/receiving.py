"""Taking in the body of an upload."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from .blobs import Writer
from .refusals import Refusal


async def receive(writer: Writer, chunks: AsyncIterator[bytes]) -> None:
    """Write what comes in; a body that breaks off becomes a refusal, never an object."""
    try:
        async for chunk in chunks:
            writer.write(chunk)
    except web.PayloadAccessError as error:
        raise Refusal(400, "invalid", "The request body ended early.", code="IncompleteBody") from error
