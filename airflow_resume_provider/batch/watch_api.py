"""The three reads that watching needs, without blocking the loop, over gRPC or REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from google.cloud.batch_v1 import BatchServiceAsyncClient, BatchServiceClient, Job, Task

PAGE_SIZE = 1000  # the API may answer with fewer
CALL_TIMEOUT = 30.0
# The specs of jobs are what makes a listing heavy; watching needs none of them.
LIST_MASK = "jobs.name,jobs.uid,jobs.status,jobs.labels,nextPageToken"
FIELD_MASK_HEADER = "x-goog-fieldmask"


class WatchApi(Protocol):
    """What the watcher asks of Google Cloud Batch."""

    calls: int

    async def list_jobs(self, parent: str, label_filter: str) -> tuple[list[Job], int]:
        """Return the jobs, with their specs masked out, and how many pages they came in."""

    async def get_job(self, name: str) -> Job:
        """Return one job."""

    async def list_tasks(self, name: str) -> Sequence[Task]:
        """Return the tasks of a job."""

    async def close(self) -> None:
        """Give connections back."""


def _listing(parent: str, label_filter: str) -> dict[str, Any]:
    return {"parent": parent, "filter": label_filter, "page_size": PAGE_SIZE}


def _group(name: str) -> dict[str, Any]:
    return {"parent": f"{name}/taskGroups/group0"}


class GrpcWatchApi:
    """Over the asynchronous client."""

    def __init__(self, client: BatchServiceAsyncClient) -> None:
        self._client = client
        self.masked = True
        self.calls = 0

    def _options(self, *, masked: bool = False) -> dict[str, Any]:
        metadata = [(FIELD_MASK_HEADER, LIST_MASK)] if masked else []
        return {"timeout": CALL_TIMEOUT, "retry": None, "metadata": metadata}

    async def list_jobs(self, parent: str, label_filter: str) -> tuple[list[Job], int]:
        """Return the jobs of all pages."""
        pager = await self._client.list_jobs(
            request=_listing(parent, label_filter), **self._options(masked=self.masked)
        )
        jobs: list[Job] = []
        pages = 0
        async for page in pager.pages:
            jobs.extend(page.jobs)
            pages += 1
        self.calls += pages
        return jobs, pages

    async def get_job(self, name: str) -> Job:
        """Return one job."""
        self.calls += 1
        return await self._client.get_job(request={"name": name}, **self._options())

    async def list_tasks(self, name: str) -> Sequence[Task]:
        """Return the tasks of a job."""
        self.calls += 1
        pager = await self._client.list_tasks(request=_group(name), **self._options())
        return [task async for task in pager]

    async def close(self) -> None:
        """Close the channel."""
        await self._client.transport.close()


class ThreadedWatchApi:
    """Over the synchronous client in threads, for servers that speak REST only."""

    def __init__(self, client: BatchServiceClient) -> None:
        self._client = client
        self.masked = True
        self.calls = 0

    async def _call(self, work: Callable[[], Any]) -> Any:
        self.calls += 1
        return await asyncio.to_thread(work)

    async def list_jobs(self, parent: str, label_filter: str) -> tuple[list[Job], int]:
        """Return the jobs of all pages."""
        metadata = [(FIELD_MASK_HEADER, LIST_MASK)] if self.masked else []

        def work() -> list[list[Job]]:
            pager = self._client.list_jobs(
                request=_listing(parent, label_filter), timeout=CALL_TIMEOUT, retry=None, metadata=metadata
            )
            return [list(page.jobs) for page in pager.pages]

        pages = await self._call(work)
        return [job for page in pages for job in page], len(pages)

    async def get_job(self, name: str) -> Job:
        """Return one job."""
        return await self._call(
            lambda: self._client.get_job(request={"name": name}, timeout=CALL_TIMEOUT, retry=None)
        )

    async def list_tasks(self, name: str) -> Sequence[Task]:
        """Return the tasks of a job."""
        return await self._call(
            lambda: list(self._client.list_tasks(request=_group(name), timeout=CALL_TIMEOUT, retry=None))
        )

    async def close(self) -> None:
        """Close the session."""
        await asyncio.to_thread(self._client.transport.close)
