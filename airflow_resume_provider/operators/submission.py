"""Submitting an attempt: intent, publication, job, in this order, each of which can be repeated.

A worker may die between any two of them. The intent says under which name the
job would have been made, the name is derived, and a name that is taken is
looked at: so the next worker finds the job, or makes the same one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.ledger import Entry
from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.batch import jobs, labels
from airflow_resume_provider.errors import AttemptFailed, InvalidInput, JobNotOurs, ManifestError
from airflow_resume_provider.operators import killing
from airflow_resume_provider.operators.failures import TrainingFailed
from airflow_resume_provider.operators.plan import Resume
from airflow_resume_provider.operators.publishing import Publisher
from airflow_resume_provider.operators.training import Course, Training, now
from airflow_resume_provider.runtime.env import STORAGE_EMULATOR_HOST
from airflow_resume_provider.triggers.fence import Hold

if TYPE_CHECKING:
    from airflow_resume_provider.attempts.observation import JobSeen
    from airflow_resume_provider.checkpoints import Choice, IntentRecord, Reference

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What links point to."""

    job_name: str
    attempt: int
    training_id: str
    lineage: str
    checkpoint_uri: str = ""


@dataclass(frozen=True, kw_only=True)
class Waiting(Shown):
    """An attempt is under way; `carry` comes back with its event."""

    hold: Hold
    carry: Mapping[str, Any]
    placement: Placement
    submitted: float
    queued: float  # since when it waits for a VM; an intent may be older than its job


