"""The trigger that watches one attempt and fires one typed event."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers import base

from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.observation import JobSeen
from airflow_resume_provider.batch.retrying import ERROR_BUDGET
from airflow_resume_provider.triggers.fence import Hold

MIN_SECONDS = "RESUME_TRIGGER_MIN_SECONDS"
# An event soon after a re-deferral can fail a healthy task: the scheduler may
# still hold the worker's "success" of the leg before ("state mismatch").
DEFAULT_MIN_SECONDS = 8.0


_fired: Any = base.TriggerEvent


def min_seconds() -> float:
    """Return for how long a trigger lives at least; tests set RESUME_TRIGGER_MIN_SECONDS."""
    return float(os.environ.get(MIN_SECONDS) or DEFAULT_MIN_SECONDS)


class TrainAttemptTrigger(base.BaseTrigger):
    """
    Watches one attempt's job until it is over, late, stalled or out of sight.

    :param job_name: full name of the job.
    :param hold: which task instance holds the job, for telling a kill from a move.
    :param carry: handed back in the event, untouched.
    :param submitted: when the job was submitted, seconds since the epoch.
    :param gcp_conn_id: the Google Cloud connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param poll_interval: seconds between two looks.
    :param deadline: absolute, seconds since the epoch, so that it survives a restart.
    :param queue_deadline: absolute; a job that has not started by then is an event.
    :param stall: lineage, attempt and seconds without a new checkpoint that are an event.
    :param error_budget: seconds that looking may fail before that is an event.
    :param not_found_grace: seconds that the job may not be found before it counts as gone.
    :param minimum_seconds: the shortest life of the trigger.
    """

    def __init__(
        self,
        *,
        job_name: str,
        hold: Mapping[str, Any],
        carry: Mapping[str, Any],
        submitted: float,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval: float = 10.0,
        deadline: float | None = None,
        queue_deadline: float | None = None,
        stall: Mapping[str, Any] | None = None,
        error_budget: float = ERROR_BUDGET,
        not_found_grace: float = 300.0,
        minimum_seconds: float = DEFAULT_MIN_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_name = job_name
        self.hold = dict(hold)
        self.carry = dict(carry)
        self.submitted = submitted
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.queue_deadline = queue_deadline
        self.stall = dict(stall) if stall else None
        self.error_budget = error_budget
        self.not_found_grace = not_found_grace
        self.minimum_seconds = minimum_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that rebuild this trigger."""
        names = (
            "job_name",
            "hold",
            "carry",
            "submitted",
            "gcp_conn_id",
            "impersonation_chain",
            "poll_interval",
            "deadline",
            "queue_deadline",
            "stall",
            "error_budget",
            "not_found_grace",
            "minimum_seconds",
        )
        return f"{type(self).__module__}.{type(self).__qualname__}", {n: getattr(self, n) for n in names}

    async def run(self) -> AsyncIterator[base.TriggerEvent]:
        """Watch, and yield the one event."""
        from airflow_resume_provider.triggers.watch import watch

        began = asyncio.get_running_loop().time()
        try:
            event = await watch(self)
            left = began + self.minimum_seconds - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, left))
        except asyncio.CancelledError:
            await self._cancelled_before_3_3()
            raise
        yield _fired(event.to_dict())

    def event(self, kind: EventKind, message: str, job: JobSeen | None) -> AttemptEvent:
        """Return an event of this trigger."""
        return AttemptEvent(kind=kind, job_name=self.job_name, message=message, job=job, carry=self.carry)

    def due(self, job: JobSeen | None, now: float) -> AttemptEvent | None:
        """Return the event of a deadline that has passed."""
        if self.deadline is not None and now >= self.deadline:
            return self.event(EventKind.DEADLINE, "the training's time limit has passed", job)
        waiting = job is not None and job.waiting
        if self.queue_deadline is not None and now >= self.queue_deadline and waiting:
            return self.event(EventKind.QUEUE_TIMEOUT, "the job did not start in time", job)
        return None

    def next_due(self, job: JobSeen | None) -> float | None:
        """Return when the next deadline passes, seconds since the epoch.

        A job that has not been seen yet is not known to wait: the first look wakes whoever sleeps.
        """
        waiting = job is not None and job.waiting
        moments = [self.deadline, self.queue_deadline if waiting else None]
        return min((m for m in moments if m is not None), default=None)

    async def on_kill(self) -> None:
        """Cancel the job when a person ended the task, and only then.

        Airflow interrupts this about a second after it began, so the work
        goes on in a task of its own.
        """
        from airflow_resume_provider.triggers.killing import kill_detached

        await kill_detached(self)

    async def _cancelled_before_3_3(self) -> None:
        from airflow_resume_provider.triggers.versions import has_on_kill

        if not has_on_kill():
            await self.on_kill()

    @property
    def held(self) -> Hold:
        """The hold on the job."""
        return Hold(**self.hold)


def now() -> float:
    """Return the time of absolute deadlines."""
    return time.time()
