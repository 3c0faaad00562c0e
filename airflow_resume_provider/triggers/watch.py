"""How a trigger waits: asleep until the shared watcher has news or a deadline passes."""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.observation import JobSeen
from airflow_resume_provider.batch import labels
from airflow_resume_provider.batch.subscription import Subscription
from airflow_resume_provider.batch.watcher import JobWatcher, watcher
from airflow_resume_provider.triggers.stall import StallWatch
from airflow_resume_provider.triggers.train import now

if TYPE_CHECKING:
    from airflow_resume_provider.batch.watch_api import WatchApi
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger

log = logging.getLogger(__name__)


async def watch(trigger: TrainAttemptTrigger) -> AttemptEvent:
    """Return the event about the attempt, however long that takes."""
    await loaded()
    shared = _shared(trigger)
    subscription = shared.subscribe(
        Subscription(
            job_name=trigger.job_name,
            day=labels.day_of(trigger.submitted),
            interval=trigger.poll_interval,
            error_budget=trigger.error_budget,
            not_found_grace=trigger.not_found_grace,
        )
    )
    stall = StallWatch.of(trigger)
    try:
        return await _until_event(trigger, shared, subscription, stall)
    finally:
        shared.unsubscribe(subscription)
        if stall is not None:
            await stall.stop()


async def loaded() -> None:
    """Import the client library in a thread: that takes a second, which the loop must not stand still for."""
    for name in ("airflow_resume_provider.hooks.batch", "google.cloud.batch_v1"):
        if name not in sys.modules:
            await asyncio.to_thread(import_module, name)


def _shared(trigger: TrainAttemptTrigger) -> JobWatcher:
    parent = trigger.job_name.rpartition("/jobs/")[0]
    chain = trigger.impersonation_chain
    chain = chain if isinstance(chain, str) or chain is None else tuple(chain)
    key = (trigger.gcp_conn_id, chain, parent)
    return watcher(key, parent, lambda: connect(trigger.gcp_conn_id, chain))


async def connect(gcp_conn_id: str, impersonation_chain: Any) -> WatchApi:
    """Return the reads of the API for the running loop."""
    from airflow_resume_provider.batch.watch_api import GrpcWatchApi, ThreadedWatchApi
    from airflow_resume_provider.hooks.batch import ResumableBatchAsyncHook

    hook = ResumableBatchAsyncHook(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain)
    client = await hook.get_async_client()
    if client is not None:
        return GrpcWatchApi(client)
    sync_hook = await hook.get_sync_hook()
    return ThreadedWatchApi(await asyncio.to_thread(sync_hook.get_conn))


async def _until_event(
    trigger: TrainAttemptTrigger, shared: JobWatcher, subscription: Subscription, stall: StallWatch | None
) -> AttemptEvent:
    said = ""
    while True:
        job = subscription.seen
        if job is not None and job.state != said:
            log.info("%s is %s", trigger.job_name, job.state)
            said = job.state
        if stall is not None:
            stall.saw(job)
        if event := await _event(trigger, shared, subscription, stall):
            return event
        await _news(subscription, trigger.next_due(job), stall)


async def _event(
    trigger: TrainAttemptTrigger, shared: JobWatcher, subscription: Subscription, stall: StallWatch | None
) -> AttemptEvent | None:
    job = subscription.seen
    if job is not None and settled(job):
        return trigger.event(EventKind.ENDED, f"the job is {job.state}", await _with_tasks(shared, job))
    if subscription.given_up:
        message = f"the Batch API could not be asked: {subscription.error!r}"[:1000]
        return trigger.event(EventKind.UNREACHABLE, message, job)
    if stall is not None and stall.stalled:
        return trigger.event(EventKind.STALLED, stall.message, job)
    return trigger.due(job, now())


def settled(job: JobSeen) -> bool:
    """Return whether the job's end is known: over, being deleted, or doomed by a failed task."""
    doomed = job.failed_tasks > 0 and job.state == "RUNNING"
    return job.over or job.state == "DELETION_IN_PROGRESS" or doomed


async def _with_tasks(shared: JobWatcher, job: JobSeen) -> JobSeen:
    """Add the tasks, whose events carry the exit codes; a job that cannot tell is judged without."""
    from dataclasses import replace

    from airflow_resume_provider.batch.events import tasks_seen

    if job.state not in ("FAILED", "RUNNING"):
        return job
    try:
        return replace(job, tasks=tasks_seen(await shared.tasks_of(job.name)))
    except Exception as error:
        log.info("The tasks of %s could not be read: %r", job.name, error)
        return job


async def _news(subscription: Subscription, due: float | None, stall: StallWatch | None) -> None:
    """Sleep until there is news; no timer runs where there is no deadline."""
    limit = None if due is None else max(0.0, due - now())
    subscription.changed.clear()
    if stall is not None:
        stall.wake = subscription.changed
    try:
        async with asyncio.timeout(limit):
            await subscription.changed.wait()
    except TimeoutError:
        return
