"""The job that is submitted is what the author asked for, within what Batch accepts."""

from __future__ import annotations

import pytest

from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.batch import jobs, schema
from airflow_resume_provider.errors import InvalidInput

PLACEMENT = Placement(
    region="us-central1",
    zones=("us-central1-a", "us-central1-b"),
    machine_type="g2-standard-8",
    accelerator_type="nvidia-l4",
    accelerator_count=1,
)
CONTRACT = jobs.ContractSpec(
    lineage="gs://b/l",
    attempt=3,
    training_id="t1",
    job_id="job-1",
    job_name="projects/p/locations/us-central1/jobs/job-1",
    offered="gs://b/l/attempts/0002/checkpoints/000004",
)


def container(**changes):
    """A container."""
    return jobs.ContainerSpec(
        **{"image": "trainer:1", "command": ["python", "train.py", "--lr=1"], **changes}
    )


def built(override=None, machine=None, placement=PLACEMENT, **changes):
    """The message that the client would send."""
    spec = jobs.build(
        container(**changes),
        machine or jobs.MachineSpec(),
        placement,
        CONTRACT,
        {"resume_day": "x"},
        override,
    )
    return jobs.message(spec)


def test_what_was_promised_is_in_the_job():
    """Image, command, machine, GPU, zones, provisioning, labels: as asked; platform retries stay at 0."""
    job = built(env={"LR": "1"}, shm_size="8g", secret_env={"KEY": "projects/p/secrets/s/versions/1"})
    spec = job.task_groups[0].task_spec
    run = spec.runnables[0]
    assert (job.task_groups[0].task_count, spec.max_retry_count, list(spec.lifecycle_policies)) == (1, 0, [])
    assert run.container.image_uri == "trainer:1"
    assert list(run.container.commands) == ["resume-run", "--", "python", "train.py", "--lr=1"]
    assert run.container.options == "--shm-size=8g"
    assert run.environment.variables["LR"] == "1"
    assert run.environment.variables["RESUME_ATTEMPT"] == "3"
    assert run.environment.secret_variables["KEY"] == "projects/p/secrets/s/versions/1"
    assert "KEY" not in run.environment.variables
    instance = job.allocation_policy.instances[0]
    assert instance.install_gpu_drivers
    assert instance.policy.machine_type == "g2-standard-8"
    assert instance.policy.provisioning_model.name == "SPOT"
    assert (instance.policy.accelerators[0].type_, instance.policy.accelerators[0].count) == ("nvidia-l4", 1)
    assert instance.policy.boot_disk.size_gb == 150
    assert list(job.allocation_policy.location.allowed_locations) == [
        "zones/us-central1-a",
        "zones/us-central1-b",
    ]
    assert job.labels["resume_day"] == job.allocation_policy.labels["resume_day"] == "x"
    assert job.logs_policy.destination.name == "CLOUD_LOGGING"


def test_checkpoints_lie_where_the_volume_is():
    """RESUME_DIR is below the mounted directory, and the same for all attempts of a training."""
    run = built().task_groups[0].task_spec.runnables[0]
    host, inside = run.container.volumes[0].split(":")
    assert host.startswith("/var/")
    assert run.environment.variables["RESUME_DIR"] == f"{inside}/t1"


def test_unmodified_image_runs_between_ours():
    """restore, sync beside, the user's own container, evidence, finish: the user's command is untouched."""
    runnables = built(runtime_image="runtime:1").task_groups[0].task_spec.runnables
    told = [(r.display_name, r.container.image_uri, r.background, r.always_run) for r in runnables]
    assert told == [
        ("restore", "runtime:1", False, False),
        ("sync", "runtime:1", True, False),
        ("train", "trainer:1", False, False),
        ("succeeded", "runtime:1", False, False),
        ("finish", "runtime:1", False, True),
    ]
    assert list(runnables[2].container.commands) == ["python", "train.py", "--lr=1"]
    assert runnables[2].environment.variables["RESUME_NOTICE_FILE"].startswith("/mnt/resume/")
    # Niceness counts within a container only; beside the training it is the container's weight that does.
    assert ["--cpu-shares" in r.container.options for r in runnables] == [False, True, False, False, False]


