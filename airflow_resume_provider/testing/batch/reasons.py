"""Why a job does not start, in the cloud's words, which are what clients look for."""

from __future__ import annotations

from airflow_resume_provider.testing import faults
from airflow_resume_provider.testing.batch.records import JobRecord

_MEETS_ERROR = "VM in Managed Instance Group meets error: Batch Error: code - {code}, description - "
_LATEST = "error count is 1, latest message example: Instance '{uid}-group0-0' creation failed: "


def quota(fault: faults.Quota, record: JobRecord, *, scheduled: bool) -> str:
    """A quota holds the job up: found by Batch while QUEUED, by Compute Engine while SCHEDULED."""
    if scheduled:
        text = _MEETS_ERROR.format(code="CODE_GCE_QUOTA_EXCEEDED") + _LATEST.format(uid=record.uid)
        limit = f"Limit: {fault.limit:.1f} in region {record.location}"
        return f"{text}Quota '{fault.metric}' exceeded.  {limit}"
    return (
        f"Quota checking process decides to delay scheduling for the job {record.uid} due to inadequate "
        f"quotas [Quota: {fault.metric}, limit: {fault.limit:g}, usage: {fault.usage:g}, "
        f"wanted: {fault.wanted:g}.]."
    )


def no_vms(wanted: int, least: int, free: int, total: int) -> str:
    """The local stack has no VMs left for a job."""
    need = f"{wanted} at once" if least > 1 else f"up to {wanted}"
    return f"Local stack: the job waits for VMs, it wants {need}; {free} of {total} (max_vms) are free."


def unknown_type(name: str, zone: str) -> str:
    """There is no such machine or accelerator type."""
    return (
        "Batch Error: code - CODE_GCE_BAD_REQUEST, description - googleapi: Error 400: Invalid value for "
        f"field 'resource.properties': '{name}'. The type '{name}' does not exist in zone '{zone}'."
    )


def unchecked_types(names: list[str]) -> str:
    """The local stack does not know a type; the cloud may, or may not."""
    quoted = " and ".join(f'"{name}"' for name in names)
    return (
        f"Local stack: the type {quoted} is not known here, so nothing says whether the cloud has it. "
        "The job runs all the same; a fault unknown_type makes it fail."
    )


def impossible(wrong: list[str]) -> str:
    """The cloud has no such machine."""
    return f"Local stack: the cloud has no such machine: {'; '.join(wrong)}. The job runs all the same."


def stock_out(record: JobRecord, zone: str) -> str:
    """No zone has VMs."""
    project = record.name.split("/")[1]
    text = _MEETS_ERROR.format(code="CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED") + _LATEST.format(uid=record.uid)
    return (
        f"{text}The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  '(resource type:compute)'."
    )
