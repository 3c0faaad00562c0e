"""Waits in the worker, for installations without a triggerer: the same watch, run to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_resume_provider.attempts.event import AttemptEvent
from airflow_resume_provider.triggers.watch import watch

if TYPE_CHECKING:
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger


def wait(trigger: TrainAttemptTrigger) -> AttemptEvent:
    """Block until the trigger would fire; it need not live for a minimum, nobody is deferred."""
    return asyncio.run(watch(trigger))