def test_machine_parameters_arrive():
    """Disk, duration, account, network, priority."""
    machine = jobs.MachineSpec(
        boot_disk_gb=77,
        max_run_seconds=3600,
        service_account="a@p.iam.gserviceaccount.com",
        network="global/networks/n",
        subnetwork="regions/r/subnetworks/s",
        external_ip=False,
        priority=9,
    )
    job = built(machine=machine)
    policy = job.allocation_policy
    assert policy.instances[0].policy.boot_disk.size_gb == 77
    assert job.task_groups[0].task_spec.max_run_duration.total_seconds() == 3600
    assert policy.service_account.email == "a@p.iam.gserviceaccount.com"
    assert policy.network.network_interfaces[0].no_external_ip_address
    assert policy.network.network_interfaces[0].network == "global/networks/n"
    assert job.priority == 9


@pytest.mark.parametrize(
    "override",
    [
        {"taskGroups": [{"taskSpec": {"computeResource": {"cpuMilli": 4000}}}]},
        {"task_groups": [{"task_spec": {"compute_resource": {"cpu_milli": 4000}}}]},
    ],
)
def test_overrides_are_merged_in_either_spelling(override):
    """What the author overrides is there, in REST's or the client's spelling, and the rest is kept."""
    job = built(schema.normalised(override))
    spec = job.task_groups[0].task_spec
    assert spec.compute_resource.cpu_milli == 4000
    assert spec.runnables[0].container.commands[0] == "resume-run"


@pytest.mark.parametrize("runtime_image", [None, "runtime:1"])
def test_the_training_sees_the_tasks_own_disks_and_buckets(runtime_image):
    """Batch hands them on only to containers without volumes; ours is given them beside its own."""
    task = {
        "volumes": [
            {"gcs": {"remote_path": "data"}, "mount_path": "/mnt/disks/data"},
            {"device_name": "scratch", "mount_path": "/var/lib/resume"},
        ]
    }
    job = built({"task_groups": [{"task_spec": task}]}, runtime_image=runtime_image)
    seen = {r.display_name: list(r.container.volumes) for r in job.task_groups[0].task_spec.runnables}
    assert seen["train"] == ["/var/lib/resume:/mnt/resume", "/mnt/disks/data:/mnt/disks/data"]
    assert [name for name, volumes in seen.items() if "/mnt/disks/data:/mnt/disks/data" in volumes] == [
        "train"
    ]


def test_override_of_volumes_keeps_ours():
    """A further volume does not take the checkpoints' one away."""
    more = {"task_groups": [{"task_spec": {"runnables": [{"container": {"volumes": ["/a:/b"]}}]}}]}
    volumes = list(built(more).task_groups[0].task_spec.runnables[0].container.volumes)
    assert volumes == ["/var/lib/resume:/mnt/resume", "/a:/b"]


def test_unknown_keys_are_refused_with_their_path():
    """A typing error deep in an override is named."""
    with pytest.raises(InvalidInput) as refused:
        schema.normalised({"taskGroups": [{"taskSpec": {"runnables": [{"contaner": {}}]}}]})
    assert refused.value.parameter == "job.taskGroups[0].taskSpec.runnables[0].contaner"


def test_schema_is_the_clients_own():
    """The snapshot that is checked at parse time has exactly the keys of the installed client."""
    from google.cloud.batch_v1 import Job

    theirs = _tree(Job.pb(Job()).DESCRIPTOR)
    for owned in ("name", "uid", "status", "create_time", "update_time"):
        theirs.pop(owned)
    assert _plain(schema.JOB) == theirs


def _tree(descriptor):
    return {field.name.rstrip("_"): _value(field) for field in descriptor.fields}


def _value(field):
    message = field.message_type
    if message is None or message.full_name.startswith("google.protobuf"):
        return None
    return {"*": None} if message.GetOptions().map_entry else _tree(message)


def _plain(shape):
    return {key: _plain(value) if value is not None else None for key, value in shape.items()}


def test_an_exit_code_is_never_dropped_from_a_long_history():
    """What travels is bounded; where events have no times the one that tells could be the first."""
    from google.cloud import batch_v1

    from airflow_resume_provider.batch.events import MAX_EVENTS, job_seen

    told = batch_v1.StatusEvent(description="x", task_execution=batch_v1.TaskExecution(exit_code=50001))
    others = [batch_v1.StatusEvent(description=str(i)) for i in range(2 * MAX_EVENTS)]
    job = batch_v1.Job(name="j", status=batch_v1.JobStatus(status_events=[told, *others]))
    seen = job_seen(job).events
    assert [event.exit_code for event in seen if event.exit_code] == [50001]
    assert len(seen) == MAX_EVENTS + 1
