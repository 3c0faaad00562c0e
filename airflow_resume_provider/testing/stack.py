"""The local stack as one object, for tests and scripts."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_resume_provider.testing.batch import logs as task_logs
from airflow_resume_provider.testing.faults import Fault as PlannedFault
from airflow_resume_provider.testing.faults import Plan, to_dict
from airflow_resume_provider.testing.servers import Stack


@dataclass(frozen=True)
class JobSummary:
    """One job in few words."""

    name: str
    id: str
    uid: str
    number: int
    state: str
    created: str
    updated: str
    labels: Mapping[str, str]
    tasks: Mapping[str, int]
    vms: tuple[Mapping[str, str], ...]
    last_event: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> JobSummary:
        """A summary from what the server tells."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in data.items() if name in names}
        return cls(**{**known, "vms": tuple(known["vms"])})


async def _cancel_others() -> None:
    """End what a stopped server has left, such as a long poll of a killed VM, before its loop is closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LocalStack:
    """The local stack for tests and scripts: a context manager that runs it in a thread of its own.

    Args:
        root: directory to keep things in; a temporary one by default, deleted at the end.
        **options: see `Stack`.
    """

    def __init__(self, root: Path | str | None = None, **options: Any) -> None:
        self._temporary = root is None
        self.root = Path(root) if root is not None else Path(tempfile.mkdtemp(prefix="resume-local-"))
        plan = options.pop("plan", None)
        options["plan"] = plan if plan is not None else Plan.EMPTY
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stack: Stack | None = None

    def __repr__(self) -> str:
        return f"<LocalStack {self.root} {'running' if self._stack else 'stopped'}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def start(self) -> Self:
        """Start; returns when everything listens."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="resume-local", daemon=True)
        self._thread.start()
        try:
            self._stack = self._run(Stack(self.root, **self._options).start())
        except BaseException:
            self._end_loop()
            raise
        return self

    def stop(self) -> None:
        """Stop; returns when no process of any job is left."""
        if self._stack:
            self._run(self._stack.stop())
            self._stack = None
        self._end_loop()

    def _end_loop(self) -> None:
        if self._loop and self._thread:
            self._run(_cancel_others())
            self._run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._loop = self._thread = None

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None, "the stack is not running"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, function: Any, *args: Any, **named: Any) -> Any:
        async def call() -> Any:
            return function(*args, **named)

        return self._run(call())

    @property
    def servers(self) -> Stack:
        """The running servers; to be touched on their own event loop only."""
        if self._stack is None:
            raise RuntimeError("the stack is not running")
        return self._stack

    @property
    def batch_endpoint(self) -> str:
        """`host:port` of the Batch API, gRPC and REST."""
        return self.servers.batch_endpoint()

    @property
    def storage_endpoint(self) -> str:
        """URL of the object store."""
        return self.servers.storage_endpoint()

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to have in its environment."""
        return self.servers.environment

    def create_bucket(self, name: str) -> None:
        """Create a bucket if it is not there."""
        self._call(self.servers.storage.create_bucket, name)

    def jobs(self) -> list[JobSummary]:
        """All jobs, oldest first."""
        return [JobSummary.of(data) for data in self._call(self.servers.batch.admin.jobs)]

    def job(self, job: str) -> dict[str, Any]:
        """One job by name, id or uid, with its message and its tasks."""
        return dict(self._call(self.servers.batch.admin.detail, job))

    def preempt(self, job: str, *, grace: float | None = None, notice: bool = True) -> list[str]:
        """Preempt a job's VMs; returns which ones, when they are gone."""
        return self.lose(job, "preempt", grace=grace, notice=notice)

    def lose(self, job: str, kind: str, **how: Any) -> list[str]:
        """Lose a job's VMs in another way: vanish, reboot, unresponsive, recreate."""
        return list(self._run(self.servers.batch.admin.lose(job, kind, **how)))

    def logs(self, job: str, task: int | None = None) -> str:
        """What a job's tasks have written."""
        return task_logs.text(self._call(self.servers.batch.admin.log_directory, job), task)

    def log_entries(self, job: str, task: int | None = None) -> list[dict[str, Any]]:
        """The same with time, severity, runnable and attempt of each line."""
        return list(task_logs.entries(self._call(self.servers.batch.admin.log_directory, job), task))

    def set_plan(self, plan: Plan) -> None:
        """Replace the plan; its times and counts begin now."""
        self._call(self.servers.batch.service.site.injector.set_plan, plan)

    def add_fault(self, fault: PlannedFault) -> None:
        """Add a fault to the plan."""
        self._call(self.servers.batch.admin.add_fault, to_dict(fault))

    def reset(self) -> None:
        """Forget all jobs and end their processes; buckets stay."""
        self._run(self.servers.batch.service.reset())

    def status(self) -> dict[str, Any]:
        """Facts about the stack."""
        return dict(self._call(self.servers.status))
