"""What CreateJob refuses, in the order of the message's fields.

Rules that are documented (proto comments, quotas page) are checked as they are
written there. The texts are in the API's manner; those of the cloud are not
all known, so clients should rely on the code, INVALID_ARGUMENT.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid
from airflow_resume_provider.testing.batch.defaults import sizes
from airflow_resume_provider.testing.batch.messages import Action, Destination, NotificationType, Scheduling
from airflow_resume_provider.testing.batch.names import JOB_ID, Parent
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.validation_allocation import check_allocation
from airflow_resume_provider.testing.batch.validation_labels import check_labels
from airflow_resume_provider.testing.batch.zones import REGIONS

MAX_JOB_BYTES = 1_000_000
MAX_TASKS = 100_000
MAX_PARALLELISM = 5_000
MAX_RETRIES = 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"projects/[^/]+/secrets/[A-Za-z0-9_-]+/versions/[^/]+")
_TOPIC = re.compile(r"projects/[^/]+/topics/[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MAX_DURATION_SECONDS = 315_576_000_000


def validate(job: Any, parent: Parent, job_id: str, settings: Settings) -> None:
    """Refuse a job that the cloud would refuse.

    Raises:
        ApiError: INVALID_ARGUMENT with the field's path.
    """
    check_location(parent.location, settings)
    if not JOB_ID.fullmatch(job_id):
        raise invalid(
            f'Invalid job_id "{job_id[:100]}": it must have at most 63 characters and match '
            '"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$".',
            "job_id",
        )
    if job.ByteSize() > MAX_JOB_BYTES:
        raise invalid(f"The job is {job.ByteSize()} bytes, more than the limit of {MAX_JOB_BYTES}.", "job")
    if not 0 <= job.priority < 100:
        raise invalid(f"job.priority must be in the range [0, 100), got {job.priority}.", "job.priority")
    if len(job.task_groups) != 1:
        raise invalid(
            f"job.task_groups: exactly one task group is supported, got {len(job.task_groups)}.",
            "job.task_groups",
        )
    _check_group(job.task_groups[0])
    _check_barriers(job.task_groups[0], settings)
    check_allocation(job, parent)
    check_labels(job.labels, "job.labels")
    _check_logs(job.logs_policy)
    for index, notification in enumerate(job.notifications):
        _check_notification(notification, f"job.notifications[{index}]")


def check_location(location: str, settings: Settings, field: str = "parent") -> None:
    """Refuse a location that Batch does not have; "-", where it may be said, stands for all that it has."""
    if location != "-" and location not in (settings.allowed_regions or REGIONS):
        raise ApiError("NOT_FOUND", f'Location "{location}" is not found or access is unauthorized.', field)


def _check_group(group: Any) -> None:
    at = "job.task_groups[0]"
    if group.task_environments and len(group.task_environments) > MAX_TASKS:
        raise invalid(f"{at}.task_environments: at most {MAX_TASKS} are allowed.", f"{at}.task_environments")
    if not 0 <= group.task_count <= MAX_TASKS:
        raise invalid(
            f"{at}.task_count must be between 1 and {MAX_TASKS}, got {group.task_count}.", f"{at}.task_count"
        )
    if not 0 <= group.parallelism <= MAX_PARALLELISM:
        raise invalid(
            f"{at}.parallelism must be between 1 and {MAX_PARALLELISM}, got {group.parallelism}.",
            f"{at}.parallelism",
        )
    if group.task_count_per_node < 0:
        raise invalid(f"{at}.task_count_per_node must not be negative.", f"{at}.task_count_per_node")
    if group.scheduling_policy == Scheduling.IN_ORDER and group.parallelism > 1:
        raise invalid(f"{at}.parallelism must be 1 when scheduling_policy is IN_ORDER.", f"{at}.parallelism")
    _check_task(group.task_spec, f"{at}.task_spec")
    for index, environment in enumerate(group.task_environments):
        _check_environment(environment, f"{at}.task_environments[{index}]")


def _check_barriers(group: Any, settings: Settings) -> None:
    """A barrier opens when every task has come to it, so all of them must run at the same time."""
    count, parallelism = sizes(group, settings)
    barrier = any(item.WhichOneof("executable") == "barrier" for item in group.task_spec.runnables)
    if barrier and count > parallelism:
        at = "job.task_groups[0].parallelism"
        raise invalid(
            f"{at} must be at least the number of tasks, {count}, when a runnable is a barrier, got "
            f"{parallelism}.",
            at,
        )


def _check_task(spec: Any, at: str) -> None:
    if not spec.runnables:
        raise invalid(f"{at}.runnables: at least one runnable is required.", f"{at}.runnables")
    for index, runnable in enumerate(spec.runnables):
        _check_runnable(runnable, f"{at}.runnables[{index}]")
    if all(runnable.WhichOneof("executable") == "barrier" for runnable in spec.runnables):
        raise invalid(f"{at}.runnables: a script or container runnable is required.", f"{at}.runnables")
    resource = spec.compute_resource
    for name in ("cpu_milli", "memory_mib", "boot_disk_mib"):
        if getattr(resource, name) < 0:
            raise invalid(
                f"{at}.compute_resource.{name} must not be negative.", f"{at}.compute_resource.{name}"
            )
    _check_duration(spec.max_run_duration, f"{at}.max_run_duration")
    if not 0 <= spec.max_retry_count <= MAX_RETRIES:
        raise invalid(
            f"{at}.max_retry_count must be in the range [0, {MAX_RETRIES}], got {spec.max_retry_count}.",
            f"{at}.max_retry_count",
        )
    _check_lifecycle(spec.lifecycle_policies, f"{at}.lifecycle_policies")
    _check_environment(spec.environment, f"{at}.environment")
    _check_variables(spec.environments, f"{at}.environments")
    for index, volume in enumerate(spec.volumes):
        _check_volume(volume, f"{at}.volumes[{index}]")


def _check_runnable(runnable: Any, at: str) -> None:
    kind = runnable.WhichOneof("executable")
    if kind is None:
        raise invalid(f"{at}: one of container, script or barrier is required.", at)
    if kind == "container":
        _check_container(runnable.container, f"{at}.container")
    if kind == "script" and not (runnable.script.text or runnable.script.path):
        raise invalid(f"{at}.script: text or path is required.", f"{at}.script")
    if kind == "barrier" and (runnable.background or runnable.ignore_exit_status):
        raise invalid(f"{at}: a barrier can neither be background nor ignore its exit status.", at)
    if kind == "barrier" and runnable.barrier.name and not _IDENTIFIER.fullmatch(runnable.barrier.name):
        raise invalid(f"{at}.barrier.name must be an identifier.", f"{at}.barrier.name")
    _check_duration(runnable.timeout, f"{at}.timeout")
    _check_environment(runnable.environment, f"{at}.environment")
    check_labels(runnable.labels, f"{at}.labels")


def _check_container(container: Any, at: str) -> None:
    if not container.image_uri:
        raise invalid(f"{at}.image_uri is required.", f"{at}.image_uri")
    if container.block_external_network and "--network" in container.options:
        raise invalid(f"{at}.options: network cannot be given with block_external_network.", f"{at}.options")
    for index, volume in enumerate(container.volumes):
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]):
            raise invalid(
                f'{at}.volumes[{index}] "{volume}" must have the form "/host:/container[:options]".',
                f"{at}.volumes[{index}]",
            )
    if bool(container.username) != bool(container.password):
        raise invalid(f"{at}: username and password must be given together.", at)


def _check_duration(duration: Any, at: str) -> None:
    if duration.seconds < 0 or duration.nanos < 0 or duration.seconds > _MAX_DURATION_SECONDS:
        raise invalid(f"{at} must be between 0 and {_MAX_DURATION_SECONDS} seconds.", at)


def _check_lifecycle(policies: Any, at: str) -> None:
    if len(policies) > 1:
        raise invalid(f"{at}: only one lifecycle policy is supported, got {len(policies)}.", at)
    for policy in policies:
        if policy.action == Action.ACTION_UNSPECIFIED:
            raise invalid(f"{at}[0].action is required.", f"{at}[0].action")
        if not policy.action_condition.exit_codes:
            raise invalid(
                f"{at}[0].action_condition.exit_codes is required.", f"{at}[0].action_condition.exit_codes"
            )


def _check_environment(environment: Any, at: str) -> None:
    _check_variables(environment.variables, f"{at}.variables")
    _check_variables(environment.secret_variables, f"{at}.secret_variables")
    for name, secret in environment.secret_variables.items():
        if not _SECRET.fullmatch(secret):
            raise invalid(
                f'{at}.secret_variables["{name}"] must have the form "projects/*/secrets/*/versions/*".',
                f"{at}.secret_variables",
            )
    both = set(environment.variables) & set(environment.secret_variables)
    if both:
        raise invalid(f'{at}: "{min(both)}" is both a variable and a secret variable.', at)


def _check_variables(variables: Any, at: str) -> None:
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise invalid(f'{at}: "{name[:100]}" is not a valid name of an environment variable.', at)
        if "\0" in variables[name]:
            raise invalid(f'{at}: the value of "{name}" holds a NUL character.', at)


def _check_volume(volume: Any, at: str) -> None:
    source = volume.WhichOneof("source")
    if source is None:
        raise invalid(f"{at}: one of nfs, gcs or device_name is required.", at)
    if not volume.mount_path.startswith("/"):
        raise invalid(f"{at}.mount_path must be an absolute path.", f"{at}.mount_path")
    if source == "gcs" and not volume.gcs.remote_path.strip("/"):
        raise invalid(f"{at}.gcs.remote_path is required.", f"{at}.gcs.remote_path")
    if source == "nfs" and not (volume.nfs.server and volume.nfs.remote_path):
        raise invalid(f"{at}.nfs: server and remote_path are required.", f"{at}.nfs")


def _check_logs(policy: Any) -> None:
    if policy.destination == Destination.PATH and not policy.logs_path:
        raise invalid(
            "job.logs_policy.logs_path is required for the destination PATH.", "job.logs_policy.logs_path"
        )


def _check_notification(notification: Any, at: str) -> None:
    message = notification.message
    if not notification.pubsub_topic:
        raise invalid(f"{at}.pubsub_topic is required.", f"{at}.pubsub_topic")
    if not _TOPIC.fullmatch(notification.pubsub_topic):
        raise invalid(
            f'{at}.pubsub_topic "{notification.pubsub_topic}" must have the form '
            '"projects/{project}/topics/{topic}".',
            f"{at}.pubsub_topic",
        )
    job_level = message.type_ == NotificationType.JOB_STATE_CHANGED or message.new_job_state
    task_level = message.type_ == NotificationType.TASK_STATE_CHANGED or message.new_task_state
    if job_level and task_level:
        raise invalid(f"{at}.message must have job attributes or task attributes, not both.", f"{at}.message")
