"""Cancels the job of a killed task from the triggerer, outliving the interruption by Airflow."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from airflow_resume_provider.triggers.fence import Ruling, ruling

if TYPE_CHECKING:
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger

log = logging.getLogger(__name__)

# Airflow cancels the caller about a second after it began; a strong reference
# keeps the work alive, which a bare task would not have.
_AT_WORK: set[asyncio.Task[None]] = set()


async def kill_detached(trigger: TrainAttemptTrigger) -> None:
    """Start the kill in a task of its own and wait for it as long as one is let."""
    task = asyncio.get_running_loop().create_task(_kill(trigger))
    _AT_WORK.add(task)
    task.add_done_callback(_AT_WORK.discard)
    await asyncio.shield(task)


async def _kill(trigger: TrainAttemptTrigger) -> None:
    try:
        # Not `to_thread`: only so may a thread ask a triggerer of Airflow 3.1 for a connection.
        await sync_to_async(_kill_if_meant, thread_sensitive=False)(trigger)
    except Exception:
        log.exception("Cancelling %s failed; the next try cancels it", trigger.job_name)


def _kill_if_meant(trigger: TrainAttemptTrigger) -> None:
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

    if ruling(trigger.held) is Ruling.LEAVE:
        log.info("%s is left running: nobody ended its task, or a newer try holds it", trigger.job_name)
        return
    hook = ResumableBatchHook(trigger.gcp_conn_id, trigger.impersonation_chain)
    cancelled = hook.cancel(trigger.job_name)
    log.info("%s: %s", trigger.job_name, "cancelled with its task" if cancelled else "was over already")
