"""Leaving the cores to the training, and taking them back when it has ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# Where the kernel groups tasks by session, niceness counts only within a session: the whole
# session must be niced as well (man 7 sched, "The autogroup feature").
_AUTOGROUP = Path("/proc/self/autogroup")


def be_polite(nice: int) -> None:
    """Give this process, and its session where sessions compete, this niceness; wake up without haste.

    A training's threads wait for each other, so what is taken from one of them is taken from all.
    """
    _nice_the_threads(nice, "SCHED_BATCH" if nice else "SCHED_OTHER")
    _nice_the_session(nice)


def be_quick() -> None:
    """Compete again, as far as this process may: without privileges only its session can."""
    _nice_the_threads(0, "SCHED_OTHER")
    _nice_the_session(0)


def _nice_the_threads(nice: int, policy: str) -> None:
    """Linux has a niceness per thread, and the store's client has made its threads long before."""
    try:
        threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    except OSError:
        threads = [0]
    for thread in threads:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        with contextlib.suppress(OSError, AttributeError):  # Linux alone knows policies
            os.sched_setscheduler(thread, getattr(os, policy), os.sched_param(0))


def _nice_the_session(nice: int) -> None:
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(nice))
