"""What the server fills in when it admits a job."""

from __future__ import annotations

import secrets
from typing import Any

from airflow_resume_provider.testing.batch.messages import GROUP, Job, JobState, Provisioning, Scheduling
from airflow_resume_provider.testing.batch.names import Parent
from airflow_resume_provider.testing.batch.settings import Settings

_DEFAULT_MACHINE = "e2-standard-2"


def system_job_id() -> str:
    """An id for a job that was created without one."""
    return f"j-{secrets.token_hex(16)}"


def system_uid(job_id: str) -> str:
    """A uid in the cloud's form: eighteen characters of the job's id, then hex digits."""
    random = secrets.token_hex(8)
    return f"{job_id[:18].rstrip('-')}-{random[:8]}-{random[8:12]}-{random[12:16]}0"


def admitted(job: Any, parent: Parent, job_id: str, settings: Settings) -> Any:
    """The job as it is stored: output-only fields set by the server, defaults filled in."""
    made = Job()
    made.CopyFrom(job)
    for field in ("name", "uid", "status", "create_time", "update_time"):
        made.ClearField(field)
    made.name = f"{parent}/jobs/{job_id}"
    made.uid = system_uid(job_id)
    _fill_group(made, settings)
    _fill_allocation(made, parent, job_id, settings)
    made.status.state = JobState.QUEUED
    _fill_status(made)
    return made


def sizes(group: Any, settings: Settings) -> tuple[int, int]:
    """How many tasks a group has, and how many of them run at the same time at most."""
    # As documented, a task count beside task environments is ignored.
    count = len(group.task_environments) or group.task_count or 1
    in_order = group.scheduling_policy == Scheduling.IN_ORDER
    return count, group.parallelism or (1 if in_order else min(count, settings.max_tasks_in_flight))


def _fill_group(job: Any, settings: Settings) -> None:
    group = job.task_groups[0]
    group.name = f"{job.name}/taskGroups/{GROUP}"
    group.task_count, group.parallelism = sizes(group, settings)
    resource = group.task_spec.compute_resource
    resource.cpu_milli = resource.cpu_milli or 2000
    resource.memory_mib = resource.memory_mib or 2000


def _fill_allocation(job: Any, parent: Parent, job_id: str, settings: Settings) -> None:
    policy = job.allocation_policy
    if not policy.location.allowed_locations:
        policy.location.allowed_locations.append(f"regions/{parent.location}")
    account = policy.service_account
    account.email = account.email or f"{settings.project_number}-compute@developer.gserviceaccount.com"
    if not account.scopes:
        account.scopes.append("https://www.googleapis.com/auth/cloud-platform")
    policy.labels["batch-job-id"] = job_id
    for instance in policy.instances:
        if instance.WhichOneof("policy_template") == "policy":
            # Unspecified means a standard VM.
            instance.policy.provisioning_model = instance.policy.provisioning_model or Provisioning.STANDARD


def _fill_status(job: Any) -> None:
    instances = job.allocation_policy.instances
    policy = instances[0].policy if instances else None
    status = job.status.task_groups[GROUP].instances.add()
    status.machine_type = (policy.machine_type if policy else "") or _DEFAULT_MACHINE
    status.provisioning_model = (policy.provisioning_model if policy else 0) or Provisioning.STANDARD
    status.task_pack = job.task_groups[0].task_count_per_node or 1
    if policy and policy.HasField("boot_disk"):
        status.boot_disk.CopyFrom(policy.boot_disk)
    status.boot_disk.type_ = status.boot_disk.type_ or "pd-balanced"
    status.boot_disk.size_gb = status.boot_disk.size_gb or 30
