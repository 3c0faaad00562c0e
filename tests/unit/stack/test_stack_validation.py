"""What CreateJob refuses, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_resume_provider.testing.batch.api_errors import ApiError
from airflow_resume_provider.testing.batch.machine_types import impossible, unknown_types
from airflow_resume_provider.testing.batch.messages import Job, Provisioning
from airflow_resume_provider.testing.batch.names import Parent
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.validation import MAX_JOB_BYTES, validate

PARENT = Parent("local-project", "us-central1")


def good() -> Any:
    """A job that is accepted."""
    job = Job()
    group = job.task_groups.add()
    group.task_spec.runnables.add().script.text = "true"
    job.allocation_policy.instances.add().policy.machine_type = "n1-standard-4"
    return job


def refusal(change: Callable[[Any], Any], job_id: str = "job-1") -> ApiError:
    """The error that a changed job is refused with."""
    job = good()
    change(job)
    with pytest.raises(ApiError) as caught:
        validate(job, PARENT, job_id, Settings())
    return caught.value


def spec(job: Any) -> Any:
    """The task spec."""
    return job.task_groups[0].task_spec


def runnable(job: Any) -> Any:
    """The first runnable."""
    return spec(job).runnables[0]


def policy(job: Any) -> Any:
    """The instance policy."""
    return job.allocation_policy.instances[0].policy


def test_a_good_job_is_accepted() -> None:
    """Nothing is refused without a reason."""
    validate(good(), PARENT, "a", Settings())


@pytest.mark.parametrize("job_id", ["a", "a1", "a-b", "a" * 63])
def test_legal_job_ids_are_accepted(job_id: str) -> None:
    """Lower case letters, digits and inner dashes, up to 63 characters."""
    validate(good(), PARENT, job_id, Settings())


@pytest.mark.parametrize("job_id", ["A", "1a", "-a", "a-", "a_b", "a.b", "a" * 64, "a b", "ä", "a/b", "a\n"])
def test_illegal_job_ids_are_refused(job_id: str) -> None:
    """With the field's name."""
    error = refusal(lambda job: None, job_id)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "job_id")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "priority above": lambda job: setattr(job, "priority", 100),
    "priority below": lambda job: setattr(job, "priority", -1),
    "no task group": lambda job: job.ClearField("task_groups"),
    "two task groups": lambda job: job.task_groups.add(),
    "no runnable": lambda job: spec(job).ClearField("runnables"),
    "an empty runnable": lambda job: spec(job).runnables.add(),
    "an empty script": lambda job: (
        runnable(job).script.SetInParent() or setattr(runnable(job).script, "text", "")
    ),
    "a container without image": lambda job: runnable(job).container.SetInParent(),
    "only a barrier": lambda job: runnable(job).barrier.SetInParent(),
    "a background barrier": lambda job: (
        runnable(job).barrier.SetInParent(),
        setattr(runnable(job), "background", True),
    ),
    "negative tasks": lambda job: setattr(job.task_groups[0], "task_count", -1),
    "too many tasks": lambda job: setattr(job.task_groups[0], "task_count", 100_001),
    "too much parallelism": lambda job: setattr(job.task_groups[0], "parallelism", 5_001),
    "negative parallelism": lambda job: setattr(job.task_groups[0], "parallelism", -1),
    "negative tasks per node": lambda job: setattr(job.task_groups[0], "task_count_per_node", -1),
    "parallel in order": lambda job: job.task_groups[0].MergeFrom(
        type(job.task_groups[0])(scheduling_policy=2, parallelism=2)
    ),
    "a barrier that can never open": lambda job: (
        spec(job).runnables.add().barrier.SetInParent(),
        job.task_groups[0].MergeFrom(type(job.task_groups[0])(task_count=3, parallelism=2)),
    ),
    "a barrier for tasks in order": lambda job: (
        spec(job).runnables.add().barrier.SetInParent(),
        job.task_groups[0].MergeFrom(type(job.task_groups[0])(task_count=2, scheduling_policy=2)),
    ),
    "too many retries": lambda job: setattr(spec(job), "max_retry_count", 11),
    "negative retries": lambda job: setattr(spec(job), "max_retry_count", -1),
    "negative duration": lambda job: setattr(spec(job).max_run_duration, "seconds", -1),
    "negative timeout": lambda job: setattr(runnable(job).timeout, "seconds", -1),
    "negative cpu": lambda job: setattr(spec(job).compute_resource, "cpu_milli", -1),
    "two lifecycle policies": lambda job: [spec(job).lifecycle_policies.add() for _ in range(2)],
    "a policy without action": lambda job: (
        spec(job).lifecycle_policies.add().action_condition.exit_codes.append(1)
    ),
    "a policy without codes": lambda job: setattr(spec(job).lifecycle_policies.add(), "action", 1),
    "an illegal variable": lambda job: spec(job).environment.variables.update({"a-b": "x"}),
    "an illegal secret": lambda job: spec(job).environment.secret_variables.update({"A": "secret"}),
    "a variable that is also secret": lambda job: (
        spec(job).environment.variables.update({"A": "x"}),
        spec(job).environment.secret_variables.update({"A": "projects/p/secrets/s/versions/1"}),
    ),
    "a volume without source": lambda job: setattr(spec(job).volumes.add(), "mount_path", "/mnt"),
    "a relative mount": lambda job: (
        spec(job)
        .volumes.add(mount_path="mnt")
        .gcs.MergeFrom(type(spec(job).volumes.add().gcs)(remote_path="b"))
    ),
    "an unknown device": lambda job: spec(job).volumes.add(mount_path="/mnt", device_name="none"),
    "a malformed container volume": lambda job: runnable(job).container.MergeFrom(
        type(runnable(job).container)(image_uri="i", volumes=["/only-one"])
    ),
    "two regions": lambda job: job.allocation_policy.location.allowed_locations.extend(
        ["regions/us-central1", "regions/us-west1"]
    ),
    "zones of two regions": lambda job: job.allocation_policy.location.allowed_locations.extend(
        ["zones/us-central1-a", "zones/us-west1-a"]
    ),
    "another region than the job's": lambda job: job.allocation_policy.location.allowed_locations.append(
        "regions/us-west1"
    ),
    "a malformed location": lambda job: job.allocation_policy.location.allowed_locations.append(
        "us-central1"
    ),
    "two instance policies": lambda job: job.allocation_policy.instances.add(),
    "an accelerator without count": lambda job: policy(job).accelerators.add(type_="nvidia-tesla-t4"),
    "an accelerator without type": lambda job: policy(job).accelerators.add(count=1),
    "an unknown provisioning model": lambda job: setattr(policy(job), "provisioning_model", 99),
    "a malformed machine type": lambda job: setattr(policy(job), "machine_type", "N1 STANDARD"),
    "a boot disk from a snapshot": lambda job: setattr(policy(job).boot_disk, "snapshot", "s"),
    "a disk without content": lambda job: policy(job).disks.add(device_name="d"),
    "a template of another project": lambda job: setattr(
        job.allocation_policy.instances[0], "instance_template", "projects/other/global/instanceTemplates/t"
    ),
    "a regional template": lambda job: setattr(
        job.allocation_policy.instances[0],
        "instance_template",
        "projects/local-project/regions/r/instanceTemplates/t",
    ),
    "a reserved label": lambda job: job.labels.update({"goog-x": "y"}),
    "an upper case label key": lambda job: job.labels.update({"Team": "y"}),
    "an upper case label value": lambda job: job.labels.update({"team": "Y"}),
    "a label key that begins with a digit": lambda job: job.labels.update({"1a": "y"}),
    "a label value with a dot": lambda job: job.labels.update({"a": "b.c"}),
    "a long label value": lambda job: job.labels.update({"a": "b" * 64}),
    "an empty label key": lambda job: job.labels.update({"": "b"}),
    "too many labels": lambda job: job.labels.update({f"a{n}": "b" for n in range(65)}),
    "an illegal label of the VMs": lambda job: job.allocation_policy.labels.update({"A": "b"}),
    "an illegal label of a runnable": lambda job: runnable(job).labels.update({"A": "b"}),
    "an illegal tag": lambda job: job.allocation_policy.tags.append("_"),
    "an account that is no address": lambda job: setattr(
        job.allocation_policy.service_account, "email", "me"
    ),
    "one network twice": lambda job: [
        job.allocation_policy.network.network_interfaces.add(network="n") for _ in range(2)
    ],
    "logs to no path": lambda job: setattr(job.logs_policy, "destination", 2),
    "a notification without topic": lambda job: job.notifications.add(),
    "a malformed topic": lambda job: job.notifications.add(pubsub_topic="topic"),
    "a notification of job and task": lambda job: job.notifications.add(
        pubsub_topic="projects/p/topics/top"
    ).message.MergeFrom(type(job.notifications.add().message)(type_=1, new_task_state=3)),
    "more than a megabyte": lambda job: setattr(runnable(job).script, "text", "x" * MAX_JOB_BYTES),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_with_this_is_refused(name: str) -> None:
    """As INVALID_ARGUMENT that names a field of the job."""
    error = refusal(CHANGES[name])
    assert error.code == "INVALID_ARGUMENT"
    assert error.field.startswith("job")
    assert error.status().details


