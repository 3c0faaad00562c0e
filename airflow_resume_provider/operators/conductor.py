"""Conducts one task instance through its attempts: the shell around the pure decisions.

Each method reads the lineage afresh. Whatever happened to the worker before,
the next step follows from what is in the store and in Batch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.decide import Action, Decision, decide
from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.ledger import Entry, Ledger
from airflow_resume_provider.attempts.observation import GONE, JobSeen
from airflow_resume_provider.attempts.placement import Placement, next_rung
from airflow_resume_provider.attempts.verdict import Kind, Verdict, judge, waiting_reason
from airflow_resume_provider.batch import jobs, labels
from airflow_resume_provider.errors import AttemptFailed, InvalidInput, NoProgressError
from airflow_resume_provider.hooks.lineages import Account, ledger_of, newest_generation, timed
from airflow_resume_provider.operators.failures import PreemptedRetry, TrainingFailed
from airflow_resume_provider.operators.plan import OnClear, Plan, Resume
from airflow_resume_provider.operators.publishing import JOB_NAME, RESUMED_FROM, Publisher, summary
from airflow_resume_provider.runtime.env import STORAGE_EMULATOR_HOST
from airflow_resume_provider.triggers.fence import HOLD_KEY, Hold

if TYPE_CHECKING:
    from airflow_resume_provider.checkpoints import Choice, History, Lineage, Reference
    from airflow_resume_provider.checkpoints.records import IntentRecord
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """An attempt is under way; `carry` comes back with its event."""

    job_name: str
    hold: Hold
    carry: Mapping[str, Any]
    placement: Placement
    lineage: str
    attempt: int
    submitted: float


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The training is done."""

    summary: Mapping[str, Any]


Step = Waiting | Finished


