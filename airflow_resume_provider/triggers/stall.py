"""Notices that an attempt has committed nothing for too long."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from airflow_resume_provider.attempts.observation import JobSeen
from airflow_resume_provider.batch.subscription import News

if TYPE_CHECKING:
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger

LOOKS_PER_TIMEOUT = 5
SHORTEST_PAUSE = 0.5


class StallWatch:
    """Looks into the store for new checkpoints while the job runs.

    The clock starts with the job's RUNNING and again with each commit, in the
    store's and the API's own times, so a restarted triggerer does not reset it.
    """

    def __init__(self, trigger: TrainAttemptTrigger, seconds: float) -> None:
        self._trigger = trigger
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._running_since = 0.0
        self.stalled = False
        self.message = ""
        self.wake: News | None = None

    @classmethod
    def of(cls, trigger: TrainAttemptTrigger) -> StallWatch | None:
        """Return the trigger's stall watch, if the author asked for one."""
        return cls(trigger, float(trigger.stall["seconds"])) if trigger.stall else None

    def saw(self, job: JobSeen | None) -> None:
        """Begin with the job's running."""
        if job is None or job.state != "RUNNING" or self._task is not None:
            return
        starts = [e.time for e in job.events if "RUNNING" in e.description]
        self._running_since = max(starts, default=0.0) or time.time()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        pause = max(SHORTEST_PAUSE, self._seconds / LOOKS_PER_TIMEOUT)
        while not self.stalled:
            await asyncio.sleep(pause)
            try:
                # Not `to_thread`: only so may a thread ask a triggerer of Airflow 3.1 for a connection.
                newest = await sync_to_async(self._newest_commit, thread_sensitive=False)()
            except Exception as error:
                # Could not look is not "nothing there": no stall is called on that.
                self._trigger.log.info("Looking for new checkpoints failed: %r", error)
                continue
            idle = time.time() - max(newest, self._running_since)
            if idle >= self._seconds:
                self._call(idle)

    def _call(self, idle: float) -> None:
        self.stalled = True
        self.message = f"no new checkpoint for {idle:.0f} s, {self._seconds:.0f} s allowed"
        if self.wake is not None:
            self.wake.set()

    def _newest_commit(self) -> float:
        from airflow_resume_provider.hooks.batch import ResumableBatchHook
        from airflow_resume_provider.hooks.lineages import newest_commit

        stall: dict[str, Any] = self._trigger.stall or {}
        hook = ResumableBatchHook(self._trigger.gcp_conn_id, self._trigger.impersonation_chain)
        return newest_commit(stall["lineage"], int(stall["attempt"]), hook.store_options())