@pytest.mark.parametrize(
    "locations", [["regions/us-central1"], ["zones/us-central1-a", "zones/us-central1-f"], []]
)
def test_locations_of_the_jobs_own_region_are_accepted(locations: list[str]) -> None:
    """The region itself, or several of its zones."""
    job = good()
    job.allocation_policy.location.allowed_locations.extend(locations)
    validate(job, PARENT, "a", Settings())


def test_an_unknown_location_is_not_found() -> None:
    """There is no Batch there."""
    with pytest.raises(ApiError) as caught:
        validate(good(), Parent("local-project", "mars-north1"), "a", Settings())
    assert caught.value.code == "NOT_FOUND"


def test_a_barrier_with_room_for_every_task_is_accepted() -> None:
    """As many in parallel as there are tasks, which is also the default."""
    job = good()
    spec(job).runnables.add().barrier.SetInParent()
    job.task_groups[0].task_count = 64
    validate(job, PARENT, "a", Settings())


@pytest.mark.parametrize("labels", [{"a": ""}, {"a-b_c": "1-2_3"}, {"é": "ü"}])
def test_legal_labels_are_accepted(labels: dict[str, str]) -> None:
    """Empty values, digits, dashes, underscores and letters of any script."""
    job = good()
    job.labels.update(labels)
    validate(job, PARENT, "a", Settings())


