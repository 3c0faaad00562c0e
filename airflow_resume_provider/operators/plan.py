"""The author's parameters as checked values, at DAG parse and again once templates are rendered."""

from __future__ import annotations

import hashlib
import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_resume_provider.attempts.budget import Budgets
from airflow_resume_provider.attempts.decide import OnPreemption, Rules
from airflow_resume_provider.attempts.placement import Placement, Policy, ladder, templated
from airflow_resume_provider.batch import labels
from airflow_resume_provider.batch.jobs import ContainerSpec, MachineSpec
from airflow_resume_provider.batch.schema import normalised
from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.runtime import env

if TYPE_CHECKING:
    from airflow_resume_provider.operators.train import ResumableTrainOperator

_PROJECT = re.compile(r"([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{2,61}[a-z0-9]")
_SECRET = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the operator itself tells the container, or the container the training.
OWNED = frozenset(
    {
        env.LINEAGE,
        env.ATTEMPT,
        env.DIR,
        env.FROM,
        env.EXPLICIT,
        env.TRAINING_ID,
        env.SPEC_DIGEST,
        env.JOB_NAME,
        env.STATE_DIR,
        env.CHECKPOINT,
        env.METRICS_FILE,
        env.NOTICE_FILE,
        env.STEP,
        env.INDEX,
        env.RESUMED,
    }
)
_SHM = re.compile(r"[0-9]+[bkmg]?", re.I)


class Resume(StrEnum):
    """Where a try's first attempt starts from."""

    AUTO = "auto"  # the newest checkpoint, or fresh when there is none
    NEVER = "never"  # each try is a fresh start
    REQUIRED = "required"  # the newest checkpoint, and an error when there is none


