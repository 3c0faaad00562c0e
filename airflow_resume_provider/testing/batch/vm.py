"""A local VM: a process tree, a metadata server, a disk, and the ways in which it can be lost."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

from airflow_resume_provider.testing.executors.machines import Machine
from airflow_resume_provider.testing.metadata.server import MetadataServer


@dataclass(frozen=True)
class Loss:
    """Why a VM is gone: the reserved exit code and the cloud's words for it."""

    exit_code: int
    reason: str


PREEMPTED = Loss(50001, "Spot VM preemption")
# Compute Engine takes Spot VMs away, and those of the older preemptible model.
NEVER_PREEMPTED = frozenset({"STANDARD", "RESERVATION_BOUND", "FLEX_START"})
SILENT = Loss(50002, "Batch no longer receives VM updates")
REBOOTED = Loss(50003, "VM is rebooted during task execution")
UNRESPONSIVE = Loss(50004, "tasks cannot be canceled")
TIMED_OUT = Loss(50005, "task runs over the maximum runtime")
RECREATED = Loss(50006, "VM is recreated during task execution")
LOSSES = {
    "preempt": PREEMPTED,
    "vanish": SILENT,
    "reboot": REBOOTED,
    "unresponsive": UNRESPONSIVE,
    "recreate": RECREATED,
}


def instance_id() -> str:
    """Nineteen digits, as Compute Engine gives them out."""
    return str(10**18 + secrets.randbelow(9 * 10**18))


@dataclass(eq=False)
class Vm:
    """One VM of a job."""

    id: str
    zone: str
    node: int
    hostname: str
    root: Path
    machine: Machine
    metadata: MetadataServer
    lost: asyncio.Future[Loss] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ending: bool = False
    tasks: set[int] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    noticed: asyncio.Event = field(default_factory=asyncio.Event)

    def __repr__(self) -> str:
        return f"<Vm {self.hostname} {self.where}{' lost' if self.lost.done() else ''}>"

    @property
    def where(self) -> str:
        """How status events name it."""
        return f"zones/{self.zone}/instances/{self.id}"

    def enter(self, task: int) -> None:
        """A task starts to run here."""
        self.tasks.add(task)
        self.idle.clear()

    def leave(self, task: int) -> None:
        """A task has ended here."""
        self.tasks.discard(task)
        if not self.tasks:
            self.idle.set()

    async def preempt(
        self,
        grace: float,
        *,
        notice: bool = True,
        silent_metadata: bool = False,
        signal_delay: float = 0.0,
    ) -> None:
        """Take the VM away as Compute Engine takes a Spot VM.

        With a notice: `instance/preempted` turns TRUE, after `signal_delay`
        every runnable gets SIGTERM once, and `grace` seconds after the notice,
        or sooner when nothing runs any more, the power goes. Without: the
        power goes at once.
        """
        if self.ending:
            return
        self.ending = True
        if notice:
            await self.metadata.preempt()
            self.metadata.silent = silent_metadata
            delay = min(signal_delay, grace)
            await asyncio.sleep(delay)
            self.machine.signal_all(signal.SIGTERM)
            self.noticed.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.idle.wait(), grace - delay)
        await self._lose(PREEMPTED)

    async def maintain(self, seconds: float) -> None:
        """Announce a maintenance event for so long; nothing else happens."""
        await self.metadata.maintain()
        self.noticed.set()
        await asyncio.wait({self.lost}, timeout=seconds)
        await self.metadata.maintain("NONE")

    async def fail(self, loss: Loss, delay: float = 0.0) -> None:
        """Lose the VM without any notice; the server only learns of it after `delay` seconds."""
        if self.ending:
            return
        self.ending = True
        await self.metadata.stop()
        await self.machine.destroy()
        await asyncio.sleep(delay)
        await self._lose(loss)

    async def _lose(self, loss: Loss) -> None:
        await self.machine.destroy()
        self.noticed.set()
        if not self.lost.done():
            self.lost.set_result(loss)

    async def shut_down(self, grace: float) -> None:
        """End the VM because its job does: SIGTERM, `grace` seconds, SIGKILL."""
        self.ending = True
        if self.machine.running and grace > 0:
            self.machine.signal_all(signal.SIGTERM)
            await self.machine.wait_idle(grace)
        await self.machine.destroy()
        await self.metadata.stop()

    def wipe(self) -> None:
        """Delete the VM's disk; a next VM starts with an empty one."""
        shutil.rmtree(self.root, ignore_errors=True)
