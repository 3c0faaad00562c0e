"""Builds the Batch job of one attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.runtime import env

if TYPE_CHECKING:
    from google.cloud.batch_v1 import Job

# On the boot disk: /var is the stateful, writable part of Container-Optimized
# OS, where /mnt/disks is a small tmpfs. A disk of one's own can be mounted
# there through `job`.
HOST_DIR = "/var/lib/resume"
CONTAINER_DIR = "/mnt/resume"
RUN = "resume-run"
TRAINING = "train"  # the name of the runnable in which the training runs
# The default boot disk (30 GB) is too small for an image with CUDA in it.
BOOT_DISK_GB = 50
GPU_BOOT_DISK_GB = 150


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What runs in an attempt, the same for all attempts of a training.

    Attributes:
        runtime_image: when given, `image` stays unmodified and this image's `resume-run`
            restores and commits beside it.
        shm_size: size of /dev/shm in docker's words ("8g"); data loaders need it.
        options: further options of `docker run`.
        volumes: further volumes of the training container.
    """

    image: str
    command: Sequence[str]
    runtime_image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    shm_size: str | None = None
    options: str = ""
    volumes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """What the job asks of the platform besides the placement."""

    boot_disk_gb: int | None = None
    max_run_seconds: float | None = None
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True
    priority: int = 0
    install_gpu_drivers: bool = True


@dataclass(frozen=True, kw_only=True)
class ContractSpec:
    """What the container is told: the container contract's options, by environment."""

    lineage: str
    attempt: int
    training_id: str
    job_id: str
    job_name: str
    offered: str = ""
    explicit: bool = False
    format: str = "auto"
    spec_digest: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """Return the environment; by name, never by position."""
        return {
            env.LINEAGE: self.lineage,
            env.ATTEMPT: str(self.attempt),
            env.TRAINING_ID: self.training_id,
            # The same over all attempts: some frameworks write absolute paths into their state.
            env.DIR: f"{CONTAINER_DIR}/{self.training_id}",
            env.FORMAT: self.format,
            env.FROM: self.offered,
            env.EXPLICIT: "1" if self.explicit else "0",
            env.SPEC_DIGEST: self.spec_digest,
            env.JOB_NAME: self.job_name,
            **self.options,
        }


