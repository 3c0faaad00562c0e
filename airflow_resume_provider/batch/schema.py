"""The shape of a Batch job: which keys there are, for checking overrides when a DAG is parsed.

A snapshot of google-cloud-batch's own messages, kept here because importing
those costs a second at every parse; a test holds the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_resume_provider.errors import InvalidInput

Shape = Mapping[str, Any]


def _plain(names: str) -> dict[str, None]:
    return dict.fromkeys(names.split())


_MAP = {"*": None}  # any key
_DISK = _plain("image snapshot type size_gb disk_interface")
_ENVIRONMENT = {
    "variables": _MAP,
    "secret_variables": _MAP,
    "encrypted_variables": _plain("key_name cipher_text"),
}
JOB: Shape = {
    **_plain("priority"),
    "task_groups": {
        **_plain(
            "name task_count parallelism scheduling_policy task_count_per_node require_hosts_file"
            " permissive_ssh run_as_non_root"
        ),
        "task_spec": {
            **_plain("max_run_duration max_retry_count"),
            "runnables": {
                **_plain("display_name ignore_exit_status background always_run timeout"),
                "container": _plain(
                    "image_uri commands entrypoint volumes options block_external_network username password"
                    " enable_image_streaming"
                ),
                "script": _plain("path text"),
                "barrier": _plain("name"),
                "environment": _ENVIRONMENT,
                "labels": _MAP,
            },
            "compute_resource": _plain("cpu_milli memory_mib boot_disk_mib"),
            "lifecycle_policies": {
                **_plain("action"),
                "action_condition": _plain("exit_codes"),
            },
            "environments": _MAP,
            "volumes": {
                **_plain("device_name mount_path mount_options"),
                "nfs": _plain("server remote_path"),
                "gcs": _plain("remote_path"),
            },
            "environment": _ENVIRONMENT,
        },
        "task_environments": _ENVIRONMENT,
    },
    "allocation_policy": {
        **_plain("tags"),
        "location": _plain("allowed_locations"),
        "instances": {
            **_plain("instance_template install_gpu_drivers install_ops_agent block_project_ssh_keys"),
            "policy": {
                **_plain("machine_type min_cpu_platform provisioning_model reservation"),
                "accelerators": _plain("type count install_gpu_drivers driver_version"),
                "boot_disk": _DISK,
                "disks": {
                    **_plain("existing_disk device_name"),
                    "new_disk": _DISK,
                },
            },
        },
        "service_account": _plain("email scopes"),
        "labels": _MAP,
        "network": {
            "network_interfaces": _plain("network subnetwork no_external_ip_address nic_type"),
        },
        "placement": _plain("collocation max_distance"),
    },
    "labels": _MAP,
    "logs_policy": {
        **_plain("destination logs_path"),
        "cloud_logging_option": _plain("use_generic_task_monitored_resource"),
    },
    "notifications": {
        **_plain("pubsub_topic"),
        "message": _plain("type new_job_state new_task_state"),
    },
}

# What the operator itself decides; an override would break adoption, verdicts or resuming.
_OWNED = frozenset({"job.name", "job.uid", "job.status", "job.create_time", "job.update_time"})


def snake(key: str) -> str:
    """Return a key in the client's spelling; the REST spelling is accepted too."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found.group(1).lower()}", key).rstrip("_")


def normalised(override: Any, shape: Shape | None = JOB, where: str = "job") -> Any:
    """Return an override in the client's spelling; raises `InvalidInput` naming the first unknown key."""
    if isinstance(override, list | tuple):
        return [normalised(item, shape, f"{where}[{i}]") for i, item in enumerate(override)]
    if shape is None or not isinstance(override, Mapping):
        return override
    if "*" in shape:
        return {str(k): normalised(v, shape["*"], f"{where}.{k}") for k, v in override.items()}
    return {
        _known(k, shape, where): normalised(v, shape[snake(k)], f"{where}.{k}") for k, v in override.items()
    }


def _known(key: Any, shape: Shape, where: str) -> str:
    name = snake(str(key))
    if name in shape:
        return name
    why = "the operator sets itself" if f"{where}.{name}" in _OWNED else "Batch does not know"
    raise InvalidInput(
        f"{where} has the key {key!r}, which {why}.",
        can=f"Use one of {', '.join(sorted(shape))}.",
        parameter=f"{where}.{key}",
        value=key,
    )
