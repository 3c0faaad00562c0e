"""Cancels the job of a task whose state a person has set, from within the API server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from airflow_resume_provider.triggers.fence import HOLD_KEY

log = logging.getLogger(__name__)


def cancel_soon(task_instance: Any) -> None:
    """Look for a job of this task and cancel it, in a thread: the person's request is not kept waiting."""
    key = {name: getattr(task_instance, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
    threading.Thread(target=_cancel, args=(key,), name="resume-cancel", daemon=True).start()


def _cancel(key: Mapping[str, Any]) -> None:
    try:
        hold = _hold(key)
        if hold is not None:
            _cancel_held(hold)
    except Exception:
        log.exception("Cancelling the job of %s failed", dict(key))


def _hold(key: Mapping[str, Any]) -> Mapping[str, Any] | None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = [getattr(XComModel, name) == value for name, value in key.items()]
    with create_session() as session:
        found = session.scalars(select(XComModel).where(XComModel.key == HOLD_KEY, *wanted)).first()
        value = XComModel.deserialize_value(found) if found is not None else None
    return value if isinstance(value, Mapping) else None


def _cancel_held(hold: Mapping[str, Any]) -> None:
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

    hook = ResumableBatchHook(hold["gcp_conn_id"], hold["impersonation_chain"])
    seen = hook.look(hold["job_name"])
    if seen is not None and not seen.over:
        hook.cancel(hold["job_name"])
        log.info("%s was cancelled: a person ended its task", hold["job_name"])