class Submitter:
    """Submits and adopts attempts for one task instance."""

    def __init__(self, training: Training, publisher: Publisher, carried: Mapping[str, Any]) -> None:
        self.training = training
        self.plan = training.plan
        self.publisher = publisher
        self.carried = carried
        self.waiting: Waiting | None = None
        self.killed = False  # a person ended the task while this leg was at work
        self.disturbed = False  # somebody ended the task's process before there was anything to cancel
        self.goes_on = False  # whether this leg follows an attempt of the same try
        self.began = time.time()  # of the try; a later leg takes it from its event

    def choose(self, course: Course, attempt: int) -> Choice:
        """Choose what an attempt resumes from; what the author named must be usable."""
        try:
            choice = course.lineage.choose(attempt, fallback=self.plan.resume_from)
        except ManifestError as error:
            # A lineage that only a newer version can read, or that names no owner, stays so.
            raise TrainingFailed(str(error)) from error
        if choice.reference is None and self.plan.resume_from:
            # Starting afresh instead would train the wrong thing.
            reasons = {passed.uri: passed.reason for passed in choice.passed_over}
            why = reasons.get(self.plan.resume_from, choice.why)
            raise TrainingFailed(f"resume_from={self.plan.resume_from} cannot be used: {why}")
        return choice

    def standing(self, course: Course, attempt: int, own: Sequence[Reference] = ()) -> Reference | None:
        """Return the checkpoint that stands before an attempt, to be shown: nothing else depends on it.

        What was named to begin with may be gone by the time that nobody needs it any more. Where something
        that cannot be read stands in the way, the newest of the attempt's `own` that may be chosen counts.
        """
        try:
            return self.choose(course, attempt).reference
        except TrainingFailed as error:
            log.warning("%s", error)
            if not isinstance(error.__cause__, ManifestError):
                return None
        usable = (each for each in reversed(own) if not course.lineage.quarantine_reason(each))
        return next(usable, None)

    def adopt(
        self, course: Course, intent: IntentRecord, seen: JobSeen | None = None, *, begun: bool = False
    ) -> Waiting:
        """Wait for a job that is there already; one that has `begun` is past its queue deadline for good."""
        log.info("Adopting attempt %d, %s", intent.attempt, intent.job_name)
        reference = self.standing(course, intent.attempt)
        placement = placement_of(intent, self.plan.rules.ladder[0])
        placement = replace(placement, queue_timeout=None) if begun else placement
        waiting = self._wait(course, intent, placement, reference)
        if self._is_unwanted(waiting):
            self.training.hook.cancel(intent.job_name)
            raise AttemptFailed(
                "The task was ended while its job was looked at.", did="The job is cancelled."
            )
        return self._queued(seen.created if seen is not None else 0.0)

    def _queued(self, since: float) -> Waiting:
        assert self.waiting is not None
        self.waiting = replace(self.waiting, queued=since or self.waiting.queued)
        return self.waiting

    def submit(self, course: Course, attempt: int, rung: int, reason: str) -> Waiting:
        """Submit an attempt, or adopt its job when somebody was quicker."""
        choice = self.choose(course, attempt)
        self._require(choice)
        wanted = self.intended(course, attempt, rung, choice, reason)
        intent = course.lineage.write_intent(wanted)
        placement = placement_of(intent, self._rung(rung))
        waiting = self._wait(course, intent, placement, choice.reference)
        parent, _, job_id = intent.job_name.rpartition("/jobs/")
        job = self._job(course, intent, placement, job_id)
        if self._is_unwanted(waiting):
            self.waiting = None
            raise AttemptFailed("The task was ended before its job was there.", did="No job was created.")
        try:
            created, adopted = self.training.hook.submit(job, parent, job_id)
        except Exception as error:
            failure = _not_submitted(error, intent.job_name)
            if isinstance(failure, TrainingFailed):
                self.waiting = None  # refused: what has this name, if anything, is not ours to cancel
            raise failure from error
        if self.killed:
            # The kill came between the intent and the job, when there was nothing to cancel yet.
            self.training.hook.cancel(intent.job_name)
        if adopted and intent is wanted and self._is_older(intent):
            log.warning("%s is of an earlier training, whose lineage was deleted", intent.job_name)
            return self.submit(course, attempt + 1, rung, reason)
        verb = "Adopted" if adopted else "Submitted"
        log.info("%s %s as attempt %d on %s: %s", verb, created.name, attempt, placement, choice.why)
        return waiting if adopted else self._queued(time.time())

    def _is_unwanted(self, waiting: Waiting) -> bool:
        """Whether a person ended the task before there was anything to cancel."""
        return self.disturbed and killing.meant(waiting.hold, self.training.last_try)

    def _is_older(self, intent: IntentRecord) -> bool:
        """Whether the job that has the name of what was intended just now was over before that."""
        seen = self.training.hook.look(intent.job_name)
        return seen is not None and seen.over and 0 < seen.created < submitted_at(intent)

    def _rung(self, rung: int) -> Placement:
        return self.plan.rules.ladder[min(rung, len(self.plan.rules.ladder) - 1)]

    def _require(self, choice: Choice) -> None:
        if self.plan.resume is Resume.REQUIRED and choice.reference is None:
            raise TrainingFailed(
                f"resume='required', but there is no checkpoint to resume from: {choice.why}"
            )

    def intended(
        self, course: Course, attempt: int, rung: int, choice: Choice | None = None, reason: str = ""
    ) -> IntentRecord:
        """Return what would be submitted now, by today's parameters and today's checkpoints."""
        from airflow_resume_provider.checkpoints import IntentRecord

        reference = (choice or self.choose(course, attempt)).reference
        placement = self._rung(rung)
        job_id = identity.job_id(self.training.key, course.training_id, attempt)
        return IntentRecord(
            attempt=attempt,
            job_name=f"projects/{self.plan.project}/locations/{placement.region}/jobs/{job_id}",
            placement=placement.to_dict(),
            offered=self._offered(reference),
            try_number=self.training.try_number,
            token=self.training.token(course.training_id, attempt),
            created=now(),
            reason=reason[:500],
            extra={"ledger": course.ledger.to_dict(), "rung": rung, "max_tries": self.training.max_tries},
        )

    def _offered(self, reference: Reference | None) -> str:
        """The URI handed to the container: what the attempt before published, while the store agrees."""
        # A new try begins without XComs; only the legs after its first one can read any.
        published = self.publisher.published_reference() if self.goes_on else None
        if published is not None and reference is not None and published["uri"] == reference.uri:
            return str(published["uri"])
        return reference.uri if reference else ""

    def _job(self, course: Course, intent: IntentRecord, placement: Placement, job_id: str) -> Any:
        plan = self.plan
        contract = jobs.ContractSpec(
            lineage=course.lineage.uri,
            attempt=intent.attempt,
            training_id=course.training_id,
            job_id=job_id,
            job_name=intent.job_name,
            offered=intent.offered,
            explicit=bool(plan.resume_from) and intent.offered == plan.resume_from,
            format=plan.format,
            spec_digest=plan.spec_digest,
            options={**plan.options, **self._emulator()},
        )
        tags = labels.job_labels(
            self.training.key,
            course.training_id,
            intent.attempt,
            int(intent.try_number),
            labels.day_of(submitted_at(intent)),
            plan.labels,
        )
        return jobs.message(
            jobs.build(plan.container, plan.machine, placement, contract, tags, plan.override)
        )

    def _emulator(self) -> dict[str, str]:
        emulator = os.environ.get(STORAGE_EMULATOR_HOST)
        emulated = emulator and self.training.hook.endpoint.emulated
        return {STORAGE_EMULATOR_HOST: emulator} if emulator and emulated else {}

    def _wait(
        self, course: Course, intent: IntentRecord, placement: Placement, reference: Reference | None
    ) -> Waiting:
        """Publish what people, downstream tasks and the next leg need, and say what is waited for."""
        key = self.training.key
        hold = Hold(
            dag_id=key.dag_id,
            task_id=key.task_id,
            run_id=key.run_id,
            map_index=key.map_index,
            job_name=intent.job_name,
            token=self.training.token(course.training_id, intent.attempt),
            gcp_conn_id=self.training.hook.gcp_conn_id,
            impersonation_chain=self.training.hook.impersonation_chain,
        )
        course = replace(course, ledger=course.ledger.with_entry(_pending(intent)))
        self.publisher.standing(course, reference, intent.offered)
        self.publisher.hold(hold)
        self.waiting = Waiting(
            job_name=intent.job_name,
            hold=hold,
            carry={
                **self.carried,
                "generation": course.generation,
                "attempt": intent.attempt,
                "began": self.began,
                "ledger": course.ledger.to_dict(),
            },
            placement=placement,
            lineage=course.lineage.uri,
            training_id=course.training_id,
            checkpoint_uri=reference.uri if reference else "",
            attempt=intent.attempt,
            submitted=submitted_at(intent),
            queued=submitted_at(intent),
        )
        return self.waiting


