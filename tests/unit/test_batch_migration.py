"""An existing job becomes arguments that submit the same container on the same machine."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import timedelta

import pytest

from airflow_resume_provider.batch.migration import main, translate
from airflow_resume_provider.errors import InvalidInput

JOB = {
    "priority": 10,
    "taskGroups": [
        {
            "taskCount": 1,
            "taskSpec": {
                "runnables": [
                    {
                        "container": {
                            "imageUri": "trainer:1",
                            "entrypoint": "python",
                            "commands": ["train.py", "--lr", "0.1"],
                            "options": "--shm-size=8g",
                            "volumes": ["/data:/data:ro"],
                        },
                        "environment": {"variables": {"A": "2"}},
                    }
                ],
                "environment": {
                    "variables": {"A": "1", "B": "1"},
                    "secretVariables": {"KEY": "projects/p/secrets/s/versions/1"},
                },
                "maxRunDuration": "3600s",
                "maxRetryCount": 3,
                "lifecyclePolicies": [{"action": "RETRY_TASK", "actionCondition": {"exitCodes": [50001]}}],
                "volumes": [{"gcs": {"remotePath": "bucket"}, "mountPath": "/mnt/bucket"}],
            },
        }
    ],
    "allocationPolicy": {
        "location": {"allowedLocations": ["zones/us-central1-a", "zones/us-central1-b"]},
        "instances": [
            {
                "policy": {
                    "machineType": "g2-standard-8",
                    "accelerators": [{"type": "nvidia-l4", "count": "1"}],
                    "provisioningModel": "SPOT",
                    "bootDisk": {"sizeGb": "200"},
                },
                "installGpuDrivers": True,
            }
        ],
        "serviceAccount": {"email": "t@p.iam.gserviceaccount.com"},
        "network": {"networkInterfaces": [{"network": "n", "noExternalIpAddress": True}]},
    },
    "labels": {"team": "a"},
    "logsPolicy": {"destination": "CLOUD_LOGGING"},
}
EXPECTED = {
    "image": "trainer:1",
    "command": ["python", "train.py", "--lr", "0.1"],
    "container_options": "--shm-size=8g",
    "volumes": ["/data:/data:ro"],
    "env": {"A": "2", "B": "1"},
    "secret_env": {"KEY": "projects/p/secrets/s/versions/1"},
    "max_run_seconds": 3600.0,
    "region": "us-central1",
    "zones": ["us-central1-a", "us-central1-b"],
    "machine_type": "g2-standard-8",
    "accelerator_type": "nvidia-l4",
    "accelerator_count": 1,
    "provisioning_model": "SPOT",
    "boot_disk_gb": 200,
    "install_gpu_drivers": True,
    "service_account": "t@p.iam.gserviceaccount.com",
    "network": "n",
    "external_ip": False,
    "labels": {"team": "a"},
    "priority": 10,
}


def test_everything_with_an_argument_of_its_own_is_taken_out():
    """The rest of the job stays as the override."""
    translated = translate(JOB)
    rest = translated.arguments.pop("job")
    assert translated.arguments == EXPECTED
    volumes = [{"gcs": {"remote_path": "bucket"}, "mount_path": "/mnt/bucket"}]
    assert rest == {"task_groups": [{"task_spec": {"volumes": volumes}}]}


def test_what_the_operator_does_itself_is_said():
    """Retries and lifecycle policies are dropped, with a note each."""
    notes = " ".join(translate(JOB).notes)
    assert "max_retry_count" in notes
    assert "lifecycle_policies" in notes


def test_the_given_job_is_not_changed():
    """Translating twice gives the same."""
    assert translate(JOB) == translate(JOB)


def test_a_message_of_the_client_is_taken_too():
    """`batch_v1.Job` gives the same as its dictionary."""
    from google.cloud import batch_v1
    from google.protobuf import json_format

    message = batch_v1.Job()
    json_format.ParseDict(JOB, batch_v1.Job.pb(message))
    assert translate(message).arguments["image"] == "trainer:1"
    assert translate(message).arguments["zones"] == EXPECTED["zones"]


def test_the_operator_accepts_the_result():
    """With the three arguments that a job cannot know, it parses."""
    from airflow_resume_provider.operators.train import ResumableTrainOperator

    arguments = translate(JOB).arguments
    operator = ResumableTrainOperator(
        task_id="t", project_id="my-project", checkpoint_root="gs://b/c", **arguments
    )
    assert operator.machine_type == "g2-standard-8"


def test_the_source_can_be_pasted():
    """It is a Python call, with the notes behind it."""
    source = translate(JOB).as_source()
    compile(source, "pasted", "eval")
    assert source.startswith("ResumableTrainOperator(")


def changed(**spec):
    """The job with some keys of its task_spec or of its group changed."""
    job = deepcopy(JOB)
    [group] = job["taskGroups"]
    for key, value in spec.items():
        (group if key.startswith(("taskC", "taskE", "requireH")) else group["taskSpec"])[key] = value
    return job


RUNNABLE = JOB["taskGroups"][0]["taskSpec"]["runnables"][0]
TWO_REGIONS = ["zones/us-east1-b", "zones/us-west1-a"]
BARE = {"container": {"imageUri": "trainer:1"}}


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({**JOB, "taskGroups": []}, "0 task groups"),
        (changed(runnables=[{"script": {"text": "true"}}]), "script"),
        (changed(runnables=[RUNNABLE, RUNNABLE]), "2 runnables"),
        (changed(runnables=[{"barrier": {"name": "b"}}]), "barrier"),
        (changed(runnables=[{"container": {"imageUri": "a", "blockExternalNetwork": True}}]), "external"),
        (changed(taskCount=4), "4 independent tasks"),
        (changed(taskEnvironments=[{"variables": {"A": "1"}}]), "task_environments"),
        (changed(maxRunDuration="a day"), "duration"),
        ({**JOB, "allocationPolicy": {"instances": [{"instanceTemplate": "t"}]}}, "instance template"),
        (
            {
                **JOB,
                "allocationPolicy": {
                    "location": {"allowedLocations": ["zones/us-east1-b", "zones/us-west1-a"]}
                },
            },
            "us-east1, us-west1",
        ),
        ({**JOB, "nonsense": 1}, "nonsense"),
    ],
)
def test_what_one_operator_cannot_run_is_refused(job, named):
    """With what it is and what to do instead, not with a wrong translation."""
    with pytest.raises(InvalidInput) as refused:
        translate(job)
    assert named in str(refused.value)


def test_the_form_of_googles_own_samples_is_taken():
    """A dictionary with messages, enumeration members and durations in it, as Python programs build it."""
    from google.cloud import batch_v1
    from google.protobuf.duration_pb2 import Duration

    spec = batch_v1.TaskSpec(
        runnables=[batch_v1.Runnable(container={"image_uri": "trainer:1", "commands": ["train"]})],
        max_run_duration=Duration(seconds=7200),
    )
    spot = batch_v1.AllocationPolicy.ProvisioningModel.SPOT
    policy = {"machine_type": "n1-standard-4", "provisioning_model": spot}
    group = {"task_count": 1, "task_spec": spec}
    job = {"task_groups": [group], "allocation_policy": {"instances": [{"policy": policy}]}}
    arguments = translate(job).arguments
    assert arguments["image"] == "trainer:1"
    assert arguments["max_run_seconds"] == 7200
    assert arguments["provisioning_model"] == "SPOT"


@pytest.mark.parametrize(
    "given", [{"seconds": 3600}, timedelta(hours=1), "3600s", {"seconds": 3599, "nanos": 10**9}]
)
def test_durations_in_any_form(given):
    """Seconds, whoever wrote them."""
    assert translate(changed(maxRunDuration=given)).arguments["max_run_seconds"] == 3600


def test_every_provisioning_model_is_known_by_its_number():
    """`MessageToDict` with integers gives numbers; they are the client's."""
    from google.cloud.batch_v1 import AllocationPolicy

    for model in AllocationPolicy.ProvisioningModel:
        policy = {"machineType": "n1-standard-4", "provisioningModel": int(model)}
        job = {**JOB, "allocationPolicy": {"instances": [{"policy": policy}]}}
        wanted = model.name if model else None
        assert translate(job).arguments.get("provisioning_model") == wanted


