"""Cancels the job of a running task that a person ended."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from airflow_resume_provider.triggers.fence import Hold, Ruling, ruling

if TYPE_CHECKING:
    from airflow_resume_provider.operators.conductor import Conductor

log = logging.getLogger(__name__)

RUNNING = "running"
NEVER = ""  # no state: a last try that is ended has no successor to adopt the job
# The signal may have come while the task talked to its supervisor, which it
# then still occupies; a thread that waits for it must not be waited for long.
SECONDS = 20.0


def kill(conductor: Conductor) -> None:
    """Cancel the job unless a next try will adopt it, as when the worker is shut down or time is up."""
    worker = threading.Thread(target=_kill_if_meant, args=(conductor,), daemon=True)
    worker.start()
    worker.join(SECONDS)
    if worker.is_alive():
        log.warning(
            "Looking up whether the task was ended on purpose takes too long; its job is left running"
        )


def meant(hold: Hold, last_try: bool) -> bool:
    """Return whether no next try will adopt the job of a running task whose process is ended."""
    return ruling(hold, waiting=NEVER if last_try else RUNNING) is Ruling.CANCEL


def _kill_if_meant(conductor: Conductor) -> None:
    waiting = conductor.waiting
    if waiting is None:
        return
    if not meant(waiting.hold, conductor.training.last_try):
        log.info("%s is left running for the next try to adopt", waiting.job_name)
        return
    conductor.submitter.killed = True
    cancelled = conductor.hook.cancel(waiting.job_name)
    log.info("%s: %s", waiting.job_name, "cancelled with its task" if cancelled else "was over already")
