"""The parts of a job and where they go: each takes out what has an argument of its own.

What is left in the job becomes the operator's override. Nothing is dropped without a note,
and what would run differently from before is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_resume_provider.batch import labels as label_rules
from airflow_resume_provider.errors import InvalidInput

Job = dict[str, Any]


class Notes(list[str]):
    """What a person should know about the translation."""


def refuse(what: str, can: str) -> InvalidInput:
    """Return the error that says what cannot be carried over."""
    return InvalidInput(f"job has {what}; that cannot be carried over.", can=can, parameter="job", value=what)


def only(found: Any, what: str, can: str) -> Job:
    """Return the single element; raises `InvalidInput` for none or several."""
    if not found or len(found) != 1:
        raise refuse(f"{len(found or ())} {what}", can)
    first: Job = found[0]
    return first


def _move(where: Job, key: str, into: Job, argument: str, change: Any = None) -> None:
    value = where.pop(key, None)
    if value not in (None, "", {}, []):
        into[argument] = change(value) if change else value


def tasks(group: Job, notes: Notes) -> None:
    """Tell nodes of one training from independent tasks, which are a mapped operator here."""
    if group.get("task_environments"):
        raise refuse("task_environments, an environment for each task", _MAPPED)
    count = int(group.get("task_count", 1) or 1)
    if count == 1:
        group.pop("task_count", None)
        group.pop("parallelism", None)
        return
    if not group.get("require_hosts_file"):
        raise refuse(
            f"task_count {count} without require_hosts_file, so {count} independent tasks",
            f"{_MAPPED} If they are the nodes of one training, say require_hosts_file=True.",
        )
    notes.append(f"The {count} tasks are the nodes of one training and make one checkpoint together.")


_MAPPED = "Independent tasks are a mapped operator: ResumableTrainOperator.partial(…).expand(env=[…])."


def container(spec: Job, notes: Notes) -> Job:
    """Take the image, the command, the volumes and the environment."""
    runnable = only(
        spec.get("runnables"),
        "runnables",
        "One operator runs one container: make tasks of what comes before and after it, or one"
        " command of them all.",
    )
    inside = runnable.pop("container", None)
    if inside is None:
        kind = next((kind for kind in ("script", "barrier") if kind in runnable), "neither of container")
        raise refuse(
            f"a runnable that is a {kind}, no container",
            "Put the script into an image, and name it in `command`; its packages, too.",
        )
    if inside.get("block_external_network"):
        raise refuse("block_external_network", "The container has to reach the bucket of checkpoints.")
    arguments: Job = {}
    arguments["image"] = inside.pop("image_uri", "")
    entrypoint, commands = inside.pop("entrypoint", ""), inside.pop("commands", [])
    arguments["command"] = ([entrypoint] if entrypoint else []) + list(commands)
    _say_entrypoint(entrypoint, arguments["command"], notes)
    _move(inside, "options", arguments, "container_options")
    _volumes(inside, spec, arguments, notes)
    _environment(runnable, spec, arguments)
    _runnable(runnable, inside, arguments, notes)
    return arguments


def _say_entrypoint(entrypoint: str, command: list[str], notes: Notes) -> None:
    if not command:
        notes.append("The image's own command is not known here: fill in `command`.")
    elif not entrypoint:
        notes.append("If the image has an ENTRYPOINT, put its words before `command`, and drop it there.")


def _volumes(inside: Job, spec: Job, arguments: Job, notes: Notes) -> None:
    """Keep mounts visible: Batch hands a task's volumes on only to a container that has none of its own."""
    _move(inside, "volumes", arguments, "volumes")
    mounts = [volume for volume in spec.get("volumes", ()) if volume.get("mount_path")]
    if mounts and "volumes" not in arguments:
        arguments["volumes"] = [f"{volume['mount_path']}:{volume['mount_path']}" for volume in mounts]
    for volume in mounts:
        kind = next((kind for kind in ("gcs", "nfs") if kind in volume), "disk")
        notes.append(
            f"The {kind} mount at {volume['mount_path']} is kept for data; checkpoints go to RESUME_DIR."
        )


def _environment(runnable: Job, spec: Job, arguments: Job) -> None:
    for key, argument in (("variables", "env"), ("secret_variables", "secret_env")):
        found: Job = {}
        for holder in (spec, runnable):
            found.update(holder.get("environment", {}).pop(key, {}))
        if found:
            arguments[argument] = found


def _runnable(runnable: Job, inside: Job, arguments: Job, notes: Notes) -> None:
    """Take what is left of the runnable: most of it is the operator's own business."""
    for key in ("background", "always_run", "ignore_exit_status"):
        if runnable.pop(key, False):
            notes.append(f"{key} is gone: the training's exit code decides what an attempt's end means.")
    for key in ("display_name", "labels"):
        if runnable.pop(key, None):
            notes.append(f"The runnable's {key} is gone: the operator makes the runnables.")
    _move(runnable, "timeout", arguments, "max_run_seconds", _seconds)
    if inside:
        runnable["container"] = inside
        notes.append(f"{', '.join(inside)} of the container is in job=: not together with runtime_image=.")
    if not str(inside.get("password", "projects/")).startswith("projects/"):
        notes.append("password is readable in the UI: Batch takes a secret's resource name in its place.")


