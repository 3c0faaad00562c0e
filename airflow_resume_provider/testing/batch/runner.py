"""One job's life, from QUEUED to its end: admission, VMs, tasks, retries, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_resume_provider.testing import faults
from airflow_resume_provider.testing.batch import reasons
from airflow_resume_provider.testing.batch.capacity import Capacity
from airflow_resume_provider.testing.batch.environment import TaskIdentity
from airflow_resume_provider.testing.batch.injection import Injector, matches
from airflow_resume_provider.testing.batch.messages import (
    FINISHED_TASK,
    Action,
    JobState,
    Provisioning,
    TaskState,
)
from airflow_resume_provider.testing.batch.records import JobRecord
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.tasks import Barriers, Executor, Outcome, TaskRun
from airflow_resume_provider.testing.batch.vm import LOSSES, NEVER_PREEMPTED, SILENT, Loss, Vm, instance_id
from airflow_resume_provider.testing.batch.zones import allowed_zones
from airflow_resume_provider.testing.executors.machines import MachineHost
from airflow_resume_provider.testing.executors.strays import end_marked
from airflow_resume_provider.testing.metadata.server import Identity, MetadataServer

_HOLD_SECONDS = 0.05  # how often a job that is held up looks whether it still is


class Refused(Exception):
    """Compute Engine refuses to make the VMs of a job, now and for ever."""


@dataclass(frozen=True)
class Site:
    """What all jobs of a server share."""

    settings: Settings
    host: MachineHost
    capacity: Capacity
    injector: Injector
    executor: Executor
    root: Path
    environment: Mapping[str, str]

    def log_path(self, uid: str, task: int) -> Path:
        """Where a task's log lies."""
        return self.root / "logs" / uid / f"task-{task}.jsonl"


