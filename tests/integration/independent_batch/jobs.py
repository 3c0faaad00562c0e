"""The jobs of the independent Batch server: what they are, and what its clock makes of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.cloud import batch_v1

from tests.integration.independent_batch.quirks import Quirks

State = batch_v1.JobStatus.State
TaskState = batch_v1.TaskStatus.State
OVER = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
ENDING = frozenset({State.CANCELLATION_IN_PROGRESS, State.DELETION_IN_PROGRESS})
NOVEL = 77
SEEN = 3  # answers that show a deletion: one that nobody sees is a loss, not a person's act
NUMBER = "123456789012"
WORDS = {50001: "due to Spot VM preemption", 50002: "due to Batch no longer receives VM updates"}
QUOTA = (
    "Quota checking process decided to delay scheduling for the job due to inadequate quotas"
    " [Quota: GPUS_ALL_REGIONS, limit: 0, usage: 0, wanted: 1.]. CODE_GCE_QUOTA_EXCEEDED"
)


@dataclass(frozen=True)
class Fate:
    """What becomes of a job: it stays queued, vanishes, is ended by a person, or ends with this code."""

    kind: str  # "ends", "queued", "runs on", "vanishes", "cancelled", "deleted"
    code: int = 0


@dataclass
class Held:
    """One job on the server."""

    name: str
    spec: batch_v1.Job
    created: datetime
    state: int = State.QUEUED
    fate: Fate | None = None
    events: list[batch_v1.StatusEvent] = field(default_factory=list)
    task_state: int = TaskState.PENDING
    reads: int = 0
    task_reads: int = 0
    ending: int = 0
    shown_ending: int = 0

    @property
    def alive(self) -> bool:
        """Whether it is paid for, or will be."""
        return self.state not in OVER and self.state not in ENDING

    @property
    def label(self) -> str:
        """Whose it is."""
        return str(self.spec.labels["resume_training"])


class Jobs:
    """All jobs that there are and ever were; `container` plays what runs in a job and says its fate."""

    def __init__(self, quirks: Quirks, container: Callable[[Held], Fate], seed: int = 0) -> None:
        self.quirks = quirks
        self.container = container
        self.dice = random.Random(seed)
        self.held: dict[str, Held] = {}
        self.created: list[Held] = []
        self.two_at_once: list[str] = []

    def create(self, name: str, spec: batch_v1.Job) -> Held:
        """Make a job, and note whether its training has one already."""
        held = Held(name, spec, datetime.now(UTC))
        self.two_at_once += [o.name for o in self.held.values() if o.alive and o.label == held.label]
        self.held[name] = held
        self.created.append(held)
        return held

    # -- the clock -------------------------------------------------------------

    def step(self) -> None:
        """Let a little time pass for each job."""
        for held in list(self.held.values()):
            if held.state in ENDING:
                self._end(held)
            elif held.state not in OVER and self.dice.random() < 0.7:
                self._go_on(held)

    def _end(self, held: Held) -> None:
        held.ending += 1
        unseen = held.state == State.DELETION_IN_PROGRESS and held.shown_ending < SEEN
        if held.ending <= self.quirks.slow_cancel or unseen:
            return
        if held.state == State.DELETION_IN_PROGRESS:
            del self.held[held.name]
        else:
            self.set(held, State.CANCELLED)

    def _go_on(self, held: Held) -> None:
        if held.fate is None and held.state == State.QUEUED and self.quirks.novel_states:
            self.set(held, NOVEL)
        elif held.state in (State.QUEUED, NOVEL):
            self._schedule(held)
        elif held.state == State.SCHEDULED:
            held.task_state = TaskState.RUNNING
            self.set(held, State.RUNNING)
        elif held.state == State.RUNNING:
            self._run(held)

    def _schedule(self, held: Held) -> None:
        held.fate = held.fate or self.container(held)
        if held.fate.kind != "queued":
            self.set(held, State.SCHEDULED)
        elif not any(e.description == QUOTA for e in held.events):
            self.say(held, QUOTA)

    def _run(self, held: Held) -> None:
        assert held.fate is not None
        kind, code = held.fate.kind, held.fate.code
        if kind == "vanishes":
            del self.held[held.name]
        elif kind == "cancelled":
            self.set(held, State.CANCELLATION_IN_PROGRESS)
        elif kind == "deleted":
            self.set(held, State.DELETION_IN_PROGRESS)
        elif kind == "ends":
            held.task_state = TaskState.FAILED if code else TaskState.SUCCEEDED
            held.events += [] if self.quirks.hides_job_words else [self._failure(held, code)] * bool(code)
            self.set(held, State.FAILED if code else State.SUCCEEDED)

    # -- what is told ----------------------------------------------------------

    def set(self, held: Held, state: int) -> None:
        """Change a job's state and say so in an event."""
        self.say(
            held, f"Job state is set from {name_of(held.state)} to {name_of(state)} for job {held.name}."
        )
        held.state = state

    def say(self, held: Held, words: str) -> None:
        """Add an event."""
        held.events.append(self._event(words))

    def _event(self, words: str, **more: Any) -> batch_v1.StatusEvent:
        event = batch_v1.StatusEvent(type_="STATUS_CHANGED", description=words, **more)
        if self.quirks.stamps != "none":
            event.event_time = (
                datetime.now(UTC) if self.quirks.stamps == "all" else datetime(2026, 1, 1, tzinfo=UTC)
            )
        return event

    def _failure(self, held: Held, code: int, *, of_task: bool = False) -> batch_v1.StatusEvent:
        why = WORDS.get(code, "")
        told = f" with exit code {code}" if self.quirks.exit_codes != "tasks" or of_task else ""
        words = f"Task state is updated from RUNNING to FAILED on zones/z/instances/1 {why}{told}."
        if self.quirks.exit_codes == "words" or not of_task:
            return self._event(words)
        return self._event(words, task_execution=batch_v1.TaskExecution(exit_code=code))

    def shown(self, held: Held, *, listed: bool = False) -> batch_v1.Job:
        """Return the job as an answer has it."""
        held.shown_ending += held.state in ENDING
        job = batch_v1.Job(held.spec)
        job.name = self.name_in_answers(held.name)
        job.uid = str(uuid.uuid5(uuid.NAMESPACE_URL, held.name)) if self.quirks.uids else ""
        job.create_time = held.created
        events = list(held.events) if self.quirks.lists_events or not listed else []
        if self.quirks.shuffles_events:
            self.dice.shuffle(events)
        job.status = batch_v1.JobStatus(status_events=events)
        # The wrapper refuses numbers it does not know; the wire does not.
        batch_v1.Job.pb(job).status.state = int(held.state)
        return job

    def tasks(self, held: Held) -> list[batch_v1.Task]:
        """Return the job's one task."""
        code = held.fate.code if held.fate is not None else 0
        failed = held.task_state == TaskState.FAILED
        running = self._event("Task state is updated from ASSIGNED to RUNNING on zones/z/instances/1.")
        events = [running, self._failure(held, code, of_task=True)] if failed else [running]
        if self.quirks.shuffles_events:
            self.dice.shuffle(events)
        status = batch_v1.TaskStatus(state=held.task_state, status_events=events)
        name = self.name_in_answers(held.name)
        return [batch_v1.Task(name=f"{name}/taskGroups/group0/tasks/0", status=status)]

    def name_in_answers(self, name: str) -> str:
        """Return a name with the project's id or number, as this server prefers."""
        if not self.quirks.project_number:
            return name
        return f"projects/{NUMBER}/{name.split('/', 2)[2]}"


def name_of(state: int) -> str:
    """Return a state's word."""
    return State(state).name if state in State._value2member_map_ else str(state)
