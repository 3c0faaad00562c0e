"""An existing job becomes arguments that submit the same container on the same machine."""

from __future__ import annotations

import pytest

from airflow_resume_provider.batch.migration import translate
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
    assert rest == {
        "task_groups": [
            {
                "task_count": 1,
                "task_spec": {
                    "volumes": [{"gcs": {"remote_path": "bucket"}, "mount_path": "/mnt/bucket"}],
                },
            }
        ]
    }


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


@pytest.mark.parametrize(
    "change",
    [
        {"taskGroups": []},
        {"taskGroups": [{"taskSpec": {"runnables": [{"script": {"text": "true"}}]}}]},
        {"taskGroups": [{"taskSpec": {"runnables": JOB["taskGroups"][0]["taskSpec"]["runnables"] * 2}}]},
        {"allocationPolicy": {"instances": [{"instanceTemplate": "t"}]}},
        {"nonsense": 1},
    ],
)
def test_what_one_operator_cannot_run_is_refused(change):
    """With the reason, not with a wrong translation."""
    with pytest.raises(InvalidInput):
        translate({**JOB, **change})
