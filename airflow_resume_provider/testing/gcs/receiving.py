"""Taking in the body of an upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import web

from .blobs import SMALL
from .refusals import Refusal

Write = Callable[[list[bytes]], None]


async def receive(write: Write, chunks: AsyncIterator[bytes]) -> None:
    """Write what comes in; a body that breaks off becomes a refusal, never an object.

    Checksums and writing cost more than receiving, so from 1 MiB up they run
    in a thread beside it.
    """
    pending: asyncio.Future[None] | None = None
    batch: list[bytes] = []
    size = 0
    try:
        async for chunk in chunks:
            batch.append(chunk)
            size += len(chunk)
            if size >= SMALL:
                if pending is not None:
                    await pending
                pending = asyncio.get_running_loop().run_in_executor(None, write, batch)
                batch, size = [], 0
    except (web.PayloadAccessError, web.RequestPayloadError, aiohttp.ClientError, ConnectionError) as error:
        raise Refusal(400, "invalid", "The request body ended early.", code="IncompleteBody") from error
    finally:
        if pending is not None:
            await asyncio.shield(pending)
    write(batch)
