"""Messages to Pub/Sub about state changes, sent to an emulator when one is configured.

`PUBSUB_EMULATOR_HOST` is read as Google's clients read it. Topics are created
when they are missing, which the cloud would not do. Delivery is in order, is
tried a few times, and never holds a job up.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
from typing import Any

import aiohttp

from airflow_resume_provider.testing.batch.messages import JobState, NotificationType, TaskState
from airflow_resume_provider.testing.batch.records import Change, JobRecord

_TRIES = 5
_LOG = logging.getLogger(__name__)


def wanted(notification: Any, change: Change) -> bool:
    """Whether a notification is about a change.

    A message without any attribute is about nothing, as documented.
    """
    message = notification.message
    if change.task is None:
        state = message.new_job_state
        named = message.type_ == NotificationType.JOB_STATE_CHANGED or state
        return bool(named) and state in (0, JobState[change.new])
    state = message.new_task_state
    named = message.type_ == NotificationType.TASK_STATE_CHANGED or state
    return bool(named) and state in (0, TaskState[change.new])


def message_of(record: JobRecord, change: Change) -> dict[str, Any]:
    """The Pub/Sub message of a change."""
    if change.task is None:
        attributes = {
            "Type": "JOB_STATE_CHANGED",
            "JobUID": record.uid,
            "JobName": record.name,
            "NewJobState": change.new,
        }
    else:
        attributes = {
            "Type": "TASK_STATE_CHANGED",
            "JobUID": record.uid,
            "TaskUID": f"{record.uid}-group0-{change.task}",
            "TaskName": record.tasks[change.task].name,
            "NewTaskState": change.new,
        }
    what = record.name if change.task is None else attributes["TaskName"]
    text = f"{what} is {change.new}"
    return {"data": base64.b64encode(text.encode()).decode(), "attributes": attributes}


class Notifier:
    """Sends what the jobs' notifications ask for."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._sender: asyncio.Task[None] | None = None

    @property
    def emulator(self) -> str:
        """The emulator's URL, or nothing."""
        host = os.environ.get("PUBSUB_EMULATOR_HOST", "")
        return f"http://{host.removeprefix('http://')}" if host else ""

    def __call__(self, record: JobRecord, change: Change | None) -> None:
        """A listener of a job's changes."""
        if change is None or not record.job.notifications or not self.emulator:
            return
        for notification in record.job.notifications:
            if wanted(notification, change):
                self._queue.put_nowait((notification.pubsub_topic, message_of(record, change)))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                topic, message = await self._queue.get()
                try:
                    await self._send(session, topic, message)
                finally:
                    self._queue.task_done()

    async def _send(self, session: aiohttp.ClientSession, topic: str, message: dict[str, Any]) -> None:
        url = f"{self.emulator}/v1/{topic}"
        for attempt in range(_TRIES):
            try:
                async with session.post(f"{url}:publish", json={"messages": [message]}) as response:
                    if response.status < 400:
                        return
                    if response.status == 404:
                        async with session.put(url, json={}):
                            continue
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.1 * 2**attempt)
        _LOG.warning("a notification for %s was given up after %d tries", topic, _TRIES)

    async def stop(self) -> None:
        """Send what waits, for a moment, then stop."""
        if self._sender:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), 2)
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
