"""A world for the operator without Airflow's and Google's servers: a task instance, a Batch, containers.

Everything that the operator decides from is real (lineage on disk, records,
verdicts); only the two servers are played. The Batch keeps count of all that
was ever created, and fails when asked to do what the real one refuses.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.api_core import exceptions

from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.observation import EventSeen, JobSeen
from airflow_resume_provider.batch.clients import Endpoint
from airflow_resume_provider.checkpoints import AttemptRecord, EndRecord, EndState, Lineage
from airflow_resume_provider.errors import JobNotOurs
from airflow_resume_provider.operators.conductor import Conductor, Finished
from airflow_resume_provider.operators.submission import Waiting
from airflow_resume_provider.operators.train import ResumableTrainOperator

PREEMPTION = (
    "Task state is updated from RUNNING to FAILED on zones/us-central1-a/instances/7 due to Spot VM"
    " preemption with exit code 50001."
)


def failed_event(code: int) -> EventSeen:
    """The event of a task that failed with this code."""
    words = (
        PREEMPTION
        if code == 50001
        else f"Task state is updated from RUNNING to FAILED with exit code {code}."
    )
    return EventSeen(description=words, time=1e9, exit_code=code, task_state="FAILED")


@dataclass
class FakeBatch:
    """Stands where the hook stands; `created` is every job that was ever made."""

    created: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, JobSeen] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    refuse: Exception | None = None
    forbidden: str = ""  # a project, or a location, of which the API says no more than that
    crash_after_create: bool = False
    gcp_conn_id: str = "google_cloud_default"
    impersonation_chain: str | None = None
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("127.0.0.1:1", insecure=True))

    def submit(self, job: Any, parent: str, job_id: str) -> tuple[Any, bool]:
        name = f"{parent}/jobs/{job_id}"
        self._permit(name)
        if self.refuse is not None:
            raise self.refuse
        if name in self.created:
            if self.created[name].labels["resume_training"] != job.labels["resume_training"]:
                raise JobNotOurs("taken", job_name=name)
            return SimpleNamespace(name=name), True
        self.created[name] = job
        self.jobs[name] = JobSeen(name=name, state="QUEUED", created=time.time())
        if self.crash_after_create:
            self.crash_after_create = False
            raise Crash
        return SimpleNamespace(name=name), False

    def _permit(self, name: str) -> None:
        if self.forbidden and name.startswith(self.forbidden):
            raise exceptions.Forbidden("Permission denied, or it may not exist")

    def look(self, name: str, *, with_tasks: bool = False) -> JobSeen | None:
        self._permit(name)
        return self.jobs.get(name)

    def cancel(self, name: str, *, budget: float | None = None) -> bool | None:
        self._permit(name)
        self.cancelled.append(name)
        seen = self.jobs.get(name)
        if seen is None:
            return None
        if seen.over:
            return False
        self.jobs[name] = replace(seen, state="CANCELLED")
        return True

    def store_options(self) -> None:
        return None

    @property
    def alive(self) -> list[str]:
        """Jobs that are still paid for."""
        return [name for name, job in self.jobs.items() if not job.over]


class Crash(BaseException):
    """The worker is gone, between two of its steps."""


@dataclass
class FakeTaskInstance:
    """What the operator uses of a task instance; XComs go when a new try starts, as in Airflow."""

    dag_id: str = "dag"
    task_id: str = "train"
    run_id: str = "manual__2026-11-30"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 2
    id: str = "ti-1"
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: Any = None, key: str = "", map_indexes: Any = None) -> Any:
        return self.xcoms.get(key)


class FakeStateStore(dict):  # type: ignore[type-arg]
    """Airflow 3.3's task state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class World:
    """One task of one run."""

    def __init__(self, root: Path | None = None, *, state_store: bool = True, **parameters: Any) -> None:
        self.root = root or Path(tempfile.mkdtemp())
        self.parameters = parameters
        self.batch = FakeBatch()
        self.ti = FakeTaskInstance()
        self.state_store = FakeStateStore() if state_store else None
        self._numbers = itertools.count(1)
        self.outlet_events: Any = None
        self.operator = self._operator()

    def _operator(self) -> ResumableTrainOperator:
        defaults: dict[str, Any] = {
            "task_id": "train",
            "project_id": "local-project",
            "region": "us-central1",
            "image": "image",
            "command": ["python", "train.py"],
            "checkpoint_root": f"file://{self.root}",
        }
        return ResumableTrainOperator(**{**defaults, **self.parameters})

    def change(self, **parameters: Any) -> None:
        """Edit the DAG between two tries."""
        self.parameters.update(parameters)
        self.operator = self._operator()

    def conductor(self) -> Conductor:
        from airflow_resume_provider.operators.plan import plan

        context = {
            "ti": self.ti,
            "dag_run": SimpleNamespace(run_after=datetime(2026, 11, 30, tzinfo=UTC)),
            "task": self.operator,
            "outlet_events": self.outlet_events,
        }
        if self.state_store is not None:
            context["task_state_store"] = self.state_store
        return Conductor(plan(self.operator), self.batch, context)  # type: ignore[arg-type]

    def begin(self) -> Waiting | Finished:
        return self.conductor().begin()

    def proceed(self, waiting: Waiting, kind: EventKind = EventKind.ENDED) -> Waiting | Finished:
        event = AttemptEvent(
            kind=kind, job_name=waiting.job_name, job=self.batch.look(waiting.job_name), carry=waiting.carry
        )
        return self.conductor().proceed(AttemptEvent.from_dict(event.to_dict()))

    def next_try(self, *, cleared: bool = False) -> None:
        """Airflow starts the next try; clearing raises max_tries."""
        self.ti.try_number += 1
        self.ti.id = f"ti-{self.ti.try_number}"
        self.ti.xcoms.clear()
        if cleared:
            self.ti.max_tries = self.ti.try_number + 1

    # -- the container's side --------------------------------------------------

    def run(self, waiting: Waiting, commits: int = 1, code: int = 0, seconds: float = 600.0) -> None:
        """The attempt's container runs: restores, commits, and ends with `code`."""
        lineage = Lineage.open(waiting.lineage)
        choice = lineage.choose(waiting.attempt, fallback=self.operator.resume_from or "")
        resumed = choice.reference.uri if choice.reference else ""
        began = datetime.now(UTC).timestamp() - seconds
        lineage.begin_attempt(
            AttemptRecord(attempt=waiting.attempt, resumed_from=resumed, started=_iso(began), writer="w")
        )
        last = choice.reference.step if choice.reference else 0
        for _ in range(commits):
            last += 10
            self.commit(waiting, last, resumed)
        self._end(waiting, lineage, code, last)

    def commit(self, waiting: Waiting, step: int, resumed_from: str = "") -> Any:
        directory = Path(tempfile.mkdtemp(dir=self.root))
        (directory / "weights").write_bytes(b"w" * next(self._numbers))
        return Lineage.open(waiting.lineage).commit(
            directory,
            attempt=waiting.attempt,
            step=step,
            resumed_from=resumed_from,
            metrics={"loss": 1 / step},
        )

    def _end(self, waiting: Waiting, lineage: Lineage, code: int, step: int) -> None:
        if code != 50001:
            state = EndState.FINISHED if code == 0 else EndState.FAILED
            ended = _iso(datetime.now(UTC).timestamp())
            lineage.end_attempt(
                EndRecord(attempt=waiting.attempt, state=state, exit_code=code, last_step=step, ended=ended)
            )
        self.end(waiting, code)

    def end(self, waiting: Waiting, code: int) -> None:
        """The job ends, without the container having said anything."""
        state = "SUCCEEDED" if code == 0 else "FAILED"
        events = () if code == 0 else (failed_event(code),)
        seen = self.batch.jobs[waiting.job_name]
        self.batch.jobs[waiting.job_name] = replace(seen, state=state, events=events)

    def started(self, waiting: Waiting) -> None:
        """The container says that it runs."""
        self.running(waiting)
        record = AttemptRecord(
            attempt=waiting.attempt, started=_iso(datetime.now(UTC).timestamp()), writer="w"
        )
        Lineage.open(waiting.lineage).begin_attempt(record)

    def running(self, waiting: Waiting) -> None:
        seen = self.batch.jobs[waiting.job_name]
        self.batch.jobs[waiting.job_name] = replace(seen, state="RUNNING")


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
