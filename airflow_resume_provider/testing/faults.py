"""Faults as a plan: what goes wrong, to which job, when. Seeded, so that a plan repeats itself.

In Python::

    Plan(
        preempt(job=1, after_commits=2, grace_seconds=5),
        preempt(job=2, while_restoring=True),
        api_error("GetJob", code="UNAVAILABLE", rate=0.3, for_seconds=20),
        stock_out(zones=["us-central1-a"], provisioning="SPOT", for_seconds=30),
        seed=7,
    )

or as YAML::

    seed: 7
    faults:
      - preempt: {job: 1, after_commits: 2, grace_seconds: 5}
      - preempt: {job: 2, while_restoring: true}
      - api_error: {methods: [GetJob], code: UNAVAILABLE, rate: 0.3, for_seconds: 20}
      - stock_out: {zones: [us-central1-a], provisioning: SPOT, for_seconds: 30}

A job is named by its number in order of creation (1, 2, 3 …), by a glob on its
id, or by labels. Times are in seconds; those of a job count from its RUNNING.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airflow_resume_provider.errors import InvalidInput

JobMatch = int | str | Mapping[str, str]
LOSS_KINDS = ("preempt", "vanish", "reboot", "unresponsive", "recreate", "maintenance")
CODES = (
    "ABORTED",
    "ALREADY_EXISTS",
    "BAD_GATEWAY",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNKNOWN",
)
JOB_STATES = ("QUEUED", "SCHEDULED", "RUNNING")


def _refuse(parameter: str, value: Any, can: str) -> InvalidInput:
    return InvalidInput(f"{parameter}={value!r} is not possible.", can=can, parameter=parameter, value=value)


def _check_not_negative(fault: Any, *names: str) -> None:
    for name in names:
        value = getattr(fault, name)
        if value is not None and value < 0:
            raise _refuse(name, value, "It must not be negative.")


@dataclass(frozen=True)
class Loss:
    """A VM is lost, or hears that it may be.

    Args:
        kind: preempt (50001), vanish (50002), reboot (50003), unresponsive
            (50004), recreate (50006), or maintenance, which only announces an
            event on the metadata server for `grace_seconds`.
        job: which job; every one by default.
        after_commits: when the n-th checkpoint of this job has been committed.
        after_seconds: this long after RUNNING.
        while_restoring: when the job first reads a checkpoint from the store.
        on_state: when the job reaches QUEUED, SCHEDULED or RUNNING.
        grace_seconds: between notice and power-off; None takes the server's.
        notice: False cuts the power without any notice.
        silent_metadata: the metadata server stops answering after the notice.
        jitter_seconds: a random part of up to this much is added.
        task: only the VM that runs this task.
        times: how many jobs this happens to; 0 for all that match.
    """

    kind: str = "preempt"
    job: JobMatch = "*"
    after_commits: int | None = None
    after_seconds: float | None = None
    while_restoring: bool = False
    on_state: str = ""
    grace_seconds: float | None = None
    notice: bool = True
    silent_metadata: bool = False
    jitter_seconds: float = 0.0
    task: int | None = None
    times: int = 1

    def __post_init__(self) -> None:
        if self.kind not in LOSS_KINDS:
            raise _refuse("kind", self.kind, f"Use one of {', '.join(LOSS_KINDS)}.")
        if self.on_state and self.on_state not in JOB_STATES:
            raise _refuse("on_state", self.on_state, f"Use one of {', '.join(JOB_STATES)}.")
        given = [self.after_commits is not None, self.after_seconds is not None]
        given += [self.while_restoring, bool(self.on_state)]
        if sum(given) != 1:
            raise _refuse(
                "when",
                sum(given),
                "Give exactly one of after_commits, after_seconds, while_restoring, on_state.",
            )
        _check_not_negative(
            self, "after_commits", "after_seconds", "grace_seconds", "jitter_seconds", "times", "task"
        )


@dataclass(frozen=True)
class ApiError:
    """Calls of the Batch API fail.

    Args:
        methods: names such as "GetJob"; "*" for all.
        code: canonical code, or BAD_GATEWAY for a 502 that no API server wrote.
        rate: share of the calls, 0 to 1.
        times: how many calls at most; 0 for no limit.
        for_seconds: only this long after the plan began; None for ever.
        after_effect: the call takes effect and only its answer is lost.
        job: only calls that name a job whose id matches this glob.
    """

    methods: tuple[str, ...] = ("*",)
    code: str = "UNAVAILABLE"
    rate: float = 1.0
    times: int = 0
    for_seconds: float | None = None
    after_effect: bool = False
    job: str = "*"
    message: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise _refuse("code", self.code, f"Use one of {', '.join(CODES)}.")
        if not 0 <= self.rate <= 1:
            raise _refuse("rate", self.rate, "It is a share between 0 and 1.")
        _check_not_negative(self, "times", "for_seconds")


@dataclass(frozen=True)
class Latency:
    """Calls of the Batch API take longer, by `seconds` and a random part of up to `jitter_seconds`."""

    seconds: float = 1.0
    jitter_seconds: float = 0.0
    methods: tuple[str, ...] = ("*",)
    for_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_not_negative(self, "seconds", "jitter_seconds", "for_seconds")


@dataclass(frozen=True)
class StockOut:
    """No VM can be had: the job stays SCHEDULED and says so in an event.

    Args:
        zones: zones or regions that have none; all when empty.
        provisioning: "SPOT", "STANDARD" … or "" for every model.
        machine_type: glob on the machine type.
        for_seconds: only this long after the plan began; None for ever.
    """

    zones: tuple[str, ...] = ()
    provisioning: str = ""
    machine_type: str = "*"
    for_seconds: float | None = None
    job: JobMatch = "*"


@dataclass(frozen=True)
class UnknownType:
    """A machine or accelerator type does not exist: such a job fails before any task runs.

    Args:
        name: glob on the type, for example "a9-*" or "nvidia-none".
    """

    name: str = "*"
    job: JobMatch = "*"


@dataclass(frozen=True)
class Quota:
    """A quota is exhausted: the job stays QUEUED, as long as zero quota lasts for ever.

    Args:
        metric: for example "PREEMPTIBLE_NVIDIA_T4_GPUS".
        limit: what the event says the limit is.
        scheduled: True lets the job reach SCHEDULED, where Compute Engine refuses.
    """

    metric: str = "CPUS"
    limit: float = 0.0
    usage: float = 0.0
    wanted: float = 4.0
    scheduled: bool = False
    for_seconds: float | None = None
    job: JobMatch = "*"


@dataclass(frozen=True)
class StoreFault:
    """The object store is slow or fails.

    Args:
        status: HTTP status to answer with; 0 for none.
        rate: share of the requests that fail.
        bytes_per_second: cap on the store's whole bandwidth, up and down; 0 for none.
        latency_seconds: added to every request.
        methods: HTTP methods.
        match: glob on the path of the request.
        reset: cut the connection in place of an answer.
    """

    status: int = 0
    rate: float = 1.0
    bytes_per_second: float = 0.0
    latency_seconds: float = 0.0
    methods: tuple[str, ...] = ("*",)
    match: str = "*"
    times: int = 0
    for_seconds: float | None = None
    reset: bool = False

    def __post_init__(self) -> None:
        if self.status and not 400 <= self.status <= 599:
            raise _refuse("status", self.status, "It is an HTTP error, 400 to 599.")
        if not 0 <= self.rate <= 1:
            raise _refuse("rate", self.rate, "It is a share between 0 and 1.")


@dataclass(frozen=True)
class ClockSkew:
    """The Batch server's clock is off by this many seconds."""

    seconds: float = 60.0


