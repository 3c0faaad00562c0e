"""Both kinds of job, as the operator builds them, on the local stack through the stock Batch client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud import batch_v1
from google.cloud.batch_v1.services.batch_service.transports import BatchServiceGrpcTransport

from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.batch import jobs
from airflow_resume_provider.checkpoints import Lineage, StoreOptions
from airflow_resume_provider.testing import LocalStack
from tests.integration.runtime_world import until

PARENT = "projects/local-project/locations/us-central1"
URI = "gs://resume/stack/lineage"
TRAINER = Path(__file__).parents[2] / "docker/trainer/train.py"
COMMAND = (sys.executable, str(TRAINER), "--steps", "120", "--save-every", "10", "--step-seconds", "0.02")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    with LocalStack(tmp_path) as made:
        made.create_bucket("resume")
        yield made


class Operator:
    """Submits attempts, built by the operator's own builder."""

    def __init__(self, stack: LocalStack, runtime_image: str | None) -> None:
        channel = grpc.insecure_channel(stack.batch_endpoint)
        self.client = batch_v1.BatchServiceClient(transport=BatchServiceGrpcTransport(channel=channel))
        self._stack, self._runtime_image = stack, runtime_image
        self.lineage = Lineage.open(URI, options=StoreOptions(emulator=stack.storage_endpoint))

    def submit(self, attempt: int) -> str:
        """Create the job and return its name."""
        job_id = f"t1-{attempt}"
        contract = jobs.ContractSpec(
            lineage=URI,
            attempt=attempt,
            training_id="t1",
            job_id=job_id,
            job_name=f"{PARENT}/jobs/{job_id}",
            options={
                "STORAGE_EMULATOR_HOST": self._stack.storage_endpoint,
                "RESUME_POLL": "0.1",
                "RESUME_NICE": "0",
            },
        )
        container = jobs.ContainerSpec(image="trainer:1", command=COMMAND, runtime_image=self._runtime_image)
        built = jobs.build(container, jobs.MachineSpec(), Placement(region="us-central1"), contract, {})
        self.client.create_job(parent=PARENT, job=jobs.message(built), job_id=job_id)
        return job_id

    def state(self, job_id: str) -> str:
        """The state's name."""
        return str(self.client.get_job(name=f"{PARENT}/jobs/{job_id}").status.state.name)

    def ended(self, job_id: str) -> str:
        """The final state's name, or nothing yet."""
        state = self.state(job_id)
        return state if state in ("SUCCEEDED", "FAILED") else ""

    def attempts(self) -> dict[int, object]:
        """What the store knows."""
        return {each.number: each for each in self.lineage.history().attempts}


@pytest.mark.parametrize("runtime_image", [None, "runtime:1"], ids=["own image", "unmodified image"])
def test_preempted_once_and_finished(stack: LocalStack, runtime_image: str | None) -> None:
    """The first job is preempted after a commit, the second resumes there and succeeds."""
    operator = Operator(stack, runtime_image)
    first = operator.submit(1)
    until(lambda: 1 in (found := operator.attempts()) and found[1].checkpoints, 60)  # type: ignore[attr-defined]
    stack.preempt(first)
    assert until(lambda: operator.ended(first), 60) == "FAILED"
    newest = operator.attempts()[1].checkpoints[-1]  # type: ignore[attr-defined]
    second = operator.submit(2)
    assert until(lambda: operator.ended(second), 60) == "SUCCEEDED", stack.logs(second)
    after = operator.attempts()[2]
    assert after.started.resumed_from == newest.uri  # type: ignore[attr-defined]
    assert after.checkpoints[-1].step == 120  # type: ignore[attr-defined]
    assert after.end.state.value == "finished"  # type: ignore[attr-defined]