class OnClear(StrEnum):
    """What a person means by clearing the task."""

    RESUME = "resume"
    FRESH = "fresh"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything about a training that does not depend on the task instance."""

    rules: Rules
    container: ContainerSpec
    machine: MachineSpec
    options: Mapping[str, str]
    override: Mapping[str, Any]
    labels: Mapping[str, str]
    project: str
    root: str
    format: str
    resume: Resume
    resume_from: str
    on_clear: OnClear

    @property
    def spec_digest(self) -> str:
        """Digest of what is trained, so that a changed training is noticed in the container."""
        c = self.container
        spec = [c.image, list(c.command), dict(c.env), dict(c.secret_env), self.format]
        return hashlib.sha256(json.dumps(spec, sort_keys=True, default=str).encode()).hexdigest()[:16]


def plan(op: ResumableTrainOperator) -> Plan:
    """Check the operator's parameters; what is still templated is checked when it is rendered.

    Raises:
        InvalidInput: with the parameter's name.
    """
    placement = Placement(
        region=op.region,
        zones=tuple(op.zones or ()),
        machine_type=op.machine_type,
        accelerator_type=op.accelerator_type or None,
        accelerator_count=op.accelerator_count,
        provisioning_model=op.provisioning_model,
        queue_timeout=op.queue_timeout,
    )
    return Plan(
        rules=Rules(
            ladder=ladder(placement, _unless_templated(op.placements)),
            budgets=_budgets(op),
            on_preemption=_word(op.on_preemption, OnPreemption, "on_preemption"),
            placement_policy=_word(op.placement_policy, Policy, "placement_policy"),
        ),
        container=_container(op),
        machine=_machine(op),
        options=_options(op),
        override=normalised(op.job or {}),
        labels=_labels(op.labels or {}),
        project=_project(op.project_id),
        root=_root(op.checkpoint_root),
        format=str(op.format),
        resume=_word(op.resume, Resume, "resume"),
        resume_from=_resume_from(op.resume_from),
        on_clear=_word(op.on_clear, OnClear, "on_clear"),
    )


def _refuse(parameter: str, value: Any, wanted: str) -> NoReturn:
    raise InvalidInput(f"{parameter} is {value!r}.", can=f"Give {wanted}.", parameter=parameter, value=value)


def _unless_templated(value: Any) -> Any:
    return None if templated(value) else value


def _word(value: Any, words: type[Any], parameter: str) -> Any:
    if templated(value):
        return next(word for word in words)
    try:
        return words(value)
    except ValueError:
        _refuse(parameter, value, f"one of {', '.join(w.value for w in words)}")


def _budgets(op: ResumableTrainOperator) -> Budgets:
    return Budgets(
        preemptions=op.max_preemptions,
        infrastructure=op.max_infrastructure_failures,
        without_progress=op.max_attempts_without_progress,
        quick_death=op.quick_death_seconds,
        reset_on_progress=op.reset_budgets_on_progress,
    )


def _container(op: ResumableTrainOperator) -> ContainerSpec:
    return ContainerSpec(
        image=_text(op.image, "image"),
        command=_command(op.command),
        runtime_image=op.runtime_image or None,
        env=_variables(op.env or {}, "env"),
        secret_env=_secrets(op.secret_env or {}, op.env or {}),
        shm_size=_shm(op.shm_size),
        options=op.container_options or "",
        volumes=tuple(op.volumes or ()),
    )


def _machine(op: ResumableTrainOperator) -> MachineSpec:
    return MachineSpec(
        boot_disk_gb=_positive(op.boot_disk_gb, "boot_disk_gb", whole=True),
        max_run_seconds=_positive(op.max_run_seconds, "max_run_seconds"),
        service_account=op.service_account or None,
        network=op.network or None,
        subnetwork=op.subnetwork or None,
        external_ip=op.external_ip,
        priority=_between(op.priority, "priority", 0, 99),
        install_gpu_drivers=op.install_gpu_drivers,
    )


def _text(value: Any, parameter: str) -> str:
    if templated(value):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        _refuse(parameter, value, "a non-empty string")
    return value


def _command(value: Any) -> tuple[str, ...]:
    if templated(value):
        return (str(value),)
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        _refuse("command", value, 'a list of arguments such as ["python", "train.py"]')
    return tuple(str(part) for part in value)


def _variables(value: Any, parameter: str) -> Mapping[str, str]:
    if templated(value):
        return {}
    if not isinstance(value, Mapping):
        _refuse(parameter, value, "a dictionary")
    for name in value:
        if not _VARIABLE.fullmatch(str(name)):
            _refuse(f"{parameter}[{name!r}]", name, "names of letters, digits and _")
        if name in OWNED:
            _refuse(f"{parameter}[{name!r}]", name, "names that the container contract does not use")
    return dict(value)


def _secrets(value: Any, plain: Any) -> Mapping[str, str]:
    secrets = _variables(value, "secret_env")
    for name, secret in secrets.items():
        if not templated(secret) and not _SECRET.fullmatch(str(secret)):
            # The value is not repeated: it may be the secret itself.
            _refuse(
                f"secret_env[{name!r}]", "…", '"projects/P/secrets/S/versions/V", never the secret itself'
            )
        if isinstance(plain, Mapping) and name in plain:
            _refuse(f"secret_env[{name!r}]", name, "each name in env or in secret_env, not in both")
    return secrets


def _shm(value: Any) -> str | None:
    if value is None:
        return None
    if not templated(value) and not _SHM.fullmatch(str(value)):
        _refuse("shm_size", value, 'a size such as "8g"')
    return str(value)


def _positive(value: Any, parameter: str, *, whole: bool = False) -> Any:
    if value is None:
        return None
    kinds: Any = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
        _refuse(parameter, value, "a number above 0, or None")
    return value


def _between(value: Any, parameter: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(parameter, value, f"a number from {low} to {high}")
    return value


def _options(op: ResumableTrainOperator) -> Mapping[str, str]:
    if not hasattr(signal, f"SIG{op.stop_signal}"):
        _refuse("stop_signal", op.stop_signal, 'a signal such as "TERM" or "USR1"')
    _positive(op.poll_interval, "poll_interval")
    _positive(op.grace_seconds, "grace_seconds")
    for name in ("timeout", "stall_timeout", "queue_timeout"):
        _positive(getattr(op, name), name)
    given = {
        env.FINISHED_WHEN: op.finished_when,
        env.STOP_SIGNAL: None if op.stop_signal == "TERM" else op.stop_signal,
        env.GRACE: op.grace_seconds,
        env.KEEP_LAST: _between(op.keep_last, "keep_last", 0, 10**6) or None,
        env.STRICT: "1" if op.strict else None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _labels(value: Any) -> Mapping[str, str]:
    if templated(value):
        return {}
    labels.checked(value)
    return dict(value)


def _project(value: Any) -> str:
    if not templated(value) and not _PROJECT.fullmatch(str(value)):
        _refuse("project_id", value, "a project id")
    return str(value)


def _root(value: Any) -> str:
    if templated(value):
        return str(value)
    scheme, _, rest = str(value).partition("://")
    if scheme not in ("gs", "file") or not rest.strip("/"):
        _refuse("checkpoint_root", value, "gs://BUCKET/PATH or file:///PATH")
    if any(part in ("", ".", "..") for part in rest.strip("/").split("/")):
        _refuse("checkpoint_root", value, "a path without empty, . and .. parts")
    return str(value).rstrip("/")


def _resume_from(value: Any) -> str:
    if value is None or templated(value) or str(value).strip() in ("", "None"):
        # A template over an XCom that is not there renders as "None".
        return ""
    if not str(value).startswith(("gs://", "file://")):
        _refuse("resume_from", value, "the URI of a checkpoint")
    return str(value).rstrip("/")