@dataclass(frozen=True)
class LateJob:
    """A job cannot be found yet: GetJob and lists answer as if it were not there, for so long."""

    seconds: float = 2.0
    job: JobMatch = "*"


@dataclass(frozen=True)
class EventDisorder:
    """Status events are given out in another order than they happened in."""

    job: JobMatch = "*"


Fault = (
    Loss
    | ApiError
    | Latency
    | StockOut
    | UnknownType
    | Quota
    | StoreFault
    | ClockSkew
    | LateJob
    | EventDisorder
)
KINDS: dict[str, type[Any]] = {
    "api_error": ApiError,
    "latency": Latency,
    "stock_out": StockOut,
    "unknown_type": UnknownType,
    "quota": Quota,
    "store": StoreFault,
    "clock_skew": ClockSkew,
    "late_job": LateJob,
    "event_disorder": EventDisorder,
}
_SEQUENCES = ("methods", "zones")


def fault(kind: str, **fields: Any) -> Fault:
    """A fault by the name that YAML uses.

    Raises:
        InvalidInput: no such kind or field, or a value that cannot be.
    """
    cls = Loss if kind in LOSS_KINDS else KINDS.get(kind)
    if cls is None:
        raise _refuse("fault", kind, f"Use one of {', '.join([*LOSS_KINDS, *KINDS])}.")
    known = {field.name for field in dataclasses.fields(cls)}
    for name in fields:
        if name not in known or (cls is Loss and name == "kind"):
            raise _refuse(name, fields[name], f"{kind} takes {', '.join(sorted(known - {'kind'}))}.")
    for name in _SEQUENCES:
        if name in fields:
            value = fields[name]
            fields[name] = (value,) if isinstance(value, str) else tuple(value)
    if cls is Loss:
        fields["kind"] = kind
    try:
        return cls(**fields)
    except TypeError as error:
        raise _refuse(kind, fields, str(error)) from error


