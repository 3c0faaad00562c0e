"""Conducts one task instance through its attempts: the shell around the pure decisions.

Each method reads the lineage afresh. Whatever happened to the worker before,
the next step follows from what is in the store and in Batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.decide import Action, Decision, decide
from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.ledger import Entry, Ledger
from airflow_resume_provider.attempts.observation import GONE, JobSeen
from airflow_resume_provider.attempts.placement import next_rung
from airflow_resume_provider.attempts.verdict import Kind, Verdict, explained, judge, waiting_reason
from airflow_resume_provider.batch.retrying import passing
from airflow_resume_provider.errors import AttemptFailed, NoProgressError, ResumeError
from airflow_resume_provider.hooks.lineages import Account, ledger_of, timed
from airflow_resume_provider.operators.failures import PreemptedRetry, TrainingFailed
from airflow_resume_provider.operators.plan import Plan
from airflow_resume_provider.operators.publishing import Publisher, summary
from airflow_resume_provider.operators.submission import (
    Shown,
    Submitter,
    Waiting,
    clears_of,
    rung_of,
    same_job,
)
from airflow_resume_provider.operators.training import Course, Training, now

if TYPE_CHECKING:
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

log = logging.getLogger(__name__)
_DEADLY = "attempts died quickly from it, again and again"

UNSEEN = "STATE_UNSPECIFIED"  # of a job that could not be looked at
LAST_WORD_SECONDS = 30.0


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
        self._held = ""  # the job that is not known to be over
        self._looked = False  # whether it is known what an earlier try has left

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
        self._looked = True
        number = history.newest_attempt
        if number == 0:
            # What is remembered of a lineage that was deleted is another training's.
            return self.submitter.submit(replace(course, ledger=Ledger()), 1, 0, "the first attempt")
        account = Account.of(history, number)
        if account.intent is None:
            return self.submitter.submit(course, number + 1, 0, "the attempt before was nobody's")
        return self._go_on(course, account)

    def _go_on(self, course: Course, account: Account) -> Step:
        """Decide about the newest attempt, which an earlier try or a lost worker submitted."""
        intent = account.intent
        cleared = self.training.cleared_since(intent)
        self._held = intent.job_name
        seen = self._glance(account, cleared)
        # Its container may have said something since, which the job's end alone does not show.
        account = Account.of(course.lineage.history(), account.number)
        if seen is None and account.silent:
            return self._carry_out(course, account, cleared)
        if seen is None and not self._over_without_job(course, account, cleared):
            # A job may not be found for minutes and run all the same: the trigger waits for that.
            return self.submitter.adopt(course, intent)
        seen = seen or JobSeen(name=intent.job_name, state=GONE)
        verdict = _known_or(judge(seen, account.end, started=account.started is not None), course, account)
        if verdict.kind is Kind.PENDING and not cleared:
            return self.submitter.adopt(course, intent, seen)
        if not seen.over or verdict.kind is Kind.LOST:
            there = self.hook.cancel(intent.job_name) is not None
            if verdict.kind is Kind.PENDING or (there and cleared and verdict.kind is Kind.LOST):
                log.info("The task was cleared while %s ran; it is cancelled", intent.job_name)
                verdict = Verdict(kind=Kind.CANCELLED, reason="the task was cleared")
        self._held = ""
        return self._follow(course, account, verdict, seen, news=not cleared and not _ended(course, account))

    def _follow(
        self, course: Course, account: Account, verdict: Verdict, seen: JobSeen, *, news: bool
    ) -> Step:
        """Finish, or let the next attempt follow; `news` is an end that no earlier try has dealt with."""
        course = self._accounted(course, account, verdict, seen)
        if verdict.kind is Kind.SUCCEEDED:
            return self._finish(course, account)
        log.info("Attempt %d: %s, %s", account.number, verdict.kind, verdict.reason)
        if news:
            self._heed(course, account, verdict)
        rung = next_rung(self.plan.rules.ladder, course.ledger, self.plan.rules.placement_policy)
        return self.submitter.submit(course, account.number + 1, rung or 0, verdict.reason)

    def _glance(self, account: Account, cleared: bool) -> JobSeen | None:
        """Look at the attempt's job; while the API is out, a job that goes on anyway is not in need of it."""
        name = account.intent.job_name
        try:
            return self.training.look(name)
        except Exception as error:
            if account.silent and self.training.denied(name, error):
                log.warning("%s was intended where nobody may look: %r", name, error)
                return None
            if cleared or not passing(error):
                raise
            log.warning("%s could not be looked at, so it is waited for: %r", name, error)
            return JobSeen(name=name, state=UNSEEN)

    def _over_without_job(self, course: Course, account: Account, cleared: bool) -> bool:
        """Whether a job that is not found needs no more patience."""
        return account.end is not None or cleared or _ended(course, account)

    def _carry_out(self, course: Course, account: Account, cleared: bool) -> Step:
        """Submit what was intended, as long as that is still what would be submitted.

        After a clear it is another one's: an intent says how often the task had been cleared by then.
        """
        intent = account.intent
        rung = rung_of(intent)
        if not cleared and same_job(intent, self.submitter.intended(course, account.number, rung)):
            log.info("Attempt %d was intended, its job was never created; it is now", account.number)
            return self.submitter.submit(course, account.number, rung, "intended before")
        log.info("Attempt %d was never created, and would be another one by now", account.number)
        try:
            self.hook.cancel(intent.job_name)  # should it have been made after all
        except Exception as error:
            if not self.training.denied(intent.job_name, error):
                raise
        return self.submitter.submit(course, account.number + 1, rung, "what was intended has changed")

    def _heed(self, course: Course, account: Account, verdict: Verdict) -> None:
        """Fail what cannot succeed although nobody was there to see its end, and set aside what kills."""
        adopted = int(account.intent.try_number) < self.training.try_number
        decision = decide(course.ledger, verdict, self.plan.rules, adopted=adopted)
        if decision.quarantine or decision.action is Action.FAIL:
            self._tell(course, decision, account.number + 1)
        if decision.action is Action.FAIL:
            raise _error(course.ledger.entries[-1], verdict, decision)

    # -- the legs after it -----------------------------------------------------

    def proceed(self, event: AttemptEvent) -> Step:
        """Take in the event of the attempt and do what follows from it."""
        carry = event.carry
        self._held, self._looked = event.job_name, True
        self.submitter.began, self.submitter.goes_on = float(carry["began"]), True
        lineage = self.training.open(int(carry["generation"]))
        course = Course(lineage, int(carry["generation"]), Ledger.from_dict(carry["ledger"]))
        seen = self._seen(event)  # before what its container has said: that comes before the job's end
        account = Account.of(lineage.history(), int(carry["attempt"]))
        verdict = self._verdict(event, seen, account)
        if verdict.kind is Kind.CANCELLED:  # by an earlier leg, which may have died of it
            verdict = _known_or(verdict, course, account)
        if verdict.kind is Kind.PENDING:
            log.info("%s: %s; the watch goes on", event.job_name, verdict.reason)
            return self.submitter.adopt(course, account.intent, begun=True)
        if not seen.over or verdict.kind is Kind.LOST:
            # What could not be found for long may run all the same.
            self._note(course, account.number, verdict)
            self.hook.cancel(event.job_name)
        self._held = ""
        return self._act(self._accounted(course, account, verdict, seen), account, verdict)

    def _note(self, course: Course, attempt: int, verdict: Verdict) -> None:
        """Keep why a job is cancelled, for when this worker dies, or Airflow keeps no state."""
        from airflow_resume_provider.checkpoints import VerdictRecord

        record = VerdictRecord(
            attempt=attempt,
            verdict=verdict.kind.value,
            reason=verdict.reason[:500],
            hopeless=verdict.hopeless,
            created=now(),
        )
        try:
            course.lineage.write_verdict(record)
        except ResumeError as error:
            log.warning("Why the job is ended could not be kept: %s", error)

    def _seen(self, event: AttemptEvent) -> JobSeen:
        """Return the job as it is now; what cannot be found now was seen by the trigger, and may be there."""
        gone = JobSeen(name=event.job_name, state=GONE)
        if event.kind is EventKind.UNREACHABLE:
            return gone
        known = event.job or gone
        if event.kind is EventKind.ENDED and event.job is not None:
            unclear = known.failing and not explained(known)
            return self.training.explained(event.job_name, known) if unclear else known
        return self.training.look(event.job_name) or known

    def _verdict(self, event: AttemptEvent, seen: JobSeen, account: Account) -> Verdict:
        if event.kind is EventKind.UNREACHABLE:
            return _in_the_dark(event, account, seen)
        started = account.started is not None
        verdict = judge(seen, account.end, started=started)
        # A deadline: what has changed since the trigger looked decides first.
        if event.kind is EventKind.DEADLINE and verdict.kind not in _FINAL:
            return Verdict(kind=Kind.TIMED_OUT, reason=event.message, hopeless=True)
        if event.kind is EventKind.ENDED or verdict.kind is not Kind.PENDING:
            return verdict
        if event.kind is EventKind.QUEUE_TIMEOUT:
            return waiting_reason(seen) if seen.waiting and not started else verdict
        return Verdict(kind=Kind.INFRASTRUCTURE, reason=f"stalled: {event.message}")

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
        if decision.action is Action.FINISH:
            return self._finish(course, account)
        self._tell(course, decision, account.number + 1)
        if decision.action is Action.RESUBMIT:
            return self.submitter.submit(course, account.number + 1, decision.rung, decision.reason)
        raise _error(course.ledger.entries[-1], verdict, decision)

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

    def _tell(self, course: Course, decision: Decision, next_attempt: int) -> None:
        """Set aside what kills and publish where the training stands; what fails here hides no verdict."""
        try:
            course.lineage.condemn(decision.quarantine, _DEADLY)
            self._show(course, next_attempt)
        except Exception:
            log.exception("It could not be published where the training stands")

    def _show(self, course: Course, next_attempt: int, own: Sequence[Any] = ()) -> Any:
        """Publish where the training stands after an attempt's end, and return its checkpoint."""
        reference = self.submitter.standing(course, next_attempt, own)
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
        reference = self._show(course, account.number + 1, account.checkpoints)
        self.publisher.asset_events(self.outlets, reference, course.training_id)
        result = summary(reference, course.ledger, account.number)
        log.info("The training finished: %s", result)
        return Finished(summary=result)

    def forsake(self, error: Exception) -> None:
        """Cancel the job that this leg holds if the leg ends by `error` and no try will adopt the job."""
        final = isinstance(error, TrainingFailed) or self.training.last_try
        waiting = self.waiting.job_name if self.waiting is not None else ""
        left = "" if self._looked or not final else self.publisher.remembered_job()
        for name in {self._held, waiting, left} - {""} if final else ():
            try:
                if self.hook.cancel(name, budget=LAST_WORD_SECONDS):
                    log.warning("%s is cancelled: no try is left that could adopt it", name)
            except Exception:
                log.exception("%s may still run; end it with: gcloud batch jobs cancel %s", name, name)