def _not_submitted(error: Exception, job_name: str) -> Exception:
    from google.api_core import exceptions

    hopeless = (
        exceptions.BadRequest,
        exceptions.Forbidden,
        exceptions.NotFound,
        InvalidInput,
        JobNotOurs,
    )
    message = f"{job_name} could not be submitted: {type(error).__name__}: {error}"
    return TrainingFailed(message) if isinstance(error, hopeless) else AttemptFailed(message)


def _pending(intent: IntentRecord) -> Entry:
    return Entry(
        number=intent.attempt,
        job_name=intent.job_name,
        rung=rung_of(intent),
        try_number=int(intent.try_number),
        clears=clears_of(intent),
    )


def rung_of(intent: IntentRecord | None) -> int:
    """Return the rung an attempt ran on."""
    return int((intent.extra or {}).get("rung", 0)) if intent is not None else 0


def clears_of(intent: IntentRecord | None) -> int:
    """Return `max_tries` when an attempt was intended."""
    return int((intent.extra or {}).get("max_tries", 0)) if intent is not None else 0


def placement_of(intent: IntentRecord, default: Placement) -> Placement:
    """Read an intent's placement; one written by another version lacks what that did not know."""
    known = {k: v for k, v in intent.placement.items() if k in Placement.__dataclass_fields__}
    return replace(default, **{**known, "zones": tuple(known.get("zones", default.zones))})


def same_job(one: IntentRecord, other: IntentRecord) -> bool:
    """Return whether two intents of one attempt stand for the same job, as far as both say."""
    said = one.placement.keys() & other.placement.keys()
    where = all(one.placement[key] == other.placement[key] for key in said)
    return where and (one.job_name, one.offered) == (other.job_name, other.offered)


def submitted_at(intent: IntentRecord) -> float:
    """Return when an attempt was intended, seconds since the epoch."""
    return datetime.fromisoformat(intent.created).timestamp() if intent.created else time.time()
