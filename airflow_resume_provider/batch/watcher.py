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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_resume_provider.attempts.observation import GONE, JobSeen
from airflow_resume_provider.batch import labels
from airflow_resume_provider.batch.retrying import passing

if TYPE_CHECKING:
    from google.cloud.batch_v1 import Job

    from airflow_resume_provider.batch.watch_api import WatchApi

log = logging.getLogger(__name__)

NOT_FOUND_GRACE = 300.0  # a job may not be found for minutes after its creation, and at scale
ERROR_BUDGET = 600.0  # looking may fail for so long while the job runs on
DENIALS = 3  # errors in a row that do not pass by themselves
AT_ONCE = 16  # single reads in flight


@dataclass(eq=False)
class Subscription:
    """One trigger's interest in one job; `changed` is set whenever there is news."""

    job_name: str
    day: str
    interval: float
    error_budget: float = ERROR_BUDGET
    not_found_grace: float = NOT_FOUND_GRACE
    seen: JobSeen | None = None
    error: Exception | None = None  # why the last look failed
    failing_since: float = 0.0
    missing_since: float = 0.0
    looks: int = 0
    denials: int = 0
    given_up: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, seen: JobSeen) -> None:
        """Take in a successful look."""
        before, self.seen = self.seen, seen
        self.looks += 1
        self._sound()
        if seen.state != GONE:
            self.missing_since = 0.0
        if before is None or _differs(before, seen):
            self.changed.set()

    def missing(self, now: float) -> None:
        """Take in that the API does not know the job; only after a while does that mean it is gone."""
        self.missing_since = self.missing_since or now
        deleting = self.seen is not None and self.seen.state == "DELETION_IN_PROGRESS"
        if deleting or now - self.missing_since >= self.not_found_grace:
            self.tell(JobSeen(name=self.job_name, state=GONE))
        self._sound()

    def failed(self, error: Exception, now: float) -> None:
        """Take in that a look failed; only a spent budget is news."""
        self.error = error
        self.failing_since = self.failing_since or now
        self.denials = 0 if passing(error) else self.denials + 1
        if self.denials >= DENIALS or now - self.failing_since >= self.error_budget:
            self.given_up = True
            self.changed.set()

    def _sound(self) -> None:
        self.error, self.failing_since, self.denials = None, 0.0, 0


def _differs(before: JobSeen, after: JobSeen) -> bool:
    return (before.state, before.failed_tasks, len(before.events)) != (
        after.state,
        after.failed_tasks,
        len(after.events),
    )


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
        self.api: WatchApi | None = None

    def __repr__(self) -> str:
        return f"JobWatcher({self.parent!r}, {len(self)} jobs)"

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, subscription: Subscription) -> Subscription:
        """Begin to watch a job; the first look comes at once."""
        self._subscriptions.setdefault(subscription.job_name, []).append(subscription)
        self._soon.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=repr(self))
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End it; with the last one the loop ends and its connection is closed."""
        group = self._subscriptions.get(subscription.job_name, [])
        if subscription in group:
            group.remove(subscription)
        if not group:
            self._subscriptions.pop(subscription.job_name, None)
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
        if len(group) <= self._pages.get(day, 1):
            await self._look_singly(api, group)
            return
        jobs, self._pages[day] = await api.list_jobs(self.parent, f'labels.{labels.DAY}="{day}"')
        listed = {job.name: job for job in jobs}
        absent = [s for s in group if not self._told(s, listed)]
        await self._look_singly(api, absent)

    def _told(self, subscription: Subscription, listed: dict[str, Job]) -> bool:
        from airflow_resume_provider.batch.events import job_seen

        job = listed.get(subscription.job_name)
        if job is not None:
            subscription.tell(job_seen(job))
        return job is not None

    async def _look_singly(self, api: WatchApi, group: list[Subscription]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(subscription: Subscription) -> None:
            async with limit:
                await self._look_at(api, subscription)

        await asyncio.gather(*(one(s) for s in group))

    async def _look_at(self, api: WatchApi, subscription: Subscription) -> None:
        from google.api_core.exceptions import NotFound

        from airflow_resume_provider.batch.events import job_seen

        try:
            subscription.tell(job_seen(await api.get_job(subscription.job_name)))
        except NotFound:
            subscription.missing(self._clock())
        except Exception as error:
            subscription.failed(error, self._clock())

    def _all_failed(self, group: list[Subscription], error: Exception) -> None:
        level = logging.INFO if passing(error) else logging.WARNING
        log.log(level, "Looking at %d jobs of %s failed: %r", len(group), self.parent, error)
        for subscription in group:
            subscription.failed(error, self._clock())


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
