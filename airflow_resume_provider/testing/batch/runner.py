"""One job's life, from QUEUED to its end: admission, VMs, tasks, retries, and the verdict."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import Any

from airflow_resume_provider.testing.batch import reasons
from airflow_resume_provider.testing.batch.environment import TaskIdentity
from airflow_resume_provider.testing.batch.fleet import HOLD_SECONDS, Fleet, Node, Refused, Site
from airflow_resume_provider.testing.batch.machine_types import impossible, unknown_types
from airflow_resume_provider.testing.batch.messages import FINISHED_TASK, Action, JobState, TaskState
from airflow_resume_provider.testing.batch.records import JobRecord
from airflow_resume_provider.testing.batch.tasks import Barriers, Outcome, TaskRun
from airflow_resume_provider.testing.batch.vm import SILENT, Loss, Vm

SLICE = 100  # so many tasks are changed before others have their turn


class JobRun:
    """Runs one job."""

    def __init__(self, record: JobRecord, site: Site) -> None:
        self.record, self.site = record, site
        self.group = record.job.task_groups[0]
        self._pending = deque(range(self.group.task_count))
        self._barriers = Barriers(self.group.task_count)
        self._last_event: dict[int, str] = {}
        self.fleet = Fleet(record, site)
        self._greeted = self._closing = self._refused = False
        self._grace = site.settings.stop_grace_seconds
        self._taken = 0
        self.main: asyncio.Task[None] | None = None
        self._growing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<JobRun {self.record!r} {self.fleet!r}>"

    def start(self) -> None:
        """Begin; returns at once."""
        self.main = asyncio.create_task(self._live(), name=f"job {self.record.name}")

    async def _live(self) -> None:
        settings = self.site.settings
        try:
            async with asyncio.timeout(settings.max_queued_seconds):
                await self._queue()
                await self._take()
            await self._schedule()
            self._recover()
            async with asyncio.timeout(settings.max_attempt_seconds):
                await self._work()
            self._conclude()
        except TimeoutError:
            await self.abandon_tasks()
            self._end(JobState.FAILED, "The job was in this state for longer than it may be.")
        except Exception:
            # A job must reach an end even when the stack itself is at fault.
            logging.getLogger(__name__).exception("job %s", self.record.name)
            await self.abandon_tasks()
            self._end(JobState.FAILED, "The local stack failed; its log says why.")
        finally:
            self._closing = True
            await self.fleet.shut_down(self._grace)
            self.site.capacity.give(self._taken)

    async def _queue(self) -> None:
        if self.record.state is JobState.QUEUED:
            if unknown := unknown_types(self.record.job):
                self.record.tell(reasons.unchecked_types(unknown))
            if wrong := impossible(self.record.job):
                self.record.tell(reasons.impossible(wrong))
            self.site.injector.on_state(self.fleet, "QUEUED")
            await asyncio.sleep(self.site.settings.queued_seconds)
            await self._hold_for_quota(scheduled=False)

    async def _take(self) -> None:
        """Wait for VMs: for some of them where tasks can do without each other, else for all."""
        capacity, wanted, least = self.site.capacity, len(self.fleet.nodes), self.fleet.least

        def waits() -> None:
            self.record.tell(reasons.no_vms(wanted, least, capacity.free, capacity.total))

        self._taken = await capacity.take(wanted, self.record.job.priority, least, waits=waits)

    async def _schedule(self) -> None:
        if self.record.state is JobState.QUEUED:
            self.record.set_state(JobState.SCHEDULED)
        if self.record.state is JobState.SCHEDULED:
            self.site.injector.on_state(self.fleet, "SCHEDULED")
            await asyncio.sleep(self.site.settings.scheduled_seconds)
            await self._hold_for_quota(scheduled=True)

    def _recover(self) -> None:
        """Take up what an earlier server left: tasks that ran then are lost like those of a silent VM."""
        for index, task in enumerate(self.record.tasks):
            if self.record.task_state(index) in (TaskState.ASSIGNED, TaskState.RUNNING):
                where = _where(task)
                self._failed(index, where, Outcome(SILENT.exit_code, SILENT.reason))
            if self.record.task_state(index) in FINISHED_TASK:
                self._pending.remove(index)
                self._last_event.setdefault(index, task.status.status_events[-1].description)

    async def _hold_for_quota(self, *, scheduled: bool) -> None:
        while quota := self.site.injector.quota(self.fleet, scheduled=scheduled):
            self.record.tell(reasons.quota(quota, self.record, scheduled=scheduled))
            await asyncio.sleep(HOLD_SECONDS)

    async def _work(self) -> None:
        # More nodes than there are VMs here at all: those that need each other run all the same.
        nodes = self.fleet.nodes[: max(self._taken, self.fleet.least)]
        try:
            async with asyncio.TaskGroup() as tasks:
                for node in nodes:
                    self._use(node, tasks)
                if self._pending:
                    self._growing = tasks.create_task(self._grow(self.fleet.nodes[len(nodes) :], tasks))
        except* Refused as refusals:
            self.record.tell(str(refusals.exceptions[0]))
            await self.abandon_tasks()
            self._refused = True

    def _use(self, node: Node, tasks: asyncio.TaskGroup) -> None:
        for _ in range(self.fleet.tasks_at_once(node)):
            tasks.create_task(self._lane(node))

    async def _grow(self, nodes: list[Node], tasks: asyncio.TaskGroup) -> None:
        """Take further VMs as they become free, as long as there are tasks for them."""
        for node in nodes:
            self._taken += await self.site.capacity.take(1, self.record.job.priority, more=True)
            self._use(node, tasks)

    async def _lane(self, node: Node) -> None:
        while self._pending:
            index = self._pending.popleft()
            if not self._pending and self._growing:
                self._growing.cancel()
            await self._run_task(index, node)
            await self._barriers.end(index)

    async def _run_task(self, index: int, node: Node) -> None:
        """Attempt a task until it succeeds or may not be tried again."""
        while True:
            vm = await self.fleet.vm_of(node)
            outcome = await self._attempt(index, vm)
            if outcome.exit_code == 0:
                self.record.set_task(index, TaskState.SUCCEEDED, vm.where)
                return
            if not self._failed(index, vm.where, outcome):
                return

    def _failed(self, index: int, where: str, outcome: Outcome) -> bool:
        """Record a failure of a task; True when it is to be tried again."""
        self._last_event[index] = self.record.set_task(
            index, TaskState.FAILED, where, outcome.reason, outcome.exit_code
        )
        if not may_retry(self.record.spec, outcome.exit_code, self.record.retries[index]):
            return False
        self.record.retries[index] += 1
        self.record.set_task(index, TaskState.PENDING)
        return True

    async def _attempt(self, index: int, vm: Vm) -> Outcome:
        if vm.lost.done():
            return _outcome(vm.lost.result())
        self.record.set_task(index, TaskState.ASSIGNED, vm.where)
        if self.record.state is JobState.SCHEDULED:
            self.record.set_state(JobState.RUNNING)
            self.site.injector.on_state(self.fleet, "RUNNING")
        self.record.set_task(index, TaskState.RUNNING, vm.where)
        vm.enter(index)
        running = asyncio.create_task(self._task_run(index, vm).run())
        try:
            ends: set[asyncio.Future[Any]] = {running, vm.lost}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and running.result().exit_code == 0:
                return running.result()
            if not vm.ending:
                # The whole VM may have died under its task, by nobody's plan.
                return _outcome(SILENT) if vm.machine.gone.is_set() else running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            vm.leave(index)
        # What fails on a VM that is being taken away failed because of that, whatever its own exit code.
        return _outcome(await asyncio.shield(vm.lost))

    def _task_run(self, index: int, vm: Vm) -> TaskRun:
        identity = TaskIdentity(
            job_uid=self.record.uid,
            index=index,
            count=self.group.task_count,
            retry=self.record.retries[index],
            node=vm.node,
            nodes=len(self.fleet.nodes),
            main_hostname=self.fleet.hostname(0),
            hosts_file=self.fleet.hosts_file(vm) if self.group.require_hosts_file else "",
        )
        log = self.site.log_path(self.record.uid, index)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**self.site.environment, **self.site.settings.environment}
        environment |= {"GCE_METADATA_HOST": vm.metadata.address, "GCE_METADATA_IP": vm.metadata.address}
        run = TaskRun(
            self.group, identity, vm, self.site.executor, self.site.settings, self._barriers, log, environment
        )
        run.greet, self._greeted = not self._greeted, True
        run.announce = self.record.tell
        return run

    def _conclude(self) -> None:
        if self._refused:
            self._end(JobState.FAILED, "Job failed due to errors of resource allocation.")
            return
        states = [self.record.task_state(index) for index in range(len(self.record.tasks))]
        failed = [index for index, state in enumerate(states) if state is TaskState.FAILED]
        if TaskState.UNEXECUTED in states:
            # A server that was just giving the job up did not come to an end with that.
            self._end(JobState.FAILED, "The job was given up before its tasks ran.")
            return
        if not failed:
            self._end(JobState.SUCCEEDED)
            return
        because = (
            f"Job failed due to task failure. Specifically, task with index {failed[0]} failed due to the "
            f'following task event: "{self._last_event[failed[0]]}"'
        )
        self._end(JobState.FAILED, because)

    def _end(self, state: Any, because: str = "") -> None:
        """Bring the job to its end; the states of one that is cancelled or deleted are the caller's."""
        if not self.record.state.name.endswith("_IN_PROGRESS"):
            self.record.set_state(state, because)

    async def stop(self, grace: float) -> None:
        """End the job's processes and its VMs because it is cancelled or deleted; states are the caller's."""
        self._grace = grace
        if self.main:
            # What is closing already is not to be interrupted: it would leave a VM half ended.
            if not self._closing:
                self.main.cancel()
            # Waited for and not awaited: should this call be cancelled, the closing goes on.
            await asyncio.wait({self.main})

    async def abandon_tasks(self) -> None:
        """Bring the tasks of a job that ended before they did to a final state."""
        for index, task in enumerate(self.record.tasks):
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            state = TaskState(task.status.state)
            if state in FINISHED_TASK:
                continue
            ran = state is TaskState.RUNNING
            self.record.set_task(index, TaskState.FAILED if ran else TaskState.UNEXECUTED)


def may_retry(spec: Any, exit_code: int, retries: int) -> bool:
    """Whether a failed task is tried again, by `maxRetryCount` and the lifecycle policy."""
    if retries >= spec.max_retry_count:
        return False
    for policy in spec.lifecycle_policies:
        met = exit_code in policy.action_condition.exit_codes
        return met if policy.action == Action.RETRY_TASK else not met
    return True


def _where(task: Any) -> str:
    """The VM that a task's events name last."""
    for event in reversed(task.status.status_events):
        if match := re.search(r"zones/\S+/instances/\d+", event.description):
            return match[0]
    return ""


def _outcome(loss: Loss) -> Outcome:
    return Outcome(loss.exit_code, loss.reason)
