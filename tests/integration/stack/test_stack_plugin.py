"""The fixtures for DAG authors."""

from __future__ import annotations

import os

import pytest
from stack_clients import Client, descriptions, job_of, script

from airflow_resume_provider.testing import LocalStack, Plan, Settings, preempt

pytestmark = pytest.mark.resume_local(settings=Settings(grace_seconds=0.1))


def test_the_environment_points_at_the_stack(resume_local: LocalStack) -> None:
    """Every variable that clients need, for the time of the test."""
    assert os.environ["BATCH_EMULATOR_HOST"] == resume_local.batch_endpoint
    assert os.environ["STORAGE_EMULATOR_HOST"] == resume_local.storage_endpoint
    assert "is_anonymous" in os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"]


@pytest.mark.resume_local(plan=Plan(preempt(on_state="RUNNING")))
def test_a_marker_gives_options(resume_local: LocalStack) -> None:
    """Those of the test are added to those of its module."""
    client = Client(os.environ["BATCH_EMULATOR_HOST"])
    assert "50001" in descriptions(client.run(job_of(script("sleep 60"))))[-1]
    client.close()


def test_each_test_has_a_stack_of_its_own(resume_local: LocalStack) -> None:
    """Nothing of another test's jobs is there."""
    assert resume_local.jobs() == []
