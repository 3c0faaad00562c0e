"""The training of one task instance: its key, its generations, and where it stands."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.ledger import Ledger
from airflow_resume_provider.attempts.verdict import Kind, explained
from airflow_resume_provider.batch.retrying import passing
from airflow_resume_provider.hooks.lineages import ledger_of, newest_generation
from airflow_resume_provider.operators.plan import OnClear, Plan, Resume

if TYPE_CHECKING:
    from airflow_resume_provider.attempts.observation import JobSeen
    from airflow_resume_provider.checkpoints import History, IntentRecord, Lineage
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

log = logging.getLogger(__name__)

LATE_WITHIN = 20.0  # seconds that a failed job's explanation is waited for
LATE_PAUSE = 0.5


@dataclass(frozen=True)
class Course:
    """Where a training stands: its lineage, which generation that is, and what its attempts came to."""

    lineage: Lineage
    generation: int
    ledger: Ledger

    @property
    def training_id(self) -> str:
        """The training's short id."""
        return identity.training_id(self.lineage.uri)


class Training:
    """What one task instance trains; the context is Airflow's."""

    def __init__(self, plan: Plan, hook: ResumableBatchHook, context: Any) -> None:
        self.plan = plan
        self.hook = hook
        self.ti = context["ti"]
        run = context.get("dag_run")
        self.key = identity.TrainingKey(
            dag_id=self.ti.dag_id,
            task_id=self.ti.task_id,
            run_id=self.ti.run_id,
            run_after=_iso(getattr(run, "run_after", None)),
            map_index=-1 if self.ti.map_index is None else int(self.ti.map_index),
        )

    @property
    def try_number(self) -> int:
        """Airflow's try."""
        return int(self.ti.try_number)

    @property
    def max_tries(self) -> int:
        """Airflow's limit of tries; it rises between two tries exactly when a person cleared the task."""
        return int(self.ti.max_tries or 0)

    @property
    def last_try(self) -> bool:
        """Whether Airflow will not begin another try by itself when this one fails."""
        return self.try_number > self.max_tries

    @cached_property
    def store_options(self) -> Any:
        """How the store is reached."""
        return self.hook.store_options()

    def open(self, generation: int) -> Lineage:
        """Open one generation's lineage."""
        return self._at(self.key.lineage_uri(self.plan.root, generation))

    def _at(self, uri: str) -> Lineage:
        from airflow_resume_provider.checkpoints import Lineage

        return Lineage.open(uri, options=self.store_options)

    def token(self, training_id: str, attempt: int) -> str:
        """Return what tells this task instance's hold on an attempt from another's."""
        return identity.attempt_token(training_id, attempt, self.try_number, str(getattr(self.ti, "id", "")))

    def cleared_since(self, intent: IntentRecord) -> bool:
        """Return whether a person cleared the task after this was intended."""
        before = (intent.extra or {}).get("max_tries")
        return before is not None and self.max_tries > int(before)

    def generation(self) -> tuple[int, Lineage]:
        """Return the generation to work in; a deliberate fresh start makes a new one."""
        newest, lineage = newest_generation(self.key, self.plan.root, self._at)
        if lineage is not None and not self._starts_afresh(lineage):
            return newest, lineage
        if lineage is not None:
            history = lineage.history()
            self.cancel_strays(history, ledger_of(history, Ledger()), newest_too=True)
        return newest + 1, self._founded(newest + 1)

    def _starts_afresh(self, lineage: Lineage) -> bool:
        training = lineage.training()
        extra = dict(training.extra) if training else {}
        newer_try = self.try_number > int(extra.get("try_number", 0))
        if self.plan.resume is Resume.NEVER:
            return newer_try
        cleared = self.max_tries > int(extra.get("max_tries", 0))
        return self.plan.on_clear is OnClear.FRESH and cleared and newer_try

    def _founded(self, generation: int) -> Lineage:
        from airflow_resume_provider.checkpoints import TrainingRecord

        lineage = self.open(generation)
        lineage.ensure_training(
            TrainingRecord(
                training_id=identity.training_id(lineage.uri),
                generation=generation,
                dag_id=self.key.dag_id,
                task_id=self.key.task_id,
                run_id=self.key.run_id,
                run_after=self.key.run_after,
                map_index=self.key.map_index,
                created=now(),
                extra={"max_tries": self.max_tries, "try_number": self.try_number},
            )
        )
        return lineage

    def look(self, job_name: str) -> JobSeen | None:
        """Return the job now, with its tasks when it failed; `None` when the API does not know it."""
        seen = self.hook.look(job_name)
        return self.explained(job_name, seen) if seen is not None and seen.failing else seen

    def explained(self, job_name: str, seen: JobSeen) -> JobSeen:
        """Return a failed job with what its tasks say of it, which the API may tell later than the state."""
        import tenacity

        def look() -> JobSeen:
            found = self.hook.look(job_name, with_tasks=True)
            return found if found is not None and found.failing else seen

        patiently = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda found: not explained(found)),
            wait=tenacity.wait_exponential(multiplier=LATE_PAUSE, max=LATE_WITHIN / 4),
            stop=tenacity.stop_after_delay(LATE_WITHIN),
            retry_error_callback=lambda tried: tried.outcome.result() if tried.outcome else seen,
        )
        return patiently(look)

    def cancel_strays(self, history: History, ledger: Ledger, *, newest_too: bool = False) -> None:
        """Cancel jobs whose kill never came: attempts of which no end is known."""
        for attempt in history.attempts:
            known = ledger.get(attempt.number)
            over = attempt.end is not None or (known is not None and known.verdict is not Kind.PENDING)
            newest = attempt.number == history.newest_attempt and not newest_too
            if over or newest or attempt.intent is None:
                continue
            # A job that was created a moment ago can be cancelled before it can be looked at.
            unseen = newest_too and attempt.number == history.newest_attempt
            self._end_stray(attempt.intent.job_name, unseen=unseen)

    def _end_stray(self, name: str, *, unseen: bool) -> None:
        try:
            seen = self.hook.look(name)
            if seen is None and unseen:
                self.hook.cancel(name)
            elif seen is not None and not seen.over:
                log.warning("%s still ran although its task is gone; it is cancelled", name)
                self.hook.cancel(name)
        except Exception as error:
            if not self.denied(name, error):
                raise
            log.warning("%s lies where nobody may look; end it there, should it run: %r", name, error)

    def denied(self, job_name: str, error: Exception) -> bool:
        """Return whether a job can be neither seen nor ended because its place is none of today's plan's.

        A project or region that was wrong, and was corrected, must not stand in the way for ever.
        """
        here = {f"projects/{self.plan.project}/locations/{rung.region}" for rung in self.plan.rules.ladder}
        return job_name.rpartition("/jobs/")[0] not in here and not passing(error)


def _iso(moment: Any) -> str:
    return moment.isoformat() if hasattr(moment, "isoformat") else str(moment or "")


def now() -> str:
    """Return the time as records carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
