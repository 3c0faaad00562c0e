"""Tells a person's kill from a trigger that is merely moved, before a job is cancelled.

Airflow calls `on_kill` also when triggers are redistributed, and after a clear
the next try may already have adopted the job. So the task's state is looked up,
and the hold that `execute` published: who holds which job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)

HOLD_KEY = "resume_hold"  # XCom: {"token", "job_name"}
DEFERRED = "deferred"
# Nobody sets this by hand: Airflow itself gave the try up, and the next one adopts the job.
UP_FOR_RETRY = "up_for_retry"


class Ruling(StrEnum):
    """What to do with the job."""

    CANCEL = "cancel"
    LEAVE = "leave"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """One task instance's hold on one job."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    job_name: str
    token: str
    gcp_conn_id: str = "google_cloud_default"
    impersonation_chain: str | Sequence[str] | None = None

    def to_xcom(self) -> dict[str, Any]:
        """Return what `execute` publishes: enough to find the job and to cancel it."""
        names = ("token", "job_name", "gcp_conn_id", "impersonation_chain")
        return {name: getattr(self, name) for name in names}


def rule(
    hold: Hold, state: str | None, published: Mapping[str, Any] | None, waiting: str = DEFERRED
) -> Ruling:
    """Decide by the task's state now and by the newest published hold.

    Args:
        hold: of the one that is being ended.
        state: the task's state; `None` after a clear.
        published: the newest hold, `None` when a new try has begun and not submitted yet.
        waiting: the state in which the one being ended is at work, so nobody killed it.
    """
    token = (published or {}).get("token")
    if token not in (None, hold.token):
        # A newer try is at work: its own job is not ours to cancel, an older one is.
        adopted = (published or {}).get("job_name") == hold.job_name
        return Ruling.LEAVE if adopted else Ruling.CANCEL
    if state == UP_FOR_RETRY or (state == waiting and token == hold.token):
        return Ruling.LEAVE
    return Ruling.CANCEL


def task_state(hold: Hold) -> str | None:
    """Ask Airflow for the task's state; blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=hold.dag_id, task_ids=[hold.task_id], run_ids=[hold.run_id], map_index=hold.map_index
    )
    found = dict(states.get(hold.run_id) or {})
    mapped = f"{hold.task_id}_{hold.map_index}"
    state = found.get(hold.task_id, found.get(mapped))
    return str(getattr(state, "value", state)) if state else None


def published_hold(hold: Hold) -> Mapping[str, Any] | None:
    """Ask Airflow for the newest published hold; blocks."""
    from airflow.sdk.bases.xcom import BaseXCom

    value = BaseXCom.get_one(
        key=HOLD_KEY,
        dag_id=hold.dag_id,
        task_id=hold.task_id,
        run_id=hold.run_id,
        map_index=hold.map_index,
    )
    return value if isinstance(value, Mapping) else None


def ruling(hold: Hold, waiting: str = DEFERRED) -> Ruling:
    """Look up and decide; blocks. What cannot be looked up is left alone, and said loudly."""
    try:
        return rule(hold, task_state(hold), published_hold(hold), waiting)
    except Exception:
        log.exception(
            "Could not find out whether %s was killed on purpose; it is left running. The next try adopts"
            " it; if there is none, cancel it with: gcloud batch jobs cancel %s",
            hold.job_name,
            hold.job_name,
        )
        return Ruling.LEAVE