# What a training's time limit does not change: the rest would be followed by an attempt without time.
_FINAL = (Kind.SUCCEEDED, Kind.USER_ERROR, Kind.TIMED_OUT, Kind.CANCELLED, Kind.SUPERSEDED)


def _ended(course: Course, account: Account) -> bool:
    """Whether an earlier try, or leg, has taken in the attempt's end already."""
    known = course.ledger.get(account.number)
    return known is not None and known.verdict is not Kind.PENDING


def _known_or(verdict: Verdict, course: Course, account: Account) -> Verdict:
    """Return what an earlier leg found: it knew why it cancelled the job, which only looks cancelled now."""
    if verdict.kind in (Kind.PENDING, Kind.SUCCEEDED):
        return verdict
    known = course.ledger.get(account.number)
    if known is not None and known.verdict is not Kind.PENDING:
        hopeless = known.verdict is Kind.TIMED_OUT
        return Verdict(kind=known.verdict, reason=known.reason, exit_code=known.exit_code, hopeless=hopeless)
    noted = course.lineage.verdict(account.number) if verdict.kind is Kind.CANCELLED else None
    if noted is None or noted.verdict not in set(Kind):
        return verdict
    return Verdict(kind=Kind(noted.verdict), reason=noted.reason, hopeless=noted.hopeless)


def _in_the_dark(event: AttemptEvent, account: Account, seen: JobSeen) -> Verdict:
    """Judge without the API: what the container has finished is finished."""
    verdict = judge(seen, account.end)
    if verdict.kind is not Kind.SUCCEEDED:
        raise _unreachable(event)
    return verdict


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
