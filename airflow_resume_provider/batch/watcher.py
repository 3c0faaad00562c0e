"""One loop per (connection, project, location) that watches jobs for all triggers of a process.

It lists the jobs by the label of the day on which they were submitted and fans
the answer out; asking for each job by itself would spend a hundred times the
calls (https://cloud.google.com/batch/quotas). Where fewer jobs are watched than
a listing has pages, asking for each is cheaper and is what it does.

Servers may ignore the filter or the field mask: names are compared again here,
and a job that the listing does not show is asked for by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_resume_provider.batch import labels
from airflow_resume_provider.batch.retrying import passing
from airflow_resume_provider.batch.subscription import Subscription

if TYPE_CHECKING:
    from airflow_resume_provider.batch.watch_api import Page, WatchApi

log = logging.getLogger(__name__)

AT_ONCE = 16  # single reads in flight


class JobWatcher:
    """Watches the jobs of one location; started by the first subscription, ended with the last."""

    def __init__(
        self,
        parent: str,
        connect: Callable[[], Awaitable[WatchApi]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.parent = parent
        self._connect = connect
        self._clock = clock
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._task: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._pages: dict[str, int] = {}
        self._lists = True
        self.api: WatchApi | None = None

    def __repr__(self) -> str:
        return f"JobWatcher({self.parent!r}, {len(self)} jobs)"

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Begin to watch a job; the first look comes at once."""
        self._subscriptions.setdefault(place(subscription.job_name), []).append(subscription)
        self._soon.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=repr(self))
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End it; with the last one the loop ends and its connection is closed."""
        group = self._subscriptions.get(place(subscription.job_name), [])
        if subscription in group:
            group.remove(subscription)
        if not group:
            self._subscriptions.pop(place(subscription.job_name), None)
        if not self._subscriptions and self._task is not None:
            self._task.cancel()
            self._task = None

    async def tasks_of(self, job_name: str) -> Any:
        """Return a job's tasks; read only for jobs that failed."""
        api = await self._connected()
        return await api.list_tasks(job_name)

    async def _connected(self) -> WatchApi:
        if self.api is None:
            self.api = await self._connect()
        return self.api

    async def _run(self) -> None:
        try:
            while self._subscriptions:
                self._soon.clear()
                await self._look()
                await self._pause()
        finally:
            api, self.api = self.api, None
            if api is not None:
                await _closed(api)

    async def _pause(self) -> None:
        """Sleep one period; a subscription that has not been looked at yet ends the sleep."""
        period = min((s.interval for g in self._subscriptions.values() for s in g), default=0.0)
        deadline = asyncio.get_running_loop().time() + period
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._soon.wait()
            except TimeoutError:
                return
            self._soon.clear()
            # A burst of new triggers shares one look.
            await asyncio.sleep(min(1.0, period / 10))
            await self._look(only_new=True)

    async def _look(self, *, only_new: bool = False) -> None:
        by_day: dict[str, list[Subscription]] = {}
        for group in self._subscriptions.values():
            for subscription in group:
                if not only_new or not subscription.looks:
                    by_day.setdefault(subscription.day, []).append(subscription)
        for day, group in by_day.items():
            try:
                await self._look_at_day(day, group)
            except Exception as error:  # whatever it is, the triggers decide, the loop goes on
                self._all_failed(group, error)

    async def _look_at_day(self, day: str, group: list[Subscription]) -> None:
        api = await self._connected()
        if len(group) <= self._pages.get(day, 1) or not self._lists:
            await self._look_singly(api, group)
        else:
            await self._look_singly(api, await self._unlisted(api, day, group))

    async def _unlisted(self, api: WatchApi, day: str, group: list[Subscription]) -> list[Subscription]:
        """List the day's jobs, tell whom they concern, and return whom no job concerned."""
        before = {subscription: subscription.looks for subscription in group}
        pages = 0
        try:
            async for page in api.list_jobs(self.parent, f'labels.{labels.DAY}="{day}"'):
                pages += 1
                self._tell(page)
                await asyncio.sleep(0)  # between pages everybody else has a turn
        except Exception as error:
            if not _cannot_list(error):
                raise
            self._lists = False
            log.warning("%s does not list jobs by label, each is asked for by itself: %r", self.parent, error)
        self._pages[day] = pages
        return [subscription for subscription in group if subscription.looks == before[subscription]]

    def _tell(self, page: Page) -> None:
        for job in page:
            for subscription in self._subscriptions.get(place(job.name), ()):
                subscription.look(job)

    async def _look_singly(self, api: WatchApi, group: list[Subscription]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(subscription: Subscription) -> None:
            async with limit:
                await self._look_at(api, subscription)

        await asyncio.gather(*(one(s) for s in group))

    async def _look_at(self, api: WatchApi, subscription: Subscription) -> None:
        from google.api_core.exceptions import NotFound

        try:
            subscription.look(await api.get_job(subscription.job_name))
        except NotFound:
            subscription.missing(self._clock())
        except Exception as error:
            subscription.failed(error, self._clock())

    def _all_failed(self, group: list[Subscription], error: Exception) -> None:
        level = logging.INFO if passing(error) else logging.WARNING
        log.log(level, "Looking at %d jobs of %s failed: %r", len(group), self.parent, error)
        for subscription in group:
            subscription.failed(error, self._clock())


def place(job_name: str) -> str:
    """Return a job's name without its project, which the API may give as an id or as a number."""
    return job_name.partition("/locations/")[2]


def _cannot_list(error: Exception) -> bool:
    from google.api_core.exceptions import BadRequest, MethodNotImplemented

    return isinstance(error, BadRequest | MethodNotImplemented)


async def _closed(api: WatchApi) -> None:
    try:
        await asyncio.wait_for(asyncio.shield(api.close()), timeout=5)
    except Exception as error:
        log.debug("Closing the connection failed: %r", error)


_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, JobWatcher]] = WeakKeyDictionary()


def watcher(key: tuple[Any, ...], parent: str, connect: Callable[[], Awaitable[WatchApi]]) -> JobWatcher:
    """Return the running loop's watcher for this key, made when there is none."""
    mine = _WATCHERS.setdefault(asyncio.get_running_loop(), {})
    if key not in mine:
        mine[key] = JobWatcher(parent, connect)
    return mine[key]