def test_what_gcloud_describes_is_taken():
    """Its output-only keys and Batch's own label are no obstacle, and are not submitted again."""
    described = {
        **JOB,
        "name": "projects/p/locations/us-central1/jobs/j",
        "uid": "j-1",
        "createTime": "2026-01-01T00:00:00Z",
        "updateTime": "2026-01-01T00:00:00Z",
        "status": {"state": "SUCCEEDED"},
        "allocationPolicy": {**JOB["allocationPolicy"], "labels": {"batch-job-id": "j", "cost": "x"}},
    }
    described["taskGroups"] = [{**JOB["taskGroups"][0], "name": "projects/p/…/taskGroups/group0"}]
    arguments = translate(described).arguments
    assert arguments["labels"] == {"team": "a", "cost": "x"}
    assert "name" not in str(arguments["job"])


def test_a_bucket_stays_mounted_in_the_container():
    """Batch hands volumes on only to containers that name none, and the operator's name theirs."""
    volumes = [{"gcs": {"remotePath": "data"}, "mountPath": "/mnt/disks/data"}]
    translated = translate(changed(runnables=[BARE], volumes=volumes))
    assert translated.arguments["volumes"] == ["/mnt/disks/data:/mnt/disks/data"]
    assert "RESUME_DIR" in " ".join(translated.notes)


def test_nodes_of_one_training_stay_nodes():
    """task_count with a file of hosts is several nodes; the override asks for them, and a note says so."""
    translated = translate(changed(taskCount="4", requireHostsFile=True))
    [group] = translated.arguments["job"]["task_groups"]
    assert group["task_count"] == "4"
    assert "4 tasks are the nodes" in " ".join(translated.notes)


def test_labels_that_are_ours_are_dropped_with_a_note():
    """The operator would refuse them when the DAG is parsed."""
    translated = translate({**JOB, "labels": {"team": "a", "airflow_dag": "old", "resume_x": "1"}})
    assert translated.arguments["labels"] == {"team": "a"}
    assert "airflow_dag, resume_x" in " ".join(translated.notes)


def test_the_command_line_says_what_cannot_be_carried_over(tmp_path, capsys, monkeypatch):
    """A sentence and exit code 1, no traceback; what can be carried over is Python to paste."""
    file = tmp_path / "job.json"
    monkeypatch.setattr("sys.argv", ["migration", str(file)])
    for text, code, said in (
        (json.dumps(JOB), 0, "ResumableTrainOperator("),
        (json.dumps(changed(runnables=[{"script": {"text": "true"}}])), 1, "script"),
        ("{'taskGroups': True}", 1, "JSON"),
        ("[]", 1, "JSON object"),
    ):
        file.write_text(text)
        assert main() == code
        output = capsys.readouterr()
        assert said in output.out + output.err
        assert "Traceback" not in output.err