def build(
    container: ContainerSpec,
    machine: MachineSpec,
    placement: Placement,
    contract: ContractSpec,
    labels: Mapping[str, str],
    override: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the job in the client's spelling, with the author's override merged in.

    The platform's own retries stay at 0: each attempt is a job of its own, so
    that attempts are counted, seen and placed by us.
    """
    job = {
        "priority": machine.priority,
        "labels": dict(labels),
        "task_groups": [
            {
                "task_count": 1,
                "task_spec": {
                    "runnables": _runnables(container, contract),
                    "max_retry_count": 0,
                    **_max_run(machine.max_run_seconds),
                },
            }
        ],
        "allocation_policy": _allocation(machine, placement, labels),
        "logs_policy": {"destination": "CLOUD_LOGGING"},
    }
    whole: dict[str, Any] = merged(job, override or {})
    for group in whole["task_groups"]:
        _hand_on_mounts(group["task_spec"])
    return whole


def _hand_on_mounts(task_spec: Mapping[str, Any]) -> None:
    """Show a task's disks and buckets to the training, as the author expects.

    Batch does that by itself only for containers that name no volume, and ours always does:
    https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs#Container
    """
    paths = [volume.get("mount_path") for volume in task_spec.get("volumes") or ()]
    for runnable in task_spec.get("runnables") or ():
        if runnable.get("display_name") == TRAINING and "container" in runnable:
            volumes = runnable["container"]["volumes"]
            named = {side for volume in volumes for side in volume.split(":")[:2]}
            volumes += [f"{path}:{path}" for path in paths if path and path not in named]


def _max_run(seconds: float | None) -> dict[str, str]:
    return {"max_run_duration": f"{int(seconds)}s"} if seconds else {}


def _runnables(container: ContainerSpec, contract: ContractSpec) -> list[dict[str, Any]]:
    if container.runtime_image:
        from airflow_resume_provider.batch.sidecars import runnables

        return runnables(container, contract)
    inside = {
        "image_uri": container.image,
        "commands": [RUN, "--", *container.command],
        "volumes": mounts(container),
        **docker_options(container),
    }
    return [{"display_name": TRAINING, "container": inside, "environment": environment(container, contract)}]


def mounts(container: ContainerSpec) -> list[str]:
    """Return the training container's volumes."""
    return [f"{HOST_DIR}:{CONTAINER_DIR}", *container.volumes]


def docker_options(container: ContainerSpec) -> dict[str, str]:
    """Return the options of `docker run`; absent when there are none."""
    shm = f"--shm-size={container.shm_size}" if container.shm_size else ""
    options = " ".join(part for part in (shm, container.options) if part)
    return {"options": options} if options else {}


def environment(container: ContainerSpec, contract: ContractSpec) -> dict[str, Any]:
    """Return the training container's environment; secrets stay references until the VM reads them."""
    variables = {**{k: str(v) for k, v in container.env.items()}, **contract.variables()}
    secrets = {"secret_variables": dict(container.secret_env)} if container.secret_env else {}
    return {"variables": variables, **secrets}


def _allocation(machine: MachineSpec, placement: Placement, labels: Mapping[str, str]) -> dict[str, Any]:
    disk = machine.boot_disk_gb or (GPU_BOOT_DISK_GB if placement.accelerator_count else BOOT_DISK_GB)
    policy: dict[str, Any] = {
        "machine_type": placement.machine_type,
        "provisioning_model": placement.provisioning_model,
        "boot_disk": {"size_gb": disk},
    }
    instances: dict[str, Any] = {"policy": policy}
    if placement.accelerator_type:
        gpu = {"type": placement.accelerator_type, "count": placement.accelerator_count}
        policy["accelerators"] = [gpu]
        instances["install_gpu_drivers"] = machine.install_gpu_drivers
    return {
        "location": {"allowed_locations": placement.allowed_locations},
        "instances": [instances],
        "labels": dict(labels),
        **_account(machine),
        **_network(machine),
    }


def _account(machine: MachineSpec) -> dict[str, Any]:
    return {"service_account": {"email": machine.service_account}} if machine.service_account else {}


def _network(machine: MachineSpec) -> dict[str, Any]:
    if not (machine.network or machine.subnetwork or not machine.external_ip):
        return {}
    interface: dict[str, Any] = {"no_external_ip_address": not machine.external_ip}
    if machine.network:
        interface["network"] = machine.network
    if machine.subnetwork:
        interface["subnetwork"] = machine.subnetwork
    return {"network": {"network_interfaces": [interface]}}


# Lists that an override adds to; our own volume must survive an author's.
_APPENDED = frozenset({"volumes"})


def merged(job: Any, override: Any, key: str = "") -> Any:
    """Merge an override into the job: dictionaries by key, lists of messages by position, else replaced."""
    if isinstance(job, Mapping) and isinstance(override, Mapping):
        both = {k: merged(job[k], v, k) if k in job else v for k, v in override.items()}
        return {**job, **both}
    if isinstance(job, list) and isinstance(override, list):
        return _merged_lists(job, override, key)
    return override


def _merged_lists(job: list[Any], override: list[Any], key: str) -> list[Any]:
    if key in _APPENDED and all(isinstance(item, str) for item in (*job, *override)):
        return [*job, *(item for item in override if item not in job)]
    if not all(isinstance(item, Mapping) for item in (*job, *override)):
        return override
    both = [merged(mine, theirs) for mine, theirs in zip(job, override, strict=False)]
    return [*both, *job[len(override) :], *override[len(job) :]]


def message(job: Mapping[str, Any]) -> Job:
    """Return the client's message; raises `ParseError` for values of the wrong type."""
    from google.cloud.batch_v1 import Job
    from google.protobuf import json_format

    parsed = Job()
    json_format.ParseDict(dict(job), Job.pb(parsed))
    return parsed
