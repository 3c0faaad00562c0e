"""One trigger's interest in one job, and what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from airflow_resume_provider.attempts.observation import GONE, JobSeen
from airflow_resume_provider.batch.events import job_seen, signature
from airflow_resume_provider.batch.retrying import passing

NOT_FOUND_GRACE = 300.0  # a job may not be found for minutes after its creation, and at scale
ERROR_BUDGET = 600.0  # looking may fail for so long while the job runs on
DENIALS = 3  # errors in a row that do not pass by themselves


class News:
    """A flag that one waiter sleeps on; an `asyncio.Event` weighs as much as the rest of a subscription."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Return whether there is news."""
        return self._set

    def set(self) -> None:
        """Wake the waiter."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Begin to wait for the next."""
        self._set = False

    async def wait(self) -> None:
        """Sleep until there is news."""
        if self._set:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


@dataclass(eq=False, slots=True)
class Subscription:
    """`changed` is set whenever there is news; `given_up` when looking has failed for too long."""

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
    changed: News = field(default_factory=News)
    _signature: tuple[int, ...] = ()

    def look(self, job: Any) -> None:
        """Take in a successful look; only a difference is worth reading the whole message."""
        self.looks += 1
        self.missing_since = 0.0
        self._sound()
        found = signature(job)
        if found != self._signature:
            self._signature = found
            self.seen = job_seen(job)
            self.changed.set()

    def missing(self, now: float) -> None:
        """Take in that the API does not know the job; only after a while does that mean it is gone."""
        self.missing_since = self.missing_since or now
        self._sound()
        deleting = self.seen is not None and self.seen.state == "DELETION_IN_PROGRESS"
        if deleting or now - self.missing_since >= self.not_found_grace:
            self.seen = JobSeen(name=self.job_name, state=GONE)
            self.changed.set()

    def failed(self, error: Exception, now: float) -> None:
        """Take in that a look failed; only a spent budget is news."""
        self.error = error
        self.failing_since = self.failing_since or now
        self.denials = 0 if passing(error) else self.denials + 1
        if self.denials >= DENIALS or now - self.failing_since >= self.error_budget:
            self.given_up = True
            self.changed.set()

    def _sound(self) -> None:
        if self.error is not None:
            self.error, self.failing_since, self.denials = None, 0.0, 0
