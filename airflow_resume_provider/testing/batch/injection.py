"""The plan at work: matches what happens on the server against the plan's faults and strikes."""

from __future__ import annotations

import asyncio
import fnmatch
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_resume_provider.testing import faults
from airflow_resume_provider.testing.batch.api_errors import ApiError
from airflow_resume_provider.testing.batch.names import job_id_of
from airflow_resume_provider.testing.batch.vm import NEVER_PREEMPTED

if TYPE_CHECKING:
    from airflow_resume_provider.testing.batch.fleet import Fleet

_TEXTS = {
    "UNAVAILABLE": "The service is currently unavailable.",
    "DEADLINE_EXCEEDED": "Deadline expired before operation could complete.",
    "RESOURCE_EXHAUSTED": "Quota exceeded for quota metric 'Batch API requests' and limit "
    "'Batch API requests per minute per region' of service 'batch.googleapis.com'.",
    "INTERNAL": "Internal error encountered.",
    "BAD_GATEWAY": "502 Bad Gateway",
}


F = TypeVar("F", bound=faults.Fault)


class Injector:
    """Holds the plan, what of it has been spent, and the dice."""

    def __init__(self, plan: faults.Plan) -> None:
        self._spent: Counter[int] = Counter()  # by identity: a fault may hold unhashable labels
        self._struck: set[tuple[int, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.set_plan(plan)

    def set_plan(self, plan: faults.Plan) -> None:
        """Begin a plan: its times count from now, its dice start at its seed."""
        self.plan, self._random, self._begun = plan, random.Random(plan.seed), time.monotonic()  # noqa: S311
        self._spent.clear()
        self._struck.clear()

    def add(self, fault: faults.Fault) -> None:
        """One more fault; what is already going on goes on."""
        self.plan = self.plan.with_faults([fault])

    def _of(self, kind: type[F]) -> Iterator[F]:
        for fault in self.plan.faults:
            limit = getattr(fault, "for_seconds", None)
            if isinstance(fault, kind) and (limit is None or time.monotonic() - self._begun <= limit):
                yield fault

    def _strikes(self, fault: Any) -> bool:
        """Throw the dice and count."""
        if fault.times and self._spent[id(fault)] >= fault.times:
            return False
        if self._random.random() >= fault.rate:
            return False
        self._spent[id(fault)] += 1
        return True

    def delay(self, method: str) -> float:
        """Seconds by which a call is slower."""
        return sum(
            fault.seconds + self._random.random() * fault.jitter_seconds
            for fault in self._of(faults.Latency)
            if _names(fault.methods, method)
        )

    def error(self, method: str, resource: str, *, after: bool) -> ApiError | None:
        """The error that a call ends with, before or after it has taken effect."""
        for fault in self._of(faults.ApiError):
            if fault.after_effect is not after or not _names(fault.methods, method):
                continue
            if not fnmatch.fnmatchcase(job_id_of(resource.partition("/taskGroups/")[0]), fault.job):
                continue
            if self._strikes(fault):
                text = fault.message or _TEXTS.get(fault.code, f"Injected {fault.code}.")
                if fault.code == "BAD_GATEWAY":
                    return ApiError("UNAVAILABLE", text, http=502)
                return ApiError(fault.code, text)
        return None

    def skew(self) -> float:
        """Seconds by which the server's clock is off."""
        return sum(fault.seconds for fault in self._of(faults.ClockSkew))

    def disordered(self, number: int, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a job's events are given out in another order."""
        return any(matches(fault.job, number, name, labels) for fault in self._of(faults.EventDisorder))

    def hidden_for(self, number: int, name: str, labels: Mapping[str, str]) -> float:
        """Seconds after its creation during which a job cannot be found."""
        late = [f.seconds for f in self._of(faults.LateJob) if matches(f.job, number, name, labels)]
        return max(late, default=0.0)

    def quota(self, fleet: Fleet, *, scheduled: bool) -> faults.Quota | None:
        """The quota that holds a job up."""
        for fault in self._of(faults.Quota):
            if fault.scheduled is scheduled and fleet.matches(fault.job):
                return fault
        return None

    def stocked_out(self, fleet: Fleet, zone: str) -> bool:
        """Whether a job's VM cannot be had in a zone."""
        region = zone.rpartition("-")[0]
        for fault in self._of(faults.StockOut):
            named = {part.rpartition("/")[2] for part in fault.zones}
            if (
                (not named or named & {zone, region})
                and fault.provisioning in ("", fleet.provisioning)
                and fnmatch.fnmatchcase(fleet.machine_type, fault.machine_type)
                and fleet.matches(fault.job)
            ):
                return True
        return False

    def unknown_type(self, fleet: Fleet) -> str:
        """The machine or accelerator type of a job that does not exist, or nothing."""
        for fault in self._of(faults.UnknownType):
            for name in (fleet.machine_type, *fleet.accelerators):
                if fnmatch.fnmatchcase(name, fault.name) and fleet.matches(fault.job):
                    return name
        return ""

    def on_state(self, fleet: Fleet, state: str) -> None:
        """A job has reached a state."""
        for fault in self._of(faults.Loss):
            if fault.on_state == state:
                self._lose(fault, fleet)
            elif fault.after_seconds is not None and state == "RUNNING":
                self._lose(fault, fleet, fault.after_seconds)

    def on_commit(self, fleet: Fleet, count: int) -> bool:
        """A job has committed its `count`-th checkpoint; True when its VM is lost for that, at once."""
        struck = [self._lose(fault, fleet) for fault in self._of(faults.Loss) if fault.after_commits == count]
        return any(struck)

    def on_restore(self, fleet: Fleet) -> bool:
        """A job reads a checkpoint; True when its VM is lost for that, at once."""
        struck = [self._lose(fault, fleet) for fault in self._of(faults.Loss) if fault.while_restoring]
        return any(struck)

    def _lose(self, fault: faults.Loss, fleet: Fleet, after: float = 0.0) -> bool:
        key = (id(fault), fleet.record.uid)
        if key in self._struck or not fleet.matches(fault.job):
            return False
        if fault.kind == "preempt" and fleet.provisioning in NEVER_PREEMPTED:
            return False
        if fault.times and self._spent[id(fault)] >= fault.times:
            return False
        self._struck.add(key)
        self._spent[id(fault)] += 1
        wait = after + self._random.random() * fault.jitter_seconds
        task = asyncio.create_task(fleet.lose_after(wait, fault))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return wait == 0

    def store_fault(self, method: str, path: str) -> faults.StoreFault | None:
        """What is done to a request to the object store."""
        for fault in self._of(faults.StoreFault):
            if (
                _names(fault.methods, method)
                and fnmatch.fnmatchcase(path, fault.match)
                and self._strikes(fault)
            ):
                return fault
        return None

    async def stop(self) -> None:
        """Give up what has not struck yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def matches(wanted: faults.JobMatch, number: int, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a fault is meant for a job: by its number, a glob on its id or name, or labels."""
    if isinstance(wanted, int):
        return wanted == number
    if isinstance(wanted, Mapping):
        return all(labels.get(key) == value for key, value in wanted.items())
    return fnmatch.fnmatchcase(job_id_of(name), wanted) or fnmatch.fnmatchcase(name, wanted)


def _names(methods: tuple[str, ...], method: str) -> bool:
    return any(fnmatch.fnmatchcase(method, wanted) for wanted in methods)