def limits(spec: Job, taken: Job, notes: Notes) -> Job:
    """Take the time limit; Batch's own repetition is replaced by attempts."""
    if spec.pop("max_retry_count", 0):
        notes.append("max_retry_count is gone: attempts are jobs of their own, see max_preemptions.")
    if spec.pop("lifecycle_policies", None):
        notes.append("lifecycle_policies are gone: the operator's verdicts decide what is repeated.")
    arguments: Job = {}
    _move(spec, "max_run_duration", arguments, "max_run_seconds", _seconds)
    both = [found["max_run_seconds"] for found in (arguments, taken) if "max_run_seconds" in found]
    return {"max_run_seconds": min(both)} if both else {}


def machine(policy: Job, spec: Job, notes: Notes) -> Job:
    """Take location, machine, disk, GPUs, account and network."""
    arguments = _location(policy)
    instance = only(policy.get("instances") or [{}], "instance policies", "Batch takes one itself.")
    if instance.get("instance_template"):
        raise refuse("an instance template", "Say machine_type, disks and GPUs in the operator instead.")
    asked = instance.get("policy", {})
    _move(asked, "machine_type", arguments, "machine_type")
    if "machine_type" not in arguments:
        wanted = spec.get("compute_resource") or {}
        notes.append(f"No machine_type: Batch chose one for {wanted}; the operator's is e2-standard-4.")
    _move(asked, "provisioning_model", arguments, "provisioning_model")
    if "provisioning_model" not in arguments:
        notes.append("The job used STANDARD machines; the operator's default is SPOT.")
    _move(asked.get("boot_disk", {}), "size_gb", arguments, "boot_disk_gb", int)
    _move(instance, "install_gpu_drivers", arguments, "install_gpu_drivers")
    _accelerator(asked, arguments)
    _move(policy.get("service_account", {}), "email", arguments, "service_account")
    _network(policy, arguments)
    return arguments


def _accelerator(asked: Job, arguments: Job) -> None:
    found = asked.get("accelerators") or []
    if not found:
        return
    one = only(found, "kinds of accelerators", "A VM has one kind.")
    _move(one, "type", arguments, "accelerator_type")
    _move(one, "count", arguments, "accelerator_count", int)


def _location(policy: Job) -> Job:
    allowed = policy.pop("location", {}).get("allowed_locations", [])
    zones = [place.partition("/")[2] for place in allowed if place.startswith("zones/")]
    regions = {place.partition("/")[2] for place in allowed if place.startswith("regions/")}
    regions |= {zone.rpartition("-")[0] for zone in zones}
    if len(regions) > 1:
        raise refuse(
            f"places in several regions ({', '.join(sorted(regions))})",
            "A job runs in its own region: make a ladder, placements=[{'region': …}, …].",
        )
    return {**({"region": regions.pop()} if regions else {}), **({"zones": zones} if zones else {})}


def _network(policy: Job, arguments: Job) -> None:
    interfaces = policy.get("network", {}).get("network_interfaces", [])
    if not interfaces:
        return
    one = only(interfaces, "network interfaces", "Batch takes one itself.")
    _move(one, "network", arguments, "network")
    _move(one, "subnetwork", arguments, "subnetwork")
    if one.pop("no_external_ip_address", False):
        arguments["external_ip"] = False


def labels(job: Job, notes: Notes) -> Job:
    """Take labels and priority; the operator puts the labels on the job and on its VMs."""
    arguments: Job = {}
    on_vms = job.get("allocation_policy", {}).pop("labels", None) or {}
    both = {**on_vms, **(job.pop("labels", None) or {})}
    kept = {key: text for key, text in both.items() if _is_legal({key: text})}
    # Batch's own label is in the output of `describe`.
    if dropped := sorted(set(both) - set(kept) - {"batch-job-id"}):
        notes.append(f"Labels {', '.join(dropped)} are gone: their names or values are not free to use.")
    kept.pop("batch-job-id", None)
    if kept:
        arguments["labels"] = kept
    _move(job, "priority", arguments, "priority", int)
    return arguments


def _is_legal(label: Mapping[str, str]) -> bool:
    try:
        label_rules.checked(label)
    except InvalidInput:
        return False
    return True


def logs(job: Job, notes: Notes) -> None:
    """Cloud Logging is the operator's own choice; another destination is kept and said."""
    policy = job.get("logs_policy") or {}
    if policy.get("destination") in (None, "", "CLOUD_LOGGING", "DESTINATION_UNSPECIFIED"):
        policy.pop("destination", None)
    else:
        notes.append(f"Logs go to {policy['destination']} as before; the link to the logs will be empty.")


def _seconds(duration: Any) -> float:
    text = str(duration)
    if not re.fullmatch(r"\d+(\.\d+)?s?", text):
        raise refuse(f"the duration {duration!r}", "Write seconds, such as '3600s'.")
    return float(text.removesuffix("s"))


def pruned(value: Any) -> Any:
    """Return what is left of a job without the shells of what was taken out."""
    if isinstance(value, Mapping):
        inner = {key: pruned(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {}, [])}
    if isinstance(value, list):
        items = [pruned(item) for item in value]
        return items if any(item not in (None, {}, []) for item in items) else []
    return value
