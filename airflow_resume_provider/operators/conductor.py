"""Conducts one task instance through its attempts: the shell around the pure decisions.

Each method reads the lineage afresh. Whatever happened to the worker before,
the next step follows from what is in the store and in Batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.decide import Action, Decision, decide
from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.ledger import Entry, Ledger
from airflow_resume_provider.attempts.observation import GONE, JobSeen
from airflow_resume_provider.attempts.placement import next_rung
from airflow_resume_provider.attempts.verdict import Kind, Verdict, judge, waiting_reason
from airflow_resume_provider.errors import AttemptFailed, NoProgressError
from airflow_resume_provider.hooks.lineages import Account, ledger_of, timed
from airflow_resume_provider.operators.failures import PreemptedRetry, TrainingFailed
from airflow_resume_provider.operators.plan import Plan
from airflow_resume_provider.operators.publishing import Publisher, summary
from airflow_resume_provider.operators.submission import Shown, Submitter, Waiting, clears_of, rung_of
from airflow_resume_provider.operators.training import Course, Training

if TYPE_CHECKING:
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The training is done."""

    summary: Mapping[str, Any]


Step = Waiting | Finished


class Conductor:
    """One leg of one task instance."""

    def __init__(
        self,
        plan: Plan,
        hook: ResumableBatchHook,
        context: Any,
        *,
        carried: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.hook = hook
        self.training = Training(plan, hook, context)
        self.publisher = Publisher(context)
        self.submitter = Submitter(self.training, self.publisher, carried or {})
        self.outlets = getattr(context.get("task"), "outlets", None)
        self._ended: Shown | None = None

    @property
    def waiting(self) -> Waiting | None:
        """What this leg holds by now, for whoever has to end it."""
        return self.submitter.waiting

    @property
    def shown(self) -> Shown | None:
        """What links point to by now."""
        return self.waiting or self._ended

    # -- the first leg of a try ------------------------------------------------

    def begin(self) -> Step:
        """Adopt the running attempt, return the finished result, or submit the next attempt."""
        generation, lineage = self.training.generation()
        history = lineage.history()
        remembered = self.publisher.remembered_ledger(generation)
        course = Course(lineage, generation, ledger_of(history, remembered))
        self.training.cancel_strays(history, course.ledger)
        number = history.newest_attempt
        if number == 0:
            return self.submitter.submit(course, 1, 0, "the first attempt")
        account = Account.of(history, number)
        if account.intent is None:
            return self.submitter.submit(course, number + 1, 0, "the attempt before was nobody's")
        return self._go_on(course, account)

    def _go_on(self, course: Course, account: Account) -> Step:
        """Decide about the newest attempt, which an earlier try or a lost worker submitted."""
        intent = account.intent
        seen = self.training.look(intent.job_name)
        if seen is None and account.silent:
            log.info("Attempt %d was intended, its job was never created; it is now", account.number)
            return self.submitter.submit(course, account.number, rung_of(intent), "intended before")
        seen = seen or JobSeen(name=intent.job_name, state=GONE)
        verdict = judge(seen, account.end, started=account.started is not None)
        if verdict.kind is Kind.PENDING and not self.training.cleared_since(intent):
            return self.submitter.adopt(course, intent)
        if verdict.kind is Kind.PENDING:
            log.info("The task was cleared while %s ran; it is cancelled", intent.job_name)
            self.hook.cancel(intent.job_name)
            verdict = Verdict(kind=Kind.CANCELLED, reason="the task was cleared")
        course = self._accounted(course, account, verdict, seen)
        if verdict.kind is Kind.SUCCEEDED:
            return self._finish(course, account)
        log.info("Attempt %d: %s, %s", account.number, verdict.kind, verdict.reason)
        rung = next_rung(self.plan.rules.ladder, course.ledger, self.plan.rules.placement_policy)
        return self.submitter.submit(course, account.number + 1, rung or 0, verdict.reason)

    # -- the legs after it -----------------------------------------------------

    def proceed(self, event: AttemptEvent) -> Step:
        """Take in the event of the attempt and do what follows from it."""
        carry = event.carry
        self.submitter.began, self.submitter.goes_on = float(carry["began"]), True
        lineage = self.training.open(int(carry["generation"]))
        course = Course(lineage, int(carry["generation"]), Ledger.from_dict(carry["ledger"]))
        account = Account.of(lineage.history(), int(carry["attempt"]))
        if event.kind is EventKind.UNREACHABLE:
            raise _unreachable(event)
        seen, verdict = self._verdict(event, account)
        if verdict.kind is Kind.PENDING:
            log.info("%s: %s; the watch goes on", event.job_name, verdict.reason)
            return self.submitter.adopt(course, account.intent)
        if not seen.over:
            self.hook.cancel(event.job_name)
        return self._act(self._accounted(course, account, verdict, seen), account, verdict)

    def _verdict(self, event: AttemptEvent, account: Account) -> tuple[JobSeen, Verdict]:
        started = account.started is not None
        if event.kind is EventKind.ENDED and event.job is not None:
            return event.job, judge(event.job, account.end, started=started)
        # A deadline: what has changed since the trigger looked decides first.
        seen = self.training.look(event.job_name) or JobSeen(name=event.job_name, state=GONE)
        verdict = judge(seen, account.end, started=started)
        if verdict.kind is not Kind.PENDING:
            return seen, verdict
        if event.kind is EventKind.QUEUE_TIMEOUT:
            return seen, verdict if seen.state == "RUNNING" else waiting_reason(seen)
        if event.kind is EventKind.STALLED:
            return seen, Verdict(kind=Kind.INFRASTRUCTURE, reason=f"stalled: {event.message}")
        return seen, Verdict(kind=Kind.TIMED_OUT, reason=event.message, hopeless=True)

    def _act(self, course: Course, account: Account, verdict: Verdict) -> Step:
        intent = account.intent
        adopted = intent is not None and int(intent.try_number) < self.training.try_number
        decision = decide(course.ledger, verdict, self.plan.rules, adopted=adopted)
        log.info(
            "Attempt %d: %s, %s. Next: %s",
            account.number,
            verdict.kind,
            verdict.reason.rstrip("."),
            decision.action,
        )
        if decision.quarantine:
            self._quarantine(course, decision.quarantine)
        if decision.action is Action.FINISH:
            return self._finish(course, account)
        self._show(course, account.number + 1)
        if decision.action is Action.RESUBMIT:
            return self.submitter.submit(course, account.number + 1, decision.rung, decision.reason)
        raise _error(course.ledger.entries[-1], verdict, decision)

    def _quarantine(self, course: Course, uri: str) -> None:
        reason = "attempts died quickly from it, again and again"
        log.warning("%s is put in quarantine: %s", uri, reason)
        course.lineage.quarantine(uri, reason)

    # -- what both share -------------------------------------------------------

    def _accounted(self, course: Course, account: Account, verdict: Verdict, seen: JobSeen) -> Course:
        """Return the course with the attempt's end in its ledger."""
        intent = account.intent
        last = account.checkpoints[-1] if account.checkpoints else None
        entry = Entry(
            number=account.number,
            verdict=verdict.kind,
            reason=verdict.reason[:300],
            exit_code=verdict.exit_code,
            job_name=intent.job_name if intent else seen.name,
            rung=rung_of(intent),
            try_number=int(intent.try_number) if intent else self.training.try_number,
            clears=clears_of(intent),
            commits=len(account.checkpoints),
            resumed_from=account.started.resumed_from if account.started else "",
            step=last.step if last else 0,
        )
        ended = max((event.time for event in seen.events), default=0.0) or time.time()
        entry = timed(entry, account, ended, self.training.store_options)
        return replace(course, ledger=course.ledger.with_entry(entry))

    def _show(self, course: Course, next_attempt: int) -> Any:
        """Publish where the training stands after an attempt's end, and return its checkpoint."""
        reference = self.submitter.choose(course, next_attempt).reference
        last = course.ledger.entries[-1]
        self.publisher.standing(course, reference, last.resumed_from)
        self._ended = Shown(
            job_name=last.job_name,
            attempt=last.number,
            training_id=course.training_id,
            lineage=course.lineage.uri,
            checkpoint_uri=reference.uri if reference else "",
        )
        return reference

    def _finish(self, course: Course, account: Account) -> Finished:
        reference = self._show(course, account.number + 1)
        self.publisher.asset_events(self.outlets, reference, course.training_id)
        result = summary(reference, course.ledger, account.number)
        log.info("The training finished: %s", result)
        return Finished(summary=result)


_DID = {
    Action.RETRY: "Airflow's own retries decide.",
    Action.FAIL: "It is not retried.",
}


def _error(entry: Entry, verdict: Verdict, decision: Decision) -> Exception:
    kind = NoProgressError if decision.no_progress else AttemptFailed
    if decision.immediately:
        kind = PreemptedRetry
    error = kind(
        f"Attempt {entry.number} ({entry.job_name}) ended as {verdict.kind}: {decision.reason.rstrip('.')}.",
        did=_DID[decision.action],
        can="The next try resumes from the last checkpoint.",
        attempt=entry.number,
        verdict=verdict.kind.value,
        exit_code=verdict.exit_code,
        job_name=entry.job_name,
    )
    if decision.action is not Action.FAIL:
        return error
    failed = TrainingFailed(str(error))
    failed.__cause__ = error
    return failed


def _unreachable(event: AttemptEvent) -> AttemptFailed:
    return AttemptFailed(
        f"{event.job_name} is out of sight: {event.message}.",
        did="The job was left running.",
        can="The next try adopts it.",
        job_name=event.job_name,
    )