@pytest.mark.parametrize(
    ("model", "days", "refused"), [("FLEX_START", 8, True), ("FLEX_START", 7, False), ("SPOT", 8, False)]
)
def test_flex_start_runs_for_seven_days_at_most(model: str, days: int, refused: bool) -> None:
    """A longer limit is refused with its field's path; other provisioning models have none here."""

    def change(job: Any) -> None:
        policy(job).provisioning_model = Provisioning[model]
        spec(job).max_run_duration.seconds = days * 86400

    if refused:
        assert "max_run_duration" in refusal(change).message
    else:
        job = good()
        change(job)
        validate(job, PARENT, "a", Settings())


@pytest.mark.parametrize("name", ["a3-highgpu-8g", "n1-custom-4-8192", "custom-2-4096", "e2-micro"])
def test_machine_types_of_known_families_are_known(name: str) -> None:
    """By their family, whatever their size."""
    job = good()
    policy(job).machine_type = name
    policy(job).accelerators.add().type_ = "nvidia-tesla-t4-vws"
    assert unknown_types(job) == []


def test_what_no_list_holds_is_unknown() -> None:
    """A typing error in either is found."""
    job = good()
    policy(job).machine_type = "n11-standard-4"
    policy(job).accelerators.add().type_ = "nvidia-telsa-t4"
    assert unknown_types(job) == ["n11-standard-4", "nvidia-telsa-t4"]


@pytest.mark.parametrize(
    ("machine", "gpu", "count", "cpu_milli", "told"),
    [
        ("n1-standard-8", "nvidia-tesla-t4", 3, 0, "1, 2, 4 of nvidia-tesla-t4, not 3"),
        ("e2-standard-4", "nvidia-tesla-t4", 1, 0, "family n1"),
        ("n1-standard-4", "nvidia-l4", 1, 0, "family g2"),
        ("e2-standard-4", "", 0, 4001, "has 4000"),
        ("n2-custom-6-8192", "", 0, 8000, "has 6000"),
        ("custom-2-4096", "", 0, 3000, "has 2000"),
        ("n1-standard-4", "nvidia-tesla-t4", 4, 4000, ""),
        ("custom-2-4096", "nvidia-tesla-v100", 8, 2000, ""),
        ("g2-standard-8", "nvidia-l4", 1, 8000, ""),
        ("a2-highgpu-1g", "nvidia-tesla-a100", 1, 12000, ""),
        ("e2-medium", "", 0, 2000, ""),
        ("", "nvidia-tesla-t4", 1, 64000, ""),
        ("c3-standard-4-lssd", "", 0, 4000, ""),
        ("n11-standard-4", "nvidia-tesla-t4", 1, 8000, ""),
    ],
)
def test_machines_that_the_cloud_cannot_make_are_known(
    machine: str, gpu: str, count: int, cpu_milli: int, told: str
) -> None:
    """By number and place of GPUs and by CPU; what is not known for sure is not told."""
    job = good()
    policy(job).machine_type = machine
    spec(job).compute_resource.cpu_milli = cpu_milli
    if gpu:
        policy(job).accelerators.add(type_=gpu, count=count)
    wrong = impossible(job)
    assert len(wrong) == bool(told)
    assert told in "".join(wrong)
