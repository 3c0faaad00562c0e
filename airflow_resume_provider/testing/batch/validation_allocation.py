"""What CreateJob refuses in the allocation policy."""

from __future__ import annotations

import re
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import invalid
from airflow_resume_provider.testing.batch.messages import Provisioning, seconds
from airflow_resume_provider.testing.batch.names import Parent
from airflow_resume_provider.testing.batch.validation_labels import check_labels
from airflow_resume_provider.testing.batch.zones import region_of

MAX_FLEX_START_SECONDS = 7 * 86400
_AT = "job.allocation_policy"
_LOCATION = re.compile(r"regions/[a-z]+(-[a-z]+)+[0-9]+|zones/[a-z]+(-[a-z]+)+[0-9]+-[a-z]+")
_MACHINE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_ACCELERATOR = re.compile(r"[a-z][a-z0-9-]*[a-z0-9]")
_TAG = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_TEMPLATE = re.compile(
    r"(https://(www|compute)\.googleapis\.com/compute/[a-z0-9]+/)?(projects/(?P<project>[^/]+)/)?"
    r"(global/instanceTemplates/)?[a-z][a-z0-9-]*"
)


def check_allocation(job: Any, parent: Parent) -> None:
    """Refuse an allocation policy that the cloud would refuse."""
    policy = job.allocation_policy
    check_locations(list(policy.location.allowed_locations), parent)
    if len(policy.instances) > 1:
        raise invalid(f"{_AT}.instances: only instances[0] is supported now.", f"{_AT}.instances")
    for instance in policy.instances:
        kind = instance.WhichOneof("policy_template")
        if kind == "policy":
            _check_policy(instance.policy, f"{_AT}.instances[0].policy")
            _check_flex_start(job, instance.policy)
        elif kind == "instance_template":
            _check_template(instance.instance_template, parent)
    _check_volumes(job, policy)
    check_labels(policy.labels, f"{_AT}.labels")
    for tag in policy.tags:
        if not _TAG.fullmatch(tag):
            raise invalid(
                f'{_AT}.tags: "{tag}" must have 1-63 characters and comply with RFC1035.', f"{_AT}.tags"
            )
    if policy.service_account.email and not _EMAIL.fullmatch(policy.service_account.email):
        raise invalid(f"{_AT}.service_account.email is not an email address.", f"{_AT}.service_account.email")
    if policy.placement.collocation not in ("", "UNSPECIFIED", "COLLOCATED"):
        raise invalid(f"{_AT}.placement.collocation must be COLLOCATED.", f"{_AT}.placement.collocation")
    _check_network(policy.network)


def check_locations(allowed: list[str], parent: Parent) -> None:
    """One region, or several zones of one region, and it is the job's own."""
    at = f"{_AT}.location.allowed_locations"
    for name in allowed:
        if not _LOCATION.fullmatch(name):
            raise invalid(f'{at}: "{name}" must have the form "regions/{{region}}" or "zones/{{zone}}".', at)
    regions = {region_of(name) for name in allowed}
    if len(regions) > 1:
        raise invalid(f"{at} contains multiple regions ({', '.join(sorted(regions))}).", at)
    if sum(name.startswith("regions/") for name in allowed) > 1:
        raise invalid(f"{at} may hold one region or several zones of one region.", at)
    if regions and regions != {parent.location}:
        raise invalid(
            f"{at}: region {min(regions)} is not the job's location {parent.location}; VMs must be in the "
            "region in which the job is created.",
            at,
        )


def _check_policy(policy: Any, at: str) -> None:
    if policy.machine_type and not _MACHINE.fullmatch(policy.machine_type):
        raise invalid(f'{at}.machine_type "{policy.machine_type[:100]}" is invalid.', f"{at}.machine_type")
    if policy.provisioning_model not in set(Provisioning):
        raise invalid(f"{at}.provisioning_model is unknown.", f"{at}.provisioning_model")
    if policy.provisioning_model == Provisioning.RESERVATION_BOUND and not policy.reservation:
        raise invalid(f"{at}.reservation is required for RESERVATION_BOUND.", f"{at}.reservation")
    for index, accelerator in enumerate(policy.accelerators):
        here = f"{at}.accelerators[{index}]"
        if not _ACCELERATOR.fullmatch(accelerator.type_):
            raise invalid(f'{here}.type "{accelerator.type_[:100]}" is invalid.', f"{here}.type")
        if accelerator.count < 1:
            raise invalid(f"{here}.count must be at least 1, got {accelerator.count}.", f"{here}.count")
    if policy.boot_disk.snapshot:
        raise invalid(f"{at}.boot_disk.snapshot is not supported.", f"{at}.boot_disk.snapshot")
    if policy.boot_disk.size_gb < 0:
        raise invalid(f"{at}.boot_disk.size_gb must not be negative.", f"{at}.boot_disk.size_gb")
    for index, disk in enumerate(policy.disks):
        _check_disk(disk, f"{at}.disks[{index}]")


def _check_flex_start(job: Any, policy: Any) -> None:
    """What flex-start gives, it gives for seven days at most."""
    at = "job.task_groups[0].task_spec.max_run_duration"
    limit = seconds(job.task_groups[0].task_spec.max_run_duration)
    if policy.provisioning_model == Provisioning.FLEX_START and limit > MAX_FLEX_START_SECONDS:
        raise invalid(
            f"{at} must be at most {MAX_FLEX_START_SECONDS} seconds with the provisioning model FLEX_START, "
            f"got {limit:g}.",
            at,
        )


def _check_disk(disk: Any, at: str) -> None:
    attached = disk.WhichOneof("attached")
    if attached is None:
        raise invalid(f"{at}: one of new_disk or existing_disk is required.", at)
    if attached == "new_disk" and disk.new_disk.size_gb < 0:
        raise invalid(f"{at}.new_disk.size_gb must not be negative.", f"{at}.new_disk.size_gb")


def _check_template(template: str, parent: Parent) -> None:
    at = f"{_AT}.instances[0].instance_template"
    match = _TEMPLATE.fullmatch(template)
    if not match:
        raise invalid(f'{at} "{template[:200]}": only global instance templates are supported.', at)
    if match["project"] not in (None, parent.project):
        raise invalid(f"{at} must be in the same project as the job.", at)


def _check_volumes(job: Any, policy: Any) -> None:
    """Volumes that name a device must find it among the disks, unless a template may define it."""
    if any(instance.WhichOneof("policy_template") == "instance_template" for instance in policy.instances):
        return
    devices = {disk.device_name for instance in policy.instances for disk in instance.policy.disks}
    for index, volume in enumerate(job.task_groups[0].task_spec.volumes):
        if volume.device_name and volume.device_name not in devices:
            at = f"job.task_groups[0].task_spec.volumes[{index}].device_name"
            raise invalid(f'{at} "{volume.device_name}" matches no disk of the instance policy.', at)


def _check_network(network: Any) -> None:
    seen = set()
    for interface in network.network_interfaces:
        if interface.network and interface.network in seen:
            raise invalid("Networks must be distinct for NICs in the same InstanceTemplate", f"{_AT}.network")
        seen.add(interface.network)
        if interface.subnetwork and "/regions/" not in f"/{interface.subnetwork}":
            raise invalid(
                f"{_AT}.network.network_interfaces.subnetwork must name a region.",
                f"{_AT}.network.network_interfaces",
            )
