"""What a task publishes: XComs, the task state store, the asset event and the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.ledger import Ledger
from airflow_resume_provider.attempts.verdict import Kind
from airflow_resume_provider.triggers.fence import HOLD_KEY, Hold

if TYPE_CHECKING:
    from airflow_resume_provider.checkpoints import Reference
    from airflow_resume_provider.operators.training import Course

log = logging.getLogger(__name__)

STATE_KEY = "resume"
CHECKPOINT = "checkpoint"
CHECKPOINT_URI = "checkpoint_uri"
RESUMED_FROM = "resumed_from"
ATTEMPTS = "attempts"
JOB_NAME = "job_name"


class Publisher:
    """Publishes for one task instance; the context is Airflow's."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._ti = context["ti"]

    def published_reference(self) -> Mapping[str, Any] | None:
        """Return the reference that the attempt before published in this try."""
        value = self._ti.xcom_pull(task_ids=self._ti.task_id, key=CHECKPOINT, map_indexes=self._ti.map_index)
        return value if isinstance(value, Mapping) and value.get("uri") else None

    def standing(self, course: Course, reference: Reference | None, resumed_from: str) -> None:
        """Publish where the training stands; what is empty yet is an empty string, never absent."""
        values = {
            CHECKPOINT: reference.to_dict() if reference else None,
            CHECKPOINT_URI: reference.uri if reference else "",
            RESUMED_FROM: resumed_from,
            JOB_NAME: course.ledger.entries[-1].job_name,
            ATTEMPTS: [_compact(entry.to_dict()) for entry in course.ledger.entries],
        }
        for key, value in values.items():
            self._ti.xcom_push(key=key, value=value)
        self._remember(course, reference)

    def hold(self, hold: Hold) -> None:
        """Publish who holds which job, for telling a kill from a move."""
        self._ti.xcom_push(key=HOLD_KEY, value=hold.to_xcom())

    @property
    def _store(self) -> Any:
        return self._context.get("task_state_store")

    def _remember(self, course: Course, reference: Reference | None) -> None:
        """Keep the state over tries where Airflow can; it is a cache, the lineage is the truth."""
        if (store := self._store) is None:
            return
        state: dict[str, Any] = {"generation": course.generation, "ledger": course.ledger.to_dict()}
        if reference is not None:
            state[CHECKPOINT] = reference.to_dict()
        try:
            store.set(STATE_KEY, state)
        except Exception as error:
            log.warning("The task state store could not be written, the lineage is enough: %r", error)

    def remembered_ledger(self, generation: int) -> Ledger:
        """Return the ledger kept by an earlier try of this generation; empty when there is none."""
        kept, ledger = self._remembered()
        return ledger if kept == generation else Ledger()

    def _remembered(self) -> tuple[int, Ledger]:
        """Return which generation's ledger is kept, and it; generation 0 when there is none."""
        if (store := self._store) is None:
            return 0, Ledger()
        try:
            state = store.get(STATE_KEY) or {}
            return int(state.get("generation", 0)), Ledger.from_dict(state.get("ledger"))
        except Exception as error:  # people can edit it in the UI, too
            log.warning("The task state store could not be read, the lineage is enough: %r", error)
            return 0, Ledger()

    def remembered_job(self) -> str:
        """Return the job that an earlier try left running, as far as is remembered, else an empty string."""
        _, ledger = self._remembered()
        return "".join(entry.job_name for entry in ledger.entries[-1:] if entry.verdict is Kind.PENDING)

    def asset_events(self, outlets: Any, reference: Reference | None, training_id: str) -> None:
        """Attach the checkpoint's reference to the events of the task's outlets."""
        events = self._context.get("outlet_events")
        for outlet in outlets or ():
            if events is None or reference is None or not hasattr(outlet, "uri"):
                continue
            events[outlet].extra.update({CHECKPOINT: reference.to_dict(), "training_id": training_id})


def _compact(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in entry.items() if v not in ("", None, 0.0) or k in ("number", "verdict")}


def summary(reference: Reference | None, ledger: Ledger, attempts: int) -> dict[str, Any]:
    """Return the task's result, usable downstream."""
    return {
        "checkpoint_uri": reference.uri if reference else "",
        "step": reference.step if reference else 0,
        "metrics": dict(reference.metrics) if reference else {},
        "attempts": attempts,
        "preemptions": ledger.count(Kind.PREEMPTED),
        "seconds_trained": round(ledger.seconds, 1),
        "seconds_lost": round(ledger.lost, 1),
    }
