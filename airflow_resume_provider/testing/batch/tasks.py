"""One attempt of one task on one VM: its runnables, in order, with everything that can be said of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from airflow_resume_provider.testing.batch.environment import SecretMissing, TaskIdentity, merged
from airflow_resume_provider.testing.batch.messages import seconds
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.vm import TIMED_OUT, Vm
from airflow_resume_provider.testing.executors.commands import CannotRun, Place
from airflow_resume_provider.testing.executors.machines import Command, Execution


@dataclass(frozen=True)
class Outcome:
    """How an attempt of a task ended; exit code 0 is success."""

    exit_code: int
    reason: str = ""


class Executor(Protocol):
    """What turns a runnable into a command, and cleans up behind it."""

    name: str

    def command(self, runnable: Any, place: Place, spec: Any, vm: str) -> Command:
        """The command that runs this runnable."""

    def greeting(self, runnable: Any) -> str:
        """What the log says once per job."""

    def end_command(self, vm: str) -> list[str]:
        """A command that ends what outlives the VM's processes, or nothing."""


class Barriers:
    """The barriers of one task group: each opens when every task has come to it or has ended."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._arrived: dict[int, set[int]] = {}
        self._ended: set[int] = set()
        self._changed = asyncio.Condition()

    async def wait(self, barrier: int, task: int) -> None:
        """Arrive, and wait for the others."""
        async with self._changed:
            self._arrived.setdefault(barrier, set()).add(task)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._arrived[barrier] | self._ended) >= self._count)

    async def end(self, task: int) -> None:
        """A task will come to no barrier any more."""
        async with self._changed:
            self._ended.add(task)
            self._changed.notify_all()


@dataclass(eq=False)
class TaskRun:
    """Runs the runnables of a task.

    Args:
        announce: called with what whoever only sees the job's events has to know.
    """

    group: Any
    identity: TaskIdentity
    vm: Vm
    executor: Executor
    settings: Settings
    barriers: Barriers
    log: Path
    environment: dict[str, str]
    greet: bool = False
    announce: Callable[[str], None] = lambda text: None
    _background: list[tuple[Any, Execution]] = field(default_factory=list)
    _failure: Outcome | None = None
    _ending: bool = False

    async def run(self) -> Outcome:
        """Run everything; a task over its `max_run_duration` ends with 50005, `always_run` or not."""
        limit = seconds(self.group.task_spec.max_run_duration) or None
        try:
            async with asyncio.timeout(limit):
                await self._foreground()
        except TimeoutError:
            self.say(f"task exceeded its maximum run duration of {limit:g}s, exit code 50005", "ERROR")
            self.fail(TIMED_OUT.exit_code, TIMED_OUT.reason)
            self.vm.machine.signal_all(signal.SIGKILL)
        await self._end_background()
        return self._failure or Outcome(0)

    def fail(self, exit_code: int, reason: str = "") -> None:
        """Note a failure; only the first one counts."""
        self._failure = self._failure or Outcome(exit_code, reason)

    async def _foreground(self) -> None:
        for number, runnable in enumerate(self.group.task_spec.runnables):
            if self._failure and not runnable.always_run:
                continue
            if runnable.WhichOneof("executable") == "barrier":
                await self.barriers.wait(number, self.identity.index)
                continue
            await self._start(number, runnable)

    async def _start(self, number: int, runnable: Any) -> None:
        try:
            command = self._command(number, runnable)
        except CannotRun as error:
            text = f"runnable {number} cannot be started: {error}"
            self.say(text, "ERROR", number)
            self.announce(f"Task {self.identity.index}: {text}.")
            self._judge(runnable, error.exit_code)
            return
        execution = await self.vm.machine.start(command)
        if runnable.background:
            self._background.append((runnable, execution))
            # At once, since of several failures only the first one counts.
            execution.exited.add_done_callback(functools.partial(self._background_exited, runnable))
            return
        await self._finish(number, runnable, execution)

    def _command(self, number: int, runnable: Any) -> Command:
        try:
            variables = merged(self.group, runnable, self.identity, self.settings.secrets)
        except SecretMissing as error:
            raise CannotRun(f"secret {error} is not in the local secrets") from None
        place = Place(
            root=self.vm.root,
            variables={**self.environment, **variables},
            log=str(self.log),
            runnable=number,
            attempt=self.identity.retry,
            images=self.settings.images,
        )
        if self.greet:
            self.greet = False
            self.say(self.executor.greeting(runnable))
        return self.executor.command(runnable, place, self.group.task_spec, self.vm.hostname)

    async def _finish(self, number: int, runnable: Any, execution: Execution) -> None:
        limit = seconds(runnable.timeout) or None
        try:
            code = await asyncio.wait_for(execution.wait(), limit)
        except TimeoutError:
            self.say(
                f"runnable {number} exceeded its timeout of {limit:g}s, exit code 50005", "ERROR", number
            )
            execution.signal(signal.SIGKILL)
            await execution.wait()
            self._judge(runnable, TIMED_OUT.exit_code, TIMED_OUT.reason)
            return
        self._judge(runnable, code)

    def _judge(self, runnable: Any, code: int, reason: str = "") -> None:
        if code and not runnable.ignore_exit_status:
            self.fail(code, reason)

    def _background_exited(self, runnable: Any, exited: asyncio.Future[int]) -> None:
        if not self._ending and not exited.cancelled():
            self._judge(runnable, exited.result())

    async def _end_background(self) -> None:
        """Background runnables that still run get a moment, then are killed, which is no failure."""
        self._ending = True
        for runnable, execution in self._background:
            if execution.exited.done():
                self._judge(runnable, execution.exited.result())
        waiting = [execution for _, execution in self._background if not execution.exited.done()]
        for execution in waiting:
            execution.signal(signal.SIGTERM)
        if waiting:
            exits = [execution.exited for execution in waiting]
            await asyncio.wait(exits, timeout=self.settings.background_grace_seconds)
        for _, execution in self._background:
            if not execution.exited.done():
                execution.signal(signal.SIGKILL)
                await execution.wait()

    def say(self, text: str, severity: str = "INFO", runnable: int = -1) -> None:
        """Add a line of the agent's own to the task's log."""
        entry = {
            "log": "batch_agent_logs",
            "severity": severity,
            "runnable": runnable,
            "attempt": self.identity.retry,
            "time": time.time(),
            "message": f"batch agent: {text}",
        }
        with contextlib.suppress(OSError), self.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")
