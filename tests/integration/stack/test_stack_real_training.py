"""The example training in real containers: preempted, restored and finished, with and without sidecars.

Needs podman and the two images of `docker/`, under the names below; says so when it is skipped.
The package inside them is replaced by this checkout's.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from stack_clients import Client, State, descriptions, until

import airflow_resume_provider
from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.batch.jobs import ContainerSpec, ContractSpec, MachineSpec, build, message
from airflow_resume_provider.testing import LocalStack, Plan, Settings, preempt
from airflow_resume_provider.testing.executors import containers

TRAINER = os.environ.get("RESUME_TRAINER_IMAGE", "localhost/trainer:latest")
RUNTIME = os.environ.get("RESUME_RUNTIME_IMAGE", "localhost/resume-runtime:latest")
TRAIN = ["python", "/opt/trainer/train.py"]
COMMAND = [*TRAIN, "--steps", "200", "--save-every", "20", "--step-seconds", "0.01"]
CHECKOUT = Path(airflow_resume_provider.__file__).parents[1]
PACKAGE = "lib/python3.11/site-packages/airflow_resume_provider"


def podman(*arguments: str, text: str = "") -> str:
    """Output of a podman command."""
    command = ["podman", *containers.engine_arguments("podman"), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def why_not() -> str:
    """Why real trainings in containers cannot be run here; empty when they can."""
    if reason := containers.why_not("podman"):
        return reason
    import subprocess

    listing = [
        "podman",
        *containers.engine_arguments("podman"),
        "images",
        "--format",
        "{{.Repository}}:{{.Tag}}",
    ]
    there = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    missing = [image for image in (TRAINER, RUNTIME) if image not in there]
    return f"no image {' or '.join(missing)}; see docker/" if missing else ""


REASON = why_not()
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=f"no real training: {REASON}"),
    pytest.mark.xdist_group("podman"),
    pytest.mark.timeout(400),
]


def of_this_checkout(image: str, prefix: str) -> str:
    """The image with this checkout's package in it."""
    name = f"{image.partition(':')[0]}:of-this-checkout"
    recipe = f"FROM {image}\nCOPY airflow_resume_provider {prefix}/{PACKAGE}\n"
    podman(
        "build", "--pull=never", "--network=host", "--tag", name, "--file", "-", str(CHECKOUT), text=recipe
    )
    return name


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """Trainer and runtime, up to date."""
    return {
        "trainer": of_this_checkout(TRAINER, "/opt/venv"),
        "runtime": of_this_checkout(RUNTIME, "/opt/resume"),
    }


def attempt(client: Client, number: int, image: str, runtime_image: str | None) -> Any:
    """Submit an attempt as the operator would, and wait for its end."""
    job_id = f"train-{number}"
    contract = ContractSpec(
        lineage="gs://resume/containers/dag/train/run/-1/g1",
        attempt=number,
        training_id="t-containers",
        job_id=job_id,
        job_name=f"projects/local-project/locations/us-central1/jobs/{job_id}",
    )
    container = ContainerSpec(image=image, command=COMMAND, runtime_image=runtime_image)
    placement = Placement(region="us-central1", machine_type="n1-standard-4", provisioning_model="SPOT")
    job = build(container, MachineSpec(), placement, contract, {"training": "t-containers"})
    return client.run(message(job), job_id, timeout=180)


def events(stack: LocalStack, job_id: str) -> list[dict[str, Any]]:
    """What the trainer printed."""
    found = []
    for line in stack.logs(job_id).splitlines():
        if line.startswith("{") and '"event"' in line:
            found.append(json.loads(line))
    return found


@pytest.mark.parametrize("sidecars", [False, True], ids=["own resume-run", "sidecars"])
def test_a_training_in_containers_survives_a_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: dict[str, str], sidecars: bool
) -> None:
    """The first attempt is preempted after two commits, the second goes on from there and finishes."""
    monkeypatch.setenv(containers.PULL, "never")
    image, runtime_image = images["trainer"], images["runtime"] if sidecars else None
    plan = Plan(preempt(job=1, after_commits=2, notice=False))
    with LocalStack(tmp_path, executor="podman", plan=plan, settings=Settings(grace_seconds=5)) as stack:
        client = Client(stack.batch_endpoint)
        first = attempt(client, 1, image, runtime_image)
        assert "50001" in descriptions(first)[-1], stack.logs("train-1")
        second = attempt(client, 2, image, runtime_image)
        assert second.status.state == State.SUCCEEDED, stack.logs("train-2")
        # The job may have ended before its last lines are in its log.
        until(
            lambda: any(
                each["event"] == "saved" and each["step"] == 200 for each in events(stack, "train-2")
            ),
            "the log",
        )
        steps = [event["step"] for event in events(stack, "train-2") if event["event"] == "saved"]
        assert steps[0] > 20, "it did not begin at the beginning"
        until(lambda: not stack.status()["vms"], "the VMs to be gone")
        client.close()
