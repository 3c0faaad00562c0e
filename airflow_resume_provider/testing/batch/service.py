"""BatchService v1, independent of how a call arrives: one coroutine or function per method."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from google.protobuf import empty_pb2

from airflow_resume_provider.testing.batch import names
from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid, not_found
from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.defaults import admitted, system_job_id
from airflow_resume_provider.testing.batch.filters import compile_filter
from airflow_resume_provider.testing.batch.fleet import Site
from airflow_resume_provider.testing.batch.listing import Order, order_of, page, page_size_of
from airflow_resume_provider.testing.batch.messages import (
    FINISHED_JOB,
    GROUP,
    CancelJobResponse,
    Job,
    JobState,
    ListJobsResponse,
    ListTasksResponse,
    Operation,
    Task,
)
from airflow_resume_provider.testing.batch.notifications import Notifier
from airflow_resume_provider.testing.batch.operations import Operations
from airflow_resume_provider.testing.batch.records import Change, JobRecord
from airflow_resume_provider.testing.batch.runner import JobRun
from airflow_resume_provider.testing.batch.store import Store
from airflow_resume_provider.testing.batch.validation import check_location, validate

_ZERO_UUID = uuid.UUID(int=0)
_TASK_ALIASES = {"State": "status.state", "state": "status.state"}
_FLUSH_SECONDS = 0.05
_FLUSH_SHARE = 10.0  # so many times what a write takes lies between two of them
# What these states say has been answered, or ends something: no restart may take it back.
_KEPT = FINISHED_JOB | {JobState.CANCELLATION_IN_PROGRESS, JobState.DELETION_IN_PROGRESS}
_BY_INDEX: Order = (lambda task: [int(task.name.rpartition("/")[2])], False)


class BatchService:
    """All jobs of the server. Every method runs on the event loop."""

    def __init__(self, site: Site, store: Store, clock: Clock) -> None:
        self.site, self.store, self.clock = site, store, clock
        self.operations = Operations(store, clock)
        self.records: dict[str, JobRecord] = {}
        self.runs: dict[str, JobRun] = {}
        self.notifier = Notifier()
        self.listeners: list[Callable[[JobRecord, Change | None], None]] = [self._changed, self.notifier]
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = 0

    def restore(self) -> None:
        """Take up the jobs of a server that ended: what ran then has been silent for too long by now."""
        for record in self.store.jobs(self.clock):
            record.listeners = self.listeners
            self.records[record.name] = record
            self._numbers = max(self._numbers, record.number)
            self._resume(record)

    def _resume(self, record: JobRecord) -> None:
        if record.finished:
            return
        if record.state in (JobState.DELETION_IN_PROGRESS, JobState.CANCELLATION_IN_PROGRESS):
            return  # their operations are still pending and are taken up below
        self._run(record)

    def resume_operations(self) -> None:
        """Go on with deletions and cancellations that the last server did not finish."""
        for name, target, verb in self.operations.pending():
            record = self.records.get(target)
            ending = self._delete if verb == "delete" else self._cancel
            if record is None:
                self.operations.finish(name, empty_pb2.Empty())
            else:
                self._spawn(ending(record, self.operations.get(name)))

    def _run(self, record: JobRecord) -> None:
        run = JobRun(record, self.site)
        self.runs[record.name] = run
        run.start()

    def _changed(self, record: JobRecord, change: Change | None) -> None:
        if self.records.get(record.name) is not record:
            return
        if not self.store.dirty:
            # Writing a job of very many tasks takes long: then it is written less often.
            delay = max(_FLUSH_SECONDS, _FLUSH_SHARE * self.store.cost)
            asyncio.get_running_loop().call_later(delay, self.store.flush)
        self.store.mark(record)
        if change and change.task is None and record.state in _KEPT:
            self.store.flush(record.name)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _record(self, name: str) -> JobRecord:
        record = self.records.get(names.job(name))
        if record is None or self._hidden(record):
            raise not_found(name)
        return record

    def _hidden(self, record: JobRecord) -> bool:
        seconds = self.site.injector.hidden_for(record.number, record.name, record.job.labels)
        age = (
            self.clock.now().timestamp() - record.job.create_time.ToDatetime().timestamp() if seconds else 0.0
        )
        return bool(seconds) and age < seconds

    # Jobs

    async def create_job(self, request: Any) -> Any:
        """Admit a job."""
        parent = names.parent(request.parent)
        key = self._request_key("create", request.request_id, str(parent))
        if key and (answer := self.store.recall(key)):
            created = Job.FromString(answer)
            record = self.records.get(created.name)
            return record.snapshot() if record and record.uid == created.uid else created
        job_id = request.job_id or system_job_id()
        validate(request.job, parent, job_id, self.site.settings)
        name = f"{parent}/jobs/{job_id}"
        if name in self.records:
            raise ApiError("ALREADY_EXISTS", f'Resource "{name}" already exists')
        job = admitted(request.job, parent, job_id, self.site.settings)
        record = JobRecord.create(job, self.clock)
        self._numbers += 1
        record.number = self._numbers
        record.listeners = self.listeners
        self.records[name] = record
        self.store.mark(record)
        self.store.flush()
        if key:
            self.store.remember(key, record.job.SerializeToString())
        answer = record.snapshot()
        self._run(record)
        return answer

    def _request_key(self, verb: str, request_id: str, resource: str) -> str:
        if not request_id:
            return ""
        try:
            parsed = uuid.UUID(request_id)
        except ValueError:
            parsed = _ZERO_UUID
        if parsed == _ZERO_UUID or str(parsed) != request_id.lower():
            raise invalid(
                f'Invalid request_id "{request_id}": it must be a valid, non-zero UUID.', "request_id"
            )
        return f"{verb} {resource} {parsed}"

    async def get_job(self, request: Any) -> Any:
        """A job as it is now."""
        return self._shown(self._record(request.name))

    def _shown(self, record: JobRecord) -> Any:
        job = record.snapshot()
        if self.site.injector.disordered(record.number, record.name, job.labels):
            _disorder(job.status)
        return job

    async def list_jobs(self, request: Any) -> Any:
        """Jobs of a location, or of all locations with the location "-"."""
        parent = names.parent(request.parent, wildcard=True)
        check_location(parent.location, self.site.settings)
        matching = compile_filter(request.filter, Job)
        order = order_of(request.order_by)
        size = page_size_of(request.page_size, self.site.settings.max_page_size)
        found = [record.job for name, record in self.records.items() if parent.covers(name)]

        def wanted(job: Any) -> bool:
            return matching(job) and not self._hidden(self.records[job.name])

        asked = ("jobs", request.parent, request.filter, request.order_by)
        jobs, token = page(found, size, request.page_token, asked, order, wanted)
        shown = [self._shown(self.records[job.name]) for job in jobs]
        return ListJobsResponse(jobs=shown, next_page_token=token)

    async def cancel_job(self, request: Any) -> Any:
        """Begin to cancel a job; its record stays."""
        name = names.job(request.name)
        key = self._request_key("cancel", request.request_id, name)
        if key and (answer := self.store.recall(key)):
            return self._operation_now(answer)
        record = self._record(name)
        if record.state in FINISHED_JOB or record.state.name.endswith("_IN_PROGRESS"):
            raise ApiError(
                "FAILED_PRECONDITION",
                f'Job "{name}" is in state {record.state.name} and cannot be cancelled.',
            )
        operation = self.operations.begin(name, "cancel")
        if key:
            self.store.remember(key, operation.SerializeToString())
        record.set_state(JobState.CANCELLATION_IN_PROGRESS)
        self._spawn(self._cancel(record, operation))
        return _copy(operation)

    async def _cancel(self, record: JobRecord, operation: Any) -> None:
        run = self.runs.get(record.name)
        await self._end(run)
        if record.state is JobState.CANCELLATION_IN_PROGRESS:
            await (run or JobRun(record, self.site)).abandon_tasks()
        if record.state is JobState.CANCELLATION_IN_PROGRESS:
            record.set_state(JobState.CANCELLED)
        self.operations.finish(operation.name, CancelJobResponse())

    async def _end(self, run: JobRun | None) -> None:
        settings = self.site.settings
        ending = run.stop(settings.stop_grace_seconds) if run else asyncio.sleep(0)
        await asyncio.gather(ending, asyncio.sleep(settings.cleanup_seconds))

    async def delete_job(self, request: Any) -> Any:
        """Begin to delete a job; it is gone, with all that was known of it, when the operation is done."""
        name = names.job(request.name)
        key = self._request_key("delete", request.request_id, name)
        if key and (answer := self.store.recall(key)):
            return self._operation_now(answer)
        record = self._record(name)
        if record.state is JobState.DELETION_IN_PROGRESS:
            return _copy(self.operations.pending_on(name, "delete"))
        operation = self.operations.begin(name, "delete")
        if key:
            self.store.remember(key, operation.SerializeToString())
        record.set_state(JobState.DELETION_IN_PROGRESS)
        self._spawn(self._delete(record, operation))
        return _copy(operation)

    async def _delete(self, record: JobRecord, operation: Any) -> None:
        await self._end(self.runs.get(record.name))
        self.records.pop(record.name, None)
        self.runs.pop(record.name, None)
        self.store.forget(record.name)
        self.operations.finish(operation.name, empty_pb2.Empty())

    def _operation_now(self, answer: bytes) -> Any:
        first = Operation.FromString(answer)
        try:
            return _copy(self.operations.get(first.name))
        except ApiError:
            return first

    # Tasks

    async def get_task(self, request: Any) -> Any:
        """A task by name."""
        job, group, task = names.task(request.name)
        record = self._record(job)
        if group != GROUP or not task.isdecimal() or int(task) >= len(_created_tasks(record)):
            raise not_found(request.name)
        return self._shown_task(record, int(task))

    def _shown_task(self, record: JobRecord, index: int) -> Any:
        task = _copy(record.tasks[index])
        if self.site.injector.disordered(record.number, record.name, record.job.labels):
            _disorder(task.status)
        return task

    async def list_tasks(self, request: Any) -> Any:
        """Tasks of a task group, by index."""
        job, group = names.task_group(request.parent)
        record = self._record(job)
        if group != GROUP:
            raise not_found(request.parent)
        wanted = compile_filter(request.filter, Task, _TASK_ALIASES)
        size = page_size_of(request.page_size, self.site.settings.max_page_size)
        found = [task for task in _created_tasks(record) if wanted(task)]
        asked = ("tasks", request.parent, request.filter)
        tasks, token = page(found, size, request.page_token, asked, _BY_INDEX)
        shown = [self._shown_task(record, int(task.name.rpartition("/")[2])) for task in tasks]
        return ListTasksResponse(tasks=shown, next_page_token=token)

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        found = dict.fromkeys((state.name for state in JobState if state), 0)
        for record in self.records.values():
            found[record.state.name] += 1
        return {state: count for state, count in found.items() if count}

    async def stop(self) -> None:
        """End every VM; jobs keep the state that they have."""
        await self.site.injector.stop()
        for task in list(self._ending):
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.gather(*(run.stop(0) for run in self.runs.values()))
        await self.notifier.stop()
        self.store.flush()

    async def reset(self) -> None:
        """Forget every job and operation, as if the server were new."""
        await self.stop()
        self.records.clear()
        self.runs.clear()
        self.operations.clear()
        self.store.clear()
        self._numbers = 0


def _created_tasks(record: JobRecord) -> list[Any]:
    """The tasks that can be seen: while a job is QUEUED it has none yet.

    https://github.com/nextflow-io/nextflow/pull/5567 met jobs without tasks.
    """
    return [] if record.state is JobState.QUEUED else record.tasks


def _copy(message: Any) -> Any:
    made = message.__class__()
    made.CopyFrom(message)
    return made


def _disorder(status: Any) -> None:
    """Give events out newest first, which their times still tell."""
    events = list(status.status_events)
    status.ClearField("status_events")
    status.status_events.extend(reversed(events))
