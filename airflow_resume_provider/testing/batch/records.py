"""What the server knows of one job: its messages, and the only ways in which they change."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.messages import (
    FINISHED_JOB,
    GROUP,
    Job,
    JobState,
    StatusEvent,
    Task,
    TaskState,
    timestamp,
)


@dataclass(frozen=True)
class Change:
    """A state change of a job, or of one of its tasks when `task` is given."""

    job: str
    old: str
    new: str
    task: int | None = None


@dataclass(eq=False)
class JobRecord:
    """A job, its tasks, and the bookkeeping that the API does not show."""

    job: Any
    clock: Clock
    tasks: list[Any] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    running_since: float = 0.0
    number: int = 0
    listeners: list[Callable[[JobRecord, Change | None], None]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<JobRecord {self.name} {self.state.name}>"

    @classmethod
    def create(cls, job: Any, clock: Clock) -> JobRecord:
        """A freshly admitted job: QUEUED, its tasks PENDING."""
        record = cls(job, clock)
        now = timestamp(clock.now())
        job.create_time.CopyFrom(now)
        job.update_time.CopyFrom(now)
        job.status.state = JobState.QUEUED
        job.status.run_duration.seconds = 0
        count = job.task_groups[0].task_count
        for index in range(count):
            task = Task(name=f"{job.task_groups[0].name}/tasks/{index}")
            task.status.state = TaskState.PENDING
            record.tasks.append(task)
        record.retries = [0] * count
        record.recount()
        return record

    @property
    def name(self) -> str:
        """Full resource name."""
        return str(self.job.name)

    @property
    def uid(self) -> str:
        """System generated id."""
        return str(self.job.uid)

    @property
    def state(self) -> Any:
        """State of the job."""
        return JobState(self.job.status.state)

    @property
    def finished(self) -> bool:
        """Whether the job has reached a state that it will never leave but by deletion."""
        return self.state in FINISHED_JOB

    @property
    def spec(self) -> Any:
        """The task spec of the only task group."""
        return self.job.task_groups[0].task_spec

    @property
    def location(self) -> str:
        """The location in the job's name."""
        return self.name.split("/")[3]

    def task_state(self, index: int) -> Any:
        """State of one task."""
        return TaskState(self.tasks[index].status.state)

    def snapshot(self) -> Any:
        """A copy as the API shows it now, with the run duration so far."""
        copy = Job()
        copy.CopyFrom(self.job)
        if self.state is JobState.RUNNING:
            self._set_duration(copy)
        return copy

    def _set_duration(self, job: Any) -> None:
        elapsed = max(0.0, self.clock.now().timestamp() - self.running_since)
        job.status.run_duration.FromTimedelta(datetime.timedelta(seconds=elapsed))

    def set_state(self, new: Any, because: str = "") -> None:
        """Move the job to another state and say so in an event, in the cloud's words."""
        old = self.state
        moment = self.clock.now()
        if new is JobState.RUNNING:
            self.running_since = moment.timestamp()
        elif old is JobState.RUNNING:
            self._set_duration(self.job)
        text = f"Job state is set from {old.name} to {new.name} for job {self.name}.{because}"
        self.job.status.state = new
        self._append(self.job.status, StatusEvent(type_="STATUS_CHANGED", description=text), moment)
        self._changed(moment, Change(self.name, old.name, new.name))

    def tell(self, description: str, kind: str = "OPERATIONAL_INFO") -> None:
        """Add a job event that changes no state; one that is already the newest is not repeated."""
        events = self.job.status.status_events
        if events and events[-1].description == description:
            return
        moment = self.clock.now()
        self._append(self.job.status, StatusEvent(type_=kind, description=description), moment)
        self._changed(moment, None)

    def set_task(
        self, index: int, new: Any, where: str = "", reason: str = "", exit_code: int | None = None
    ) -> str:
        """Move a task to another state; returns the event's text.

        Args:
            where: `zones/Z/instances/I`, once there is a VM.
            reason: the cloud's words behind "due to".
            exit_code: given on failures only; successes carry none.
        """
        old = self.task_state(index)
        text = f"Task state is updated from {old.name} to {new.name}"
        text += f" on {where}" if where else ""
        text += f" due to {reason}" if reason else ""
        text += f" with exit code {exit_code}." if exit_code is not None else "."
        event = StatusEvent(type_="STATUS_CHANGED", description=text, task_state=new)
        if exit_code is not None:
            event.task_execution.exit_code = exit_code
        moment = self.clock.now()
        status = self.tasks[index].status
        status.state = new
        self._append(status, event, moment)
        self._count(old, new)
        self._changed(moment, Change(self.name, old.name, new.name, index))
        return text

    def _count(self, old: Any, new: Any) -> None:
        """Keep the counts right without looking at every task: a job may have 100,000."""
        counts = self.job.status.task_groups[GROUP].counts
        counts[new.name] += 1
        counts[old.name] -= 1
        if not counts[old.name]:
            del counts[old.name]

    def recount(self) -> None:
        """Count the tasks in each state."""
        counts = Counter(TaskState(task.status.state).name for task in self.tasks)
        shown = self.job.status.task_groups[GROUP].counts
        for gone in set(shown) - set(counts):
            del shown[gone]
        for state, count in counts.items():
            shown[state] = count

    def _append(self, status: Any, event: Any, moment: datetime.datetime) -> None:
        event.event_time.CopyFrom(timestamp(moment))
        status.status_events.append(event)

    def _changed(self, moment: datetime.datetime, change: Change | None) -> None:
        self.job.update_time.CopyFrom(timestamp(moment))
        for listener in self.listeners:
            listener(self, change)
