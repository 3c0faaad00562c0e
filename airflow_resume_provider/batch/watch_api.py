"""The three reads that watching needs, without blocking the loop, over gRPC or REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow_resume_provider.batch.events import raw

if TYPE_CHECKING:
    from google.cloud.batch_v1 import BatchServiceAsyncClient, BatchServiceClient

PAGE_SIZE = 1000  # the API may answer with fewer
CALL_TIMEOUT = 30.0
# The specs of jobs are what makes a listing heavy; watching needs none of them.
# https://cloud.google.com/apis/docs/system-parameters
LIST_MASK = "jobs.name,jobs.uid,jobs.status,nextPageToken"
FIELD_MASK_HEADER = "x-goog-fieldmask"

Page = Sequence[Any]  # the jobs of one page, below the client's wrappers


class WatchApi(Protocol):
    """What the watcher asks of Google Cloud Batch."""

    def list_jobs(self, parent: str, label_filter: str) -> AsyncIterator[Page]:
        """Yield the jobs page by page, without their specs where the server can leave those out."""

    async def get_job(self, name: str) -> Any:
        """Return one job."""

    async def list_tasks(self, name: str) -> Sequence[Any]:
        """Return the tasks of a job."""

    async def close(self) -> None:
        """Give connections back."""


def _listing(parent: str, label_filter: str) -> dict[str, Any]:
    return {"parent": parent, "filter": label_filter, "page_size": PAGE_SIZE}


def _group(name: str) -> dict[str, Any]:
    return {"parent": f"{name}/taskGroups/group0"}


class _Masking:
    """Options of a call; a server that refuses the field mask is not asked for it again."""

    def __init__(self) -> None:
        self._masked = True

    def options(self, *, listing: bool = False) -> dict[str, Any]:
        masked = listing and self._masked
        metadata = [(FIELD_MASK_HEADER, LIST_MASK)] if masked else []
        return {"timeout": CALL_TIMEOUT, "retry": None, "metadata": metadata}

    def refused(self, error: Exception) -> bool:
        from google.api_core.exceptions import BadRequest

        was, self._masked = self._masked, self._masked and not isinstance(error, BadRequest)
        return was and not self._masked


class GrpcWatchApi:
    """Over the asynchronous client."""

    def __init__(self, client: BatchServiceAsyncClient) -> None:
        self._client = client
        self._masking = _Masking()

    async def list_jobs(self, parent: str, label_filter: str) -> AsyncIterator[Page]:
        """Yield page after page."""
        request = _listing(parent, label_filter)
        try:
            pager = await self._client.list_jobs(request=request, **self._masking.options(listing=True))
        except Exception as error:
            if not self._masking.refused(error):
                raise
            pager = await self._client.list_jobs(request=request, **self._masking.options(listing=True))
        async for page in pager.pages:
            yield raw(page).jobs

    async def get_job(self, name: str) -> Any:
        """Return one job."""
        return raw(await self._client.get_job(request={"name": name}, **self._masking.options()))

    async def list_tasks(self, name: str) -> Sequence[Any]:
        """Return the tasks of a job."""
        pager = await self._client.list_tasks(request=_group(name), **self._masking.options())
        return [task async for task in pager]

    async def close(self) -> None:
        """Close the channel."""
        transport: Any = self._client.transport
        await transport.close()


class ThreadedWatchApi:
    """Over the synchronous client in threads, for servers that speak REST only."""

    def __init__(self, client: BatchServiceClient) -> None:
        self._client = client
        self._masking = _Masking()

    async def list_jobs(self, parent: str, label_filter: str) -> AsyncIterator[Page]:
        """Yield the pages, which are fetched together."""
        request = _listing(parent, label_filter)

        def work() -> list[Page]:
            pager = self._client.list_jobs(request=request, **self._masking.options(listing=True))
            return [raw(page).jobs for page in pager.pages]

        try:
            pages = await asyncio.to_thread(work)
        except Exception as error:
            if not self._masking.refused(error):
                raise
            pages = await asyncio.to_thread(work)
        for page in pages:
            yield page

    async def get_job(self, name: str) -> Any:
        """Return one job."""
        return raw(await self._call(lambda o: self._client.get_job(request={"name": name}, **o)))

    async def list_tasks(self, name: str) -> Sequence[Any]:
        """Return the tasks of a job."""
        return list(await self._call(lambda o: list(self._client.list_tasks(request=_group(name), **o))))

    async def _call(self, work: Callable[[dict[str, Any]], Any]) -> Any:
        return await asyncio.to_thread(work, self._masking.options())

    async def close(self) -> None:
        """Close the session."""
        await asyncio.to_thread(self._client.transport.close)
