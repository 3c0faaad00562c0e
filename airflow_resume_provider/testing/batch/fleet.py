"""The VMs of one job: made, replaced, lost and wiped."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_resume_provider.testing import faults
from airflow_resume_provider.testing.batch import reasons
from airflow_resume_provider.testing.batch.capacity import Capacity
from airflow_resume_provider.testing.batch.injection import Injector, matches
from airflow_resume_provider.testing.batch.messages import GROUP, Provisioning
from airflow_resume_provider.testing.batch.records import JobRecord
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.tasks import Executor
from airflow_resume_provider.testing.batch.vm import LOSSES, NEVER_PREEMPTED, Vm, instance_id
from airflow_resume_provider.testing.batch.zones import allowed_zones
from airflow_resume_provider.testing.executors.machines import MachineHost
from airflow_resume_provider.testing.executors.strays import end_marked
from airflow_resume_provider.testing.metadata.server import Identity, MetadataServer

HOLD_SECONDS = 0.05  # how often a job that is held up looks whether it still is


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


class Fleet:
    """All VMs of a job."""

    def __init__(self, record: JobRecord, site: Site) -> None:
        self.record, self._site = record, site
        self._group = record.job.task_groups[0]
        self.per_node = max(1, int(self._group.task_count_per_node))
        self.at_once = int(min(self._group.parallelism, self._group.task_count))
        self.nodes = [Node(index) for index in range(max(1, math.ceil(self.at_once / self.per_node)))]
        self._vms: list[Vm] = []
        self._doom: faults.Loss | None = None

    def __repr__(self) -> str:
        return f"<Fleet of {self.record.name}: {self.vms}>"

    @property
    def vms(self) -> list[Vm]:
        """The VMs that run now."""
        return [vm for vm in self._vms if not vm.lost.done()]

    @property
    def least(self) -> int:
        """How many of the VMs must be up before any task runs: all, where tasks need each other."""
        barrier = any(item.WhichOneof("executable") == "barrier" for item in self.record.spec.runnables)
        together = barrier or self._group.require_hosts_file or self._group.permissive_ssh
        return len(self.nodes) if together else 1

    def tasks_at_once(self, node: Node) -> int:
        """How many tasks a node runs at the same time."""
        return max(1, min(self.per_node, self.at_once - node.index * self.per_node))

    @property
    def machine_type(self) -> str:
        """Machine type as the job's status shows it."""
        return str(self.record.job.status.task_groups[GROUP].instances[0].machine_type)

    @property
    def accelerators(self) -> list[str]:
        """Types of the accelerators that the job asks for."""
        instances = self.record.job.allocation_policy.instances
        return [item.type_ for instance in instances for item in instance.policy.accelerators]

    @property
    def provisioning(self) -> str:
        """Name of the provisioning model."""
        status = self.record.job.status.task_groups[GROUP].instances[0]
        return str(Provisioning(status.provisioning_model).name)

    def matches(self, wanted: faults.JobMatch) -> bool:
        """Whether a fault is meant for this job."""
        return matches(wanted, self.record.number, self.record.name, self.record.job.labels)

    def hostname(self, node: int) -> str:
        """Name of the machine that a node is."""
        return f"{self.record.uid}-group0-{node}"

    def hosts_file(self, vm: Vm) -> str:
        """Path of a file with the names of all nodes, a line each."""
        path = vm.root / "hosts"
        path.write_text("".join(f"{self.hostname(node.index)}\n" for node in self.nodes))
        return str(path)

    async def vm_of(self, node: Node) -> Vm:
        """The VM of a node: the one that runs, else a new one."""
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
            project_number=self._site.settings.project_number,
            zone=zone,
            instance_id=identifier,
            hostname=f"{self.hostname(node)}.{zone}.c.{self.record.name.split('/')[1]}.internal",
            machine_type=self.machine_type,
            provisioning=self.provisioning,
            service_account=policy.service_account.email,
            tags=tuple(policy.tags),
        )
        root = self._site.root / "vms" / f"{self.record.uid}-{node}-{identifier}"
        for directory in ("disk", "home", "tmp", "scripts"):
            (root / directory).mkdir(parents=True)
        metadata = MetadataServer(identity)
        try:
            await metadata.start()
            machine = await self._site.host.boot()
        except BaseException:
            await metadata.stop()
            shutil.rmtree(root, ignore_errors=True)
            raise
        if last := self._site.executor.end_command(self.hostname(node)):
            machine.at_end(last)
        vm = Vm(identifier, zone, node, self.hostname(node), root, machine, metadata)
        self._vms.append(vm)
        await asyncio.wait({vm.lost}, timeout=self._site.settings.boot_seconds)
        if doom := self._doom:
            self._doom = None
            await self._carry_out(doom)
        return vm

    async def _zone(self) -> str:
        """The first allowed zone that has VMs, waiting for one as long as it takes."""
        while True:
            zones = allowed_zones(self.record.job, self.record.location)
            if unknown := self._site.injector.unknown_type(self):
                raise Refused(reasons.unknown_type(unknown, zones[0]))
            for zone in zones:
                if not self._site.injector.stocked_out(self, zone):
                    return zone
            self.record.tell(reasons.stock_out(self.record, zones[0]))
            await asyncio.sleep(HOLD_SECONDS)

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
        settings = self._site.settings
        vms = [vm for vm in self.vms if task is None or task in vm.tasks]
        grace = settings.grace_seconds if grace is None else grace
        if kind == "preempt":
            how = {"notice": notice, "silent_metadata": silent_metadata}
            losing = [vm.preempt(grace, signal_delay=settings.signal_delay_seconds, **how) for vm in vms]
        elif kind == "maintenance":
            losing = [vm.maintain(grace) for vm in vms]
        else:
            delay = settings.report_timeout_seconds if kind in ("vanish", "unresponsive") else 0.0
            losing = [vm.fail(LOSSES[kind], delay) for vm in vms]
        await asyncio.gather(*losing)
        return vms

    async def noticed(self, timeout: float) -> None:
        """Wait until the VMs that are being lost have heard of it, or are gone."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(vm.noticed.wait() for vm in self.vms)), timeout)

    async def shut_down(self, grace: float) -> None:
        """End every VM because the job ends."""
        await asyncio.gather(*(self._dispose(vm, grace) for vm in list(self._vms)))

    async def _dispose(self, vm: Vm, grace: float) -> None:
        unexpected = vm.machine.gone.is_set() and not vm.ending
        await vm.shut_down(grace)
        if unexpected:
            await asyncio.to_thread(end_marked, vm.root)
        if vm in self._vms:
            self._vms.remove(vm)
        vm.wipe()