@dataclass(eq=False)
class Node:
    """One of a job's machines: at any time at most one VM, each lost one being replaced by a new one."""

    index: int
    vm: Vm | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class JobRun:
    """Runs one job."""

    def __init__(self, record: JobRecord, site: Site) -> None:
        self.record, self.site = record, site
        self.group = record.job.task_groups[0]
        self._pending = deque(range(self.group.task_count))
        self._barriers = Barriers(self.group.task_count)
        self._last_event: dict[int, str] = {}
        self._nodes = [Node(index) for index in range(self._node_count())]
        self._vms: list[Vm] = []
        self._doom: faults.Loss | None = None
        self._greeted = self._closing = self._refused = False
        self._grace = site.settings.stop_grace_seconds
        self.main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<JobRun {self.record!r} vms={self.vms}>"

    @property
    def vms(self) -> list[Vm]:
        """The VMs that run now."""
        return [vm for vm in self._vms if not vm.lost.done()]

    @property
    def machine_type(self) -> str:
        """Machine type as the job's status shows it."""
        return str(self.record.job.status.task_groups["group0"].instances[0].machine_type)

    @property
    def accelerators(self) -> list[str]:
        """Types of the accelerators that the job asks for."""
        instances = self.record.job.allocation_policy.instances
        return [item.type_ for instance in instances for item in instance.policy.accelerators]

    @property
    def provisioning(self) -> str:
        """Name of the provisioning model."""
        status = self.record.job.status.task_groups["group0"].instances[0]
        return str(Provisioning(status.provisioning_model).name)

    def matches(self, wanted: faults.JobMatch) -> bool:
        """Whether a fault is meant for this job."""
        return matches(wanted, self.record.number, self.record.name, self.record.job.labels)

    def _per_node(self) -> int:
        return max(1, int(self.group.task_count_per_node))

    def _node_count(self) -> int:
        at_once = min(self.group.parallelism, self.group.task_count)
        return max(1, math.ceil(int(at_once) / self._per_node()))

    def start(self) -> None:
        """Begin; returns at once."""
        self.main = asyncio.create_task(self._live(), name=f"job {self.record.name}")

    async def _live(self) -> None:
        taken = 0
        settings = self.site.settings
        try:
            async with asyncio.timeout(settings.max_queued_seconds):
                await self._queue()
                taken = await self.site.capacity.take(len(self._nodes), self.record.job.priority)
            await self._schedule()
            self._recover()
            async with asyncio.timeout(settings.max_attempt_seconds):
                await self._work()
            self._conclude()
        except TimeoutError:
            self.abandon_tasks()
            self.record.set_state(JobState.FAILED, "The job was in this state for longer than it may be.")
        except Exception:
            # A job must reach an end even when the stack itself is at fault.
            logging.getLogger(__name__).exception("job %s", self.record.name)
            self.abandon_tasks()
            self.record.set_state(JobState.FAILED, "The local stack failed; its log says why.")
        finally:
            self._closing = True
            await asyncio.gather(*(self._dispose(vm, self._grace) for vm in list(self._vms)))
            self.site.capacity.give(taken)

    async def _queue(self) -> None:
        if self.record.state is JobState.QUEUED:
            self.site.injector.on_state(self, "QUEUED")
            await asyncio.sleep(self.site.settings.queued_seconds)
            await self._hold_for_quota(scheduled=False)

    async def _schedule(self) -> None:
        if self.record.state is JobState.QUEUED:
            self.record.set_state(JobState.SCHEDULED)
        if self.record.state is JobState.SCHEDULED:
            self.site.injector.on_state(self, "SCHEDULED")
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
        while quota := self.site.injector.quota(self, scheduled=scheduled):
            self.record.tell(reasons.quota(quota, self.record, scheduled=scheduled))
            await asyncio.sleep(_HOLD_SECONDS)

    async def _work(self) -> None:
        lanes = [
            self._lane(node)
            for node in self._nodes
            for _ in range(min(self._per_node(), self.group.parallelism))
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in lanes[: self.group.parallelism]:
                    tasks.create_task(lane)
        except* Refused as refusals:
            self.record.tell(str(refusals.exceptions[0]))
            self.abandon_tasks()
            self._refused = True

    async def _lane(self, node: Node) -> None:
        while self._pending:
            index = self._pending.popleft()
            await self._run_task(index, node)
            await self._barriers.end(index)

    async def _run_task(self, index: int, node: Node) -> None:
        """Attempt a task until it succeeds or may not be tried again."""
        while True:
            vm = await self._vm_of(node)
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
            self.site.injector.on_state(self, "RUNNING")
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
            nodes=len(self._nodes),
            main_hostname=self._hostname(0),
            hosts_file=self._hosts_file(vm),
        )
        log = self.site.log_path(self.record.uid, index)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**self.site.environment, **self.site.settings.environment}
        environment |= {"GCE_METADATA_HOST": vm.metadata.address, "GCE_METADATA_IP": vm.metadata.address}
        run = TaskRun(
            self.group, identity, vm, self.site.executor, self.site.settings, self._barriers, log, environment
        )
        run.greet, self._greeted = not self._greeted, True
        return run

    def _hostname(self, node: int) -> str:
        return f"{self.record.uid}-group0-{node}"

    def _hosts_file(self, vm: Vm) -> str:
        if not self.group.require_hosts_file:
            return ""
        path = vm.root / "hosts"
        path.write_text("".join(f"{self._hostname(node.index)}\n" for node in self._nodes))
        return str(path)

    async def _vm_of(self, node: Node) -> Vm:
        async with node.lock:
            if node.vm is None or node.vm.lost.done():
                if node.vm:
                    await self._dispose(node.vm, 0)
                    node.vm = None
                node.vm = await self._boot(node.index)
            return node.vm

    async def _boot(self, node: int) -> Vm:
        zone = await self._zone()
        identifier = instance_id()
        policy = self.record.job.allocation_policy
        identity = Identity(
            project=self.record.name.split("/")[1],
            project_number=self.site.settings.project_number,
            zone=zone,
            instance_id=identifier,
            hostname=f"{self._hostname(node)}.{zone}.c.{self.record.name.split('/')[1]}.internal",
            machine_type=self.machine_type,
            provisioning=self.provisioning,
            service_account=policy.service_account.email,
            tags=tuple(policy.tags),
        )
        root = self.site.root / "vms" / f"{self.record.uid}-{node}-{identifier}"
        for directory in ("disk", "home", "tmp", "scripts"):
            (root / directory).mkdir(parents=True)
        metadata = MetadataServer(identity)
        try:
            await metadata.start()
            machine = await self.site.host.boot()
        except BaseException:
            await metadata.stop()
            shutil.rmtree(root, ignore_errors=True)
            raise
        if last := self.site.executor.end_command(self._hostname(node)):
            machine.at_end(last)
        vm = Vm(identifier, zone, node, self._hostname(node), root, machine, metadata)
        self._vms.append(vm)
        await asyncio.wait({vm.lost}, timeout=self.site.settings.boot_seconds)
        if doom := self._doom:
            self._doom = None
            await self._carry_out(doom)
        return vm

    async def _zone(self) -> str:
        """The first allowed zone that has VMs, waiting for one as long as it takes."""
        while True:
            zones = allowed_zones(self.record.job, self.record.location)
            if unknown := self.site.injector.unknown_type(self):
                raise Refused(reasons.unknown_type(unknown, zones[0]))
            for zone in zones:
                if not self.site.injector.stocked_out(self, zone):
                    return zone
            self.record.tell(reasons.stock_out(self.record, zones[0]))
            await asyncio.sleep(_HOLD_SECONDS)

    async def lose_after(self, wait: float, fault: faults.Loss) -> None:
        """Carry out a planned loss of this job's VMs; of the next one where there is none yet."""
        await asyncio.sleep(wait)
        if self.vms:
            await self._carry_out(fault)
        else:
            self._doom = fault

    async def _carry_out(self, fault: faults.Loss) -> None:
        if fault.kind == "preempt" and self.provisioning in NEVER_PREEMPTED:
            return
        await self.lose(
            fault.kind,
            grace=fault.grace_seconds,
            notice=fault.notice,
            silent_metadata=fault.silent_metadata,
            task=fault.task,
        )

    async def lose(
        self,
        kind: str = "preempt",
        *,
        grace: float | None = None,
        notice: bool = True,
        silent_metadata: bool = False,
        task: int | None = None,
    ) -> list[Vm]:
        """Lose the VMs of this job, or only the one that runs a task; returns them."""
        settings = self.site.settings
        vms = [vm for vm in self.vms if task is None or task in vm.tasks]
        grace = settings.grace_seconds if grace is None else grace
        if kind == "preempt":
            how = {"notice": notice, "silent_metadata": silent_metadata}
            losing = [vm.preempt(grace, signal_delay=settings.signal_delay_seconds, **how) for vm in vms]
        else:
            delay = settings.report_timeout_seconds if kind in ("vanish", "unresponsive") else 0.0
            losing = [vm.fail(LOSSES[kind], delay) for vm in vms]
        await asyncio.gather(*losing)
        return vms

    async def noticed(self, timeout: float) -> None:
        """Wait until the VMs that are being lost have heard of it, or are gone."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(vm.noticed.wait() for vm in self.vms)), timeout)

    def _conclude(self) -> None:
        if self._refused:
            self.record.set_state(JobState.FAILED, "Job failed due to errors of resource allocation.")
            return
        failed = [
            index
            for index in range(len(self.record.tasks))
            if self.record.task_state(index) is TaskState.FAILED
        ]
        if not failed:
            self.record.set_state(JobState.SUCCEEDED)
            return
        because = (
            f"Job failed due to task failure. Specifically, task with index {failed[0]} failed due to the "
            f'following task event: "{self._last_event[failed[0]]}"'
        )
        self.record.set_state(JobState.FAILED, because)

    async def stop(self, grace: float) -> None:
        """End the job's processes and its VMs because it is cancelled or deleted; states are the caller's."""
        self._grace = grace
        if self.main:
            # What is closing already is not to be interrupted: it would leave a VM half ended.
            if not self._closing:
                self.main.cancel()
            # Waited for and not awaited: should this call be cancelled, the closing goes on.
            await asyncio.wait({self.main})

    def abandon_tasks(self) -> None:
        """Bring the tasks of a job that ended before they did to a final state."""
        for index, task in enumerate(self.record.tasks):
            state = TaskState(task.status.state)
            if state in FINISHED_TASK:
                continue
            ran = state is TaskState.RUNNING
            self.record.set_task(index, TaskState.FAILED if ran else TaskState.UNEXECUTED)

    async def _dispose(self, vm: Vm, grace: float) -> None:
        unexpected = vm.machine.gone.is_set() and not vm.ending
        await vm.shut_down(grace)
        if unexpected:
            await asyncio.to_thread(end_marked, vm.root)
        if vm in self._vms:
            self._vms.remove(vm)
        vm.wipe()


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