class Conductor:
    """One leg of one task instance."""

    def __init__(self, plan: Plan, hook: ResumableBatchHook, context: Any) -> None:
        self.plan = plan
        self.hook = hook
        self.ti = context["ti"]
        self.publisher = Publisher(context)
        self.outlets = getattr(context.get("task"), "outlets", None)
        run = context.get("dag_run")
        self.key = identity.TrainingKey(
            dag_id=self.ti.dag_id,
            task_id=self.ti.task_id,
            run_id=self.ti.run_id,
            run_after=_iso(getattr(run, "run_after", None)),
            map_index=-1 if self.ti.map_index is None else int(self.ti.map_index),
        )
        self.waiting: Waiting | None = None
        self.goes_on = False  # whether this leg follows an attempt of the same try
        self.began = time.time()  # of the try; a later leg takes it from the event

    @cached_property
    def store_options(self) -> Any:
        """How the store is reached."""
        return self.hook.store_options()

    def _open(self, uri: str) -> Lineage:
        from airflow_resume_provider.checkpoints import Lineage

        return Lineage.open(uri, options=self.store_options)

    # -- the first leg of a try ------------------------------------------------

    def begin(self) -> Step:
        """Adopt the running attempt, return the finished result, or submit the next attempt."""
        generation, lineage = self._generation()
        history = lineage.history()
        ledger = ledger_of(history, self._remembered(generation))
        number = history.newest_attempt
        if number == 0:
            return self._submit(lineage, generation, 1, ledger, 0, "the first attempt")
        account = Account.of(history, number)
        if account.intent is None:
            return self._submit(lineage, generation, number + 1, ledger, 0, "no intent of the attempt before")
        return self._go_on(lineage, generation, history, account, ledger)

    def _go_on(
        self, lineage: Lineage, generation: int, history: History, account: Account, ledger: Ledger
    ) -> Step:
        """Decide about the newest attempt, which an earlier try or a lost worker submitted."""
        intent = account.intent
        seen = self._look(intent.job_name)
        if seen is None and account.started is None and account.end is None:
            log.info("Attempt %d was intended, its job was never created; it is now", account.number)
            return self._submit(lineage, generation, account.number, ledger, _rung(intent), "intended before")
        seen = seen or JobSeen(name=intent.job_name, state=GONE)
        verdict = judge(seen, account.end, started=account.started is not None)
        if verdict.kind is Kind.SUCCEEDED:
            return self._finish(lineage, account, self._accounted(ledger, account, verdict, seen))
        if verdict.kind is Kind.PENDING and not self._cleared(intent):
            return self._adopt(lineage, generation, account, ledger)
        if verdict.kind is Kind.PENDING:
            log.info("The task was cleared while %s ran; it is cancelled", intent.job_name)
            self.hook.cancel(intent.job_name)
            verdict = Verdict(kind=Kind.CANCELLED, reason="the task was cleared")
        ledger = self._accounted(ledger, account, verdict, seen)
        self._cancel_strays(history, ledger)
        log.info("Attempt %d: %s, %s", account.number, verdict.kind, verdict.reason)
        rung = next_rung(self.plan.rules.ladder, ledger, self.plan.rules.placement_policy)
        return self._submit(lineage, generation, account.number + 1, ledger, rung or 0, verdict.reason)

    def _cleared(self, intent: IntentRecord) -> bool:
        """Whether a person cleared the task since: only that raises max_tries."""
        before = (intent.extra or {}).get("max_tries")
        return before is not None and int(self.ti.max_tries or 0) > int(before)

    def _generation(self) -> tuple[int, Lineage]:
        """Return the generation to work in; a deliberate fresh start makes a new one."""
        from airflow_resume_provider.checkpoints.records import TrainingRecord

        newest, lineage = newest_generation(self.key, self.plan.root, self._open)
        if lineage is not None and not self._starts_afresh(lineage):
            return newest, lineage
        if lineage is not None:
            self._abandon(lineage)
        uri = self.key.lineage_uri(self.plan.root, newest + 1)
        lineage = self._open(uri)
        lineage.ensure_training(
            TrainingRecord(
                training_id=identity.training_id(uri),
                generation=newest + 1,
                dag_id=self.key.dag_id,
                task_id=self.key.task_id,
                run_id=self.key.run_id,
                run_after=self.key.run_after,
                map_index=self.key.map_index,
                created=_now(),
                extra={"max_tries": int(self.ti.max_tries or 0), "try_number": int(self.ti.try_number)},
            )
        )
        return newest + 1, lineage

    def _starts_afresh(self, lineage: Lineage) -> bool:
        training = lineage.training()
        extra = dict(training.extra) if training else {}
        newer_try = int(self.ti.try_number) > int(extra.get("try_number", 0))
        if self.plan.resume is Resume.NEVER:
            return newer_try
        cleared = int(self.ti.max_tries or 0) > int(extra.get("max_tries", 0))
        return self.plan.on_clear is OnClear.FRESH and cleared and newer_try

    def _abandon(self, lineage: Lineage) -> None:
        """Cancel what still runs of the generation before."""
        history = lineage.history()
        self._cancel_strays(history, ledger_of(history, Ledger()), newest_too=True)

    def _cancel_strays(self, history: History, ledger: Ledger, *, newest_too: bool = False) -> None:
        """Cancel jobs whose kill never came: attempts of which no end is known."""
        for attempt in history.attempts:
            known = ledger.get(attempt.number)
            over = attempt.end is not None or (known is not None and known.verdict is not Kind.PENDING)
            newest = attempt.number == history.newest_attempt and not newest_too
            if over or newest or attempt.intent is None:
                continue
            seen = self._look(attempt.intent.job_name)
            if seen is not None and not seen.over:
                log.warning("%s still ran although its task is gone; it is cancelled", seen.name)
                self.hook.cancel(seen.name)

    # -- the legs after it -----------------------------------------------------

    def proceed(self, event: AttemptEvent) -> Step:
        """Take in the event of the attempt and do what follows from it."""
        carry = event.carry
        self.began = float(carry["began"])
        self.goes_on = True
        generation, number = int(carry["generation"]), int(carry["attempt"])
        lineage = self._open(self.key.lineage_uri(self.plan.root, generation))
        account = Account.of(lineage.history(), number)
        ledger = Ledger.from_dict(carry["ledger"])
        if event.kind is EventKind.UNREACHABLE:
            raise self._unreachable(event)
        seen, verdict = self._verdict(event, account)
        if verdict.kind is Kind.PENDING:
            log.info("%s: %s; the watch goes on", event.job_name, verdict.reason)
            return self._adopt(lineage, generation, account, ledger)
        if not seen.over:
            self.hook.cancel(event.job_name)
        ledger = self._accounted(ledger, account, verdict, seen)
        return self._act(lineage, generation, account, ledger, verdict)

    def _verdict(self, event: AttemptEvent, account: Account) -> tuple[JobSeen, Verdict]:
        if event.kind is EventKind.ENDED and event.job is not None:
            return event.job, judge(event.job, account.end, started=account.started is not None)
        # A deadline: what has changed since the trigger looked decides first.
        seen = self._look(event.job_name) or JobSeen(name=event.job_name, state=GONE)
        verdict = judge(seen, account.end, started=account.started is not None)
        if verdict.kind is not Kind.PENDING:
            return seen, verdict
        if event.kind is EventKind.QUEUE_TIMEOUT:
            started = seen.state == "RUNNING"
            return seen, verdict if started else waiting_reason(seen)
        if event.kind is EventKind.STALLED:
            return seen, Verdict(kind=Kind.INFRASTRUCTURE, reason=f"stalled: {event.message}")
        return seen, Verdict(kind=Kind.TIMED_OUT, reason=event.message, hopeless=True)

    def _unreachable(self, event: AttemptEvent) -> AttemptFailed:
        return AttemptFailed(
            f"{event.job_name} is out of sight: {event.message}.",
            did="The job was left running.",
            can="The next try adopts it.",
            job_name=event.job_name,
        )

    def _act(
        self, lineage: Lineage, generation: int, account: Account, ledger: Ledger, verdict: Verdict
    ) -> Step:
        entry = ledger.get(account.number) or Entry(number=account.number)
        adopted = account.intent is not None and int(account.intent.try_number) < int(self.ti.try_number)
        decision = decide(ledger, verdict, self.plan.rules, adopted=adopted)
        log.info(
            "Attempt %d: %s, %s. Next: %s", account.number, verdict.kind, verdict.reason, decision.action
        )
        if decision.quarantine:
            self._quarantine(lineage, decision.quarantine)
        if decision.action is Action.FINISH:
            return self._finish(lineage, account, ledger)
        if decision.action is Action.RESUBMIT:
            self._show(lineage, ledger, account.number + 1, generation)
            return self._submit(
                lineage, generation, account.number + 1, ledger, decision.rung, decision.reason
            )
        self._show(lineage, ledger, account.number + 1, generation)
        raise self._error(entry, verdict, decision)

    def _error(self, entry: Entry, verdict: Verdict, decision: Decision) -> Exception:
        kind = NoProgressError if decision.no_progress else AttemptFailed
        if decision.immediately:
            kind = PreemptedRetry
        error = kind(
            f"Attempt {entry.number} ({entry.job_name}) ended as {verdict.kind}: {decision.reason}.",
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

    def _quarantine(self, lineage: Lineage, uri: str) -> None:
        log.warning("%s is put in quarantine: attempts died quickly from it, again and again", uri)
        lineage.quarantine(uri, "attempts died quickly from it, again and again")

    # -- what both share -------------------------------------------------------

    def _look(self, job_name: str) -> JobSeen | None:
        seen = self.hook.look(job_name)
        failed = seen is not None and (seen.state == "FAILED" or seen.failed_tasks)
        return self.hook.look(job_name, with_tasks=True) if failed else seen

    def _accounted(self, ledger: Ledger, account: Account, verdict: Verdict, seen: JobSeen) -> Ledger:
        """Return the ledger with the attempt's end in it."""
        intent = account.intent
        last = account.checkpoints[-1] if account.checkpoints else None
        entry = Entry(
            number=account.number,
            verdict=verdict.kind,
            reason=verdict.reason[:300],
            exit_code=verdict.exit_code,
            job_name=seen.name,
            rung=_rung(intent),
            try_number=int(intent.try_number) if intent else int(self.ti.try_number),
            clears=int((intent.extra or {}).get("max_tries", 0)) if intent else 0,
            commits=len(account.checkpoints),
            resumed_from=account.started.resumed_from if account.started else "",
            step=last.step if last else 0,
        )
        ended = max((event.time for event in seen.events), default=0.0) or time.time()
        return ledger.with_entry(timed(entry, account, ended, self.store_options))

    def _adopt(self, lineage: Lineage, generation: int, account: Account, ledger: Ledger) -> Step:
        intent = account.intent
        log.info("Adopting attempt %d, %s", account.number, intent.job_name)
        reference = self._choose(lineage, account.number).reference
        placement = _placement(intent.placement, self.plan.rules.ladder[0])
        return self._wait(lineage, generation, account.number, intent, placement, ledger, reference)

    def _choose(self, lineage: Lineage, attempt: int) -> Choice:
        choice = lineage.choose(attempt, fallback=self.plan.resume_from)
        if choice.reference is None and self.plan.resume_from:
            # The author named it; starting afresh instead would train the wrong thing.
            reasons = {passed.uri: passed.reason for passed in choice.passed_over}
            why = reasons.get(self.plan.resume_from, choice.why)
            raise TrainingFailed(f"resume_from={self.plan.resume_from} cannot be used: {why}")
        return choice

    def _submit(
        self, lineage: Lineage, generation: int, attempt: int, ledger: Ledger, rung: int, reason: str
    ) -> Step:
        """Write the intent, publish, create the job, in this order; each step can be repeated."""
        choice = self._choose(lineage, attempt)
        self._require(choice)
        placement = self.plan.rules.ladder[min(rung, len(self.plan.rules.ladder) - 1)]
        wanted = self._intent(lineage, attempt, placement, rung, choice.reference, ledger, reason)
        intent = lineage.write_intent(wanted)
        placement = _placement(intent.placement, placement)
        parent, _, job_id = intent.job_name.rpartition("/jobs/")
        waiting = self._wait(lineage, generation, attempt, intent, placement, ledger, choice.reference)
        job = self._job(lineage, intent, placement, job_id)
        try:
            created, adopted = self.hook.submit(job, parent, job_id)
        except Exception as error:
            raise self._not_submitted(error, intent.job_name) from error
        verb = "Adopted" if adopted else "Submitted"
        log.info("%s %s as attempt %d on %s: %s", verb, created.name, attempt, placement, choice.why)
        return waiting

    def _require(self, choice: Choice) -> None:
        if self.plan.resume is Resume.REQUIRED and choice.reference is None:
            raise TrainingFailed(
                f"resume='required', but there is no checkpoint to resume from: {choice.why}"
            )

    def _not_submitted(self, error: Exception, job_name: str) -> Exception:
        from google.api_core import exceptions

        hopeless = (
            exceptions.InvalidArgument,
            exceptions.PermissionDenied,
            exceptions.NotFound,
            InvalidInput,
        )
        message = f"{job_name} could not be submitted: {error}"
        return TrainingFailed(message) if isinstance(error, hopeless) else AttemptFailed(message)

    def _intent(
        self,
        lineage: Lineage,
        attempt: int,
        placement: Placement,
        rung: int,
        reference: Reference | None,
        ledger: Ledger,
        reason: str,
    ) -> IntentRecord:
        from airflow_resume_provider.checkpoints.records import IntentRecord

        training = identity.training_id(lineage.uri)
        job_id = identity.job_id(self.key, training, attempt)
        return IntentRecord(
            attempt=attempt,
            job_name=f"projects/{self.plan.project}/locations/{placement.region}/jobs/{job_id}",
            placement=placement.to_dict(),
            offered=self._offered(reference),
            try_number=int(self.ti.try_number),
            token=self._token(training, attempt),
            created=_now(),
            reason=reason[:500],
            extra={"ledger": ledger.to_dict(), "rung": rung, "max_tries": int(self.ti.max_tries or 0)},
        )

    def _offered(self, reference: Reference | None) -> str:
        """The URI handed to the container: what the attempt before published, else the choice."""
        # A new try begins without XComs; only the legs after its first one can read any.
        published = self.publisher.published_reference() if self.goes_on else None
        if published is not None and reference is not None and published["uri"] == reference.uri:
            return str(published["uri"])
        return reference.uri if reference else ""

    def _token(self, training: str, attempt: int) -> str:
        return identity.attempt_token(
            training, attempt, int(self.ti.try_number), str(getattr(self.ti, "id", ""))
        )

    def _job(self, lineage: Lineage, intent: IntentRecord, placement: Placement, job_id: str) -> Any:
        training = identity.training_id(lineage.uri)
        options = dict(self.plan.options)
        emulator = os.environ.get(STORAGE_EMULATOR_HOST)
        if emulator and self.hook.endpoint.emulated:
            options[STORAGE_EMULATOR_HOST] = emulator
        contract = jobs.ContractSpec(
            lineage=lineage.uri,
            attempt=intent.attempt,
            training_id=training,
            job_id=job_id,
            job_name=intent.job_name,
            offered=intent.offered,
            explicit=bool(self.plan.resume_from) and intent.offered == self.plan.resume_from,
            format=self.plan.format,
            spec_digest=self.plan.spec_digest,
            options=options,
        )
        day = labels.day_of(_submitted(intent))
        tags = labels.job_labels(
            self.key, training, intent.attempt, int(intent.try_number), day, self.plan.labels
        )
        plan = self.plan
        return jobs.message(
            jobs.build(plan.container, plan.machine, placement, contract, tags, plan.override)
        )

    def _wait(
        self,
        lineage: Lineage,
        generation: int,
        attempt: int,
        intent: IntentRecord,
        placement: Placement,
        ledger: Ledger,
        reference: Reference | None,
    ) -> Waiting:
        """Publish what people, downstream tasks and the next leg need, and say what is waited for."""
        hold = Hold(
            dag_id=self.key.dag_id,
            task_id=self.key.task_id,
            run_id=self.key.run_id,
            map_index=self.key.map_index,
            job_name=intent.job_name,
            token=self._token(identity.training_id(lineage.uri), attempt),
        )
        entry = Entry(
            number=attempt,
            job_name=intent.job_name,
            rung=_rung(intent),
            try_number=int(intent.try_number),
            clears=int((intent.extra or {}).get("max_tries", 0)),
        )
        ledger = ledger.with_entry(entry)
        self.publisher.checkpoint(reference)
        self.publisher.xcom(RESUMED_FROM, intent.offered)
        self.publisher.xcom(JOB_NAME, intent.job_name)
        self.publisher.xcom(HOLD_KEY, hold.to_xcom())
        self.publisher.history(ledger)
        self._remember(ledger, generation, reference)
        self.waiting = Waiting(
            job_name=intent.job_name,
            hold=hold,
            carry={
                "generation": generation,
                "attempt": attempt,
                "began": self.began,
                "ledger": ledger.to_dict(),
            },
            placement=placement,
            lineage=lineage.uri,
            attempt=attempt,
            submitted=_submitted(intent),
        )
        return self.waiting

    def _remember(self, ledger: Ledger, generation: int, reference: Reference | None) -> None:
        state = {"generation": generation, "ledger": ledger.to_dict()}
        if reference is not None:
            state["checkpoint"] = reference.to_dict()
        self.publisher.remember(state)

    def _remembered(self, generation: int) -> Ledger:
        state = self.publisher.remembered()
        same = state.get("generation") == generation
        return Ledger.from_dict(state.get("ledger")) if same else Ledger()

    def _show(self, lineage: Lineage, ledger: Ledger, next_attempt: int, generation: int) -> Reference | None:
        """Publish where the training stands after an attempt's end."""
        reference = self._choose(lineage, next_attempt).reference
        last = ledger.entries[-1]
        self.publisher.checkpoint(reference)
        self.publisher.xcom(RESUMED_FROM, last.resumed_from)
        self.publisher.history(ledger)
        self._remember(ledger, generation, reference)
        return reference

    def _finish(self, lineage: Lineage, account: Account, ledger: Ledger) -> Finished:
        training = lineage.training()
        generation = training.generation if training else 1
        reference = self._show(lineage, ledger, account.number + 1, generation)
        self.publisher.xcom(JOB_NAME, account.intent.job_name)
        self.publisher.asset_events(self.outlets, reference, identity.training_id(lineage.uri))
        result = summary(reference, ledger, account.number)
        log.info("The training finished: %s", result)
        return Finished(summary=result)


_DID = {
    Action.RETRY: "Airflow's own retries decide.",
    Action.FAIL: "It is not retried.",
}


def _rung(intent: IntentRecord | None) -> int:
    return int((intent.extra or {}).get("rung", 0)) if intent is not None else 0


def _placement(data: Mapping[str, Any], default: Placement) -> Placement:
    """Read a placement back; one written by an older version lacks what it did not know."""
    if not data:
        return default
    known = {k: v for k, v in data.items() if k in Placement.__dataclass_fields__}
    return replace(default, **{**known, "zones": tuple(known.get("zones", ()))})


def _submitted(intent: IntentRecord) -> float:
    return datetime.fromisoformat(intent.created).timestamp() if intent.created else time.time()


def _iso(moment: Any) -> str:
    return moment.isoformat() if hasattr(moment, "isoformat") else str(moment or "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