def kind_of(item: Fault) -> str:
    """The name that YAML uses for this fault."""
    if isinstance(item, Loss):
        return item.kind
    return next(name for name, cls in KINDS.items() if isinstance(item, cls))


def to_dict(item: Fault) -> dict[str, Any]:
    """A fault as YAML would hold it, without what is at its default."""
    fields = {
        field.name: getattr(item, field.name)
        for field in dataclasses.fields(item)
        if field.name != "kind" and getattr(item, field.name) != field.default
    }
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {kind_of(item): plain}


class Plan:
    """An immutable list of faults and the seed of their dice."""

    EMPTY: ClassVar[Plan]

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        self.faults, self.seed = tuple(faults), seed

    def __repr__(self) -> str:
        return f"Plan({', '.join(map(repr, self.faults))}, seed={self.seed})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (self.faults, self.seed) == (other.faults, other.seed)

    def __hash__(self) -> int:
        return hash((repr(self.faults), self.seed))

    def to_dict(self) -> dict[str, Any]:
        """The plan as YAML would hold it."""
        return {"seed": self.seed, "faults": [to_dict(item) for item in self.faults]}

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """A plan from what YAML held; a list alone is taken as the faults.

        Raises:
            InvalidInput: names the parameter that cannot be.
        """
        data = {"faults": data} if isinstance(data, list) else data or {}
        if not isinstance(data, Mapping) or set(data) - {"seed", "faults"}:
            raise _refuse("plan", data, "A plan has the keys seed and faults.")
        faults: list[Fault] = []
        for entry in data.get("faults") or []:
            entry = {entry: {}} if isinstance(entry, str) else entry
            if not isinstance(entry, Mapping) or len(entry) != 1:
                raise _refuse("faults", entry, "Each fault is one name with its fields.")
            [(name, fields)] = entry.items()
            faults.append(fault(name, **(fields or {})))
        return cls(*faults, seed=int(data.get("seed") or 0))

    @classmethod
    def from_yaml(cls, source: str | Path) -> Plan:
        """A plan from a YAML file, or from YAML text."""
        import yaml

        text = source.read_text() if isinstance(source, Path) else source
        try:
            return cls.from_dict(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise _refuse("plan", str(source)[:80], f"It is not YAML: {error}") from error

    def with_faults(self, faults: Iterable[Fault]) -> Plan:
        """This plan and more."""
        return Plan(*self.faults, *faults, seed=self.seed)


Plan.EMPTY = Plan()


def _loss(name: str) -> Any:
    def make(job: JobMatch = "*", **fields: Any) -> Loss:
        return fault(name, job=job, **fields)  # type: ignore[return-value]

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A `{name}` for the plan; see `Loss` for its fields."
    return make


preempt, vanish, reboot, unresponsive, recreate, maintenance = map(_loss, LOSS_KINDS)


def api_error(*methods: str, **fields: Any) -> ApiError:
    """Calls of these methods fail; see `ApiError`."""
    return ApiError(methods=methods or ("*",), **fields)


def latency(seconds: float, *methods: str, **fields: Any) -> Latency:
    """Calls of these methods are slow; see `Latency`."""
    return Latency(seconds=seconds, methods=methods or ("*",), **fields)


def stock_out(**fields: Any) -> StockOut:
    """No VMs; see `StockOut`."""
    return fault("stock_out", **fields)  # type: ignore[return-value]


def unknown_type(name: str, **fields: Any) -> UnknownType:
    """A type that does not exist; see `UnknownType`."""
    return UnknownType(name=name, **fields)


def quota(metric: str = "CPUS", **fields: Any) -> Quota:
    """No quota; see `Quota`."""
    return Quota(metric=metric, **fields)


def store(**fields: Any) -> StoreFault:
    """A slow or failing store; see `StoreFault`."""
    return fault("store", **fields)  # type: ignore[return-value]
