"""Turns the `job=` of a `CloudBatchSubmitJobOperator` into arguments of a `ResumableTrainOperator`.

::

    python -m airflow_resume_provider.batch.migration job.json
"""

from __future__ import annotations

import argparse
import json
import pprint
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_resume_provider.batch.schema import normalised
from airflow_resume_provider.errors import InvalidInput


@dataclass(frozen=True)
class Translated:
    """Arguments of the new operator, and what a person should know about them.

    `arguments` lacks `task_id`, `project_id` and `checkpoint_root`, and `region` where the job
    does not say it. What has no argument of its own is in `arguments["job"]`.
    """

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()

    def as_source(self) -> str:
        """Return the call as Python source, with the notes as comments."""
        lines = ["ResumableTrainOperator(", '    task_id="train",', '    project_id="…",']
        if "region" not in self.arguments:
            lines.append('    region="…",')
        lines.append('    checkpoint_root="gs://…/checkpoints",')
        for name, value in self.arguments.items():
            text = pprint.pformat(value, sort_dicts=False, width=90).replace("\n", "\n        ")
            lines.append(f"    {name}={text},")
        return "\n".join([*lines, ")", *(f"# {note}" for note in self.notes)])


def translate(job: Mapping[str, Any] | Any) -> Translated:
    """Return the arguments that run the same container on the same machine, resumably.

    Args:
        job: the dictionary, in the client's or in the REST spelling, or a `batch_v1.Job`.

    Raises:
        InvalidInput: the job is none that one operator can run: several containers, a script,
            several task groups, an instance template.
    """
    return _Translation(_plain(job)).result()


def _plain(job: Any) -> dict[str, Any]:
    if not isinstance(job, Mapping):
        from google.protobuf import json_format

        message = type(job).pb(job)
        job = json_format.MessageToDict(message, preserving_proto_field_name=True)
    given = {key: value for key, value in job.items() if key not in ("name", "uid", "status")}
    plain: dict[str, Any] = normalised(deepcopy(given))
    return plain


def _refuse(what: str, can: str) -> InvalidInput:
    return InvalidInput(f"job has {what}.", can=can, parameter="job", value=what)


class _Translation:
    """Takes out of the job what has an argument of its own; what is left becomes the override."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._notes = job, list[str]()
        self._arguments: dict[str, Any] = {}

    def result(self) -> Translated:
        group = self._only(self._job.get("task_groups"), "task groups")
        spec = group.get("task_spec", {})
        self._container(spec)
        self._limits(spec)
        self._machine(self._job.get("allocation_policy", {}))
        for key in ("labels", "priority"):
            self._take(self._job, key, key)
        self._job.pop("logs_policy", None)  # ours is the same: Cloud Logging
        if rest := _pruned(self._job):
            self._arguments["job"] = rest
        return Translated(self._arguments, tuple(self._notes))

    def _only(self, found: Any, what: str) -> dict[str, Any]:
        if not found or len(found) != 1:
            raise _refuse(
                f"{len(found or ())} {what}", f"One operator runs one; make one task for each of the {what}."
            )
        first: dict[str, Any] = found[0]
        return first

    def _take(self, where: dict[str, Any], key: str, argument: str, change: Any = None) -> None:
        value = where.pop(key, None)
        if value not in (None, "", {}, []):
            self._arguments[argument] = change(value) if change else value

    def _container(self, spec: dict[str, Any]) -> None:
        runnable = self._only(spec.get("runnables"), "runnables")
        container = runnable.pop("container", None)
        if container is None:
            raise _refuse(
                "a runnable that is no container", "Put the script into an image, or name it in `command`."
            )
        self._arguments["image"] = container.pop("image_uri", "")
        entrypoint, commands = container.pop("entrypoint", ""), container.pop("commands", [])
        self._arguments["command"] = ([entrypoint] if entrypoint else []) + list(commands)
        if not self._arguments["command"]:
            self._notes.append("The image's own command is not known here: fill in `command`.")
        self._take(container, "options", "container_options")
        self._take(container, "volumes", "volumes")
        self._environment(runnable, spec)
        if container:
            runnable["container"] = container

    def _environment(self, runnable: dict[str, Any], spec: dict[str, Any]) -> None:
        for key, argument in (("variables", "env"), ("secret_variables", "secret_env")):
            merged = {}
            for holder in (spec, runnable):
                merged.update(holder.get("environment", {}).pop(key, {}))
            if merged:
                self._arguments[argument] = merged

    def _limits(self, spec: dict[str, Any]) -> None:
        if spec.pop("max_retry_count", 0):
            self._notes.append(
                "max_retry_count is gone: attempts are jobs of their own, see max_preemptions."
            )
        if spec.pop("lifecycle_policies", None):
            self._notes.append(
                "lifecycle_policies are gone: the operator's verdicts decide what is repeated."
            )
        self._take(spec, "max_run_duration", "max_run_seconds", _seconds)

    def _machine(self, policy: dict[str, Any]) -> None:
        self._location(policy)
        instance = self._only(policy.get("instances") or [{}], "instance policies")
        if "instance_template" in instance:
            raise _refuse("an instance template", "Say machine_type, disks and GPUs in the operator instead.")
        machine = instance.get("policy", {})
        self._take(machine, "machine_type", "machine_type")
        self._take(machine, "provisioning_model", "provisioning_model")
        if "provisioning_model" not in self._arguments:
            self._notes.append("The job used STANDARD machines; the operator's default is SPOT.")
        self._take(machine.get("boot_disk", {}), "size_gb", "boot_disk_gb", int)
        self._take(instance, "install_gpu_drivers", "install_gpu_drivers")
        self._accelerator(machine)
        self._take(policy.get("service_account", {}), "email", "service_account")
        self._network(policy)
        policy.pop("labels", None)  # the operator puts its labels there too

    def _accelerator(self, machine: dict[str, Any]) -> None:
        found = machine.get("accelerators") or []
        if len(found) == 1:
            self._take(found[0], "type", "accelerator_type")
            self._take(found[0], "count", "accelerator_count", int)

    def _location(self, policy: dict[str, Any]) -> None:
        allowed = policy.pop("location", {}).get("allowed_locations", [])
        zones = [place.partition("/")[2] for place in allowed if place.startswith("zones/")]
        regions = {place.partition("/")[2] for place in allowed if place.startswith("regions/")}
        regions |= {zone.rpartition("-")[0] for zone in zones}
        if len(regions) == 1:
            self._arguments["region"] = regions.pop()
        if zones:
            self._arguments["zones"] = zones

    def _network(self, policy: dict[str, Any]) -> None:
        interfaces = policy.get("network", {}).get("network_interfaces", [])
        if len(interfaces) != 1:
            return
        self._take(interfaces[0], "network", "network")
        self._take(interfaces[0], "subnetwork", "subnetwork")
        if interfaces[0].pop("no_external_ip_address", False):
            self._arguments["external_ip"] = False


def _seconds(duration: Any) -> float:
    return float(str(duration).removesuffix("s"))


def _pruned(value: Any) -> Any:
    """Return what is left of a job without the shells of what was taken out."""
    if isinstance(value, Mapping):
        inner = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {}, [])}
    if isinstance(value, list):
        items = [_pruned(item) for item in value]
        return items if any(item not in (None, {}, []) for item in items) else []
    return value


def main() -> None:
    """Print the operator for a job in a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "job", type=Path, help="JSON file with the job, or the output of gcloud batch jobs describe"
    )
    print(translate(json.loads(parser.parse_args().job.read_text())).as_source())


if __name__ == "__main__":
    main()
