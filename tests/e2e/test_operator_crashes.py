"""The crash matrix on a real Airflow: scheduler, triggerer, API server, DAG processor, all of them.

Every case is triggered at once and checked on its own. After each: how many
jobs were ever created, how many still run, how many tries were used, what was
published, and the digest of the final state against an undisturbed training.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import until
from airflow_resume_provider.testing.faults import Plan, preempt, stock_out
from airflow_resume_provider.testing.stack import LocalStack
from tests.e2e.chain_trainer import after

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
PLAN = Plan(
    preempt(job={"airflow_dag": "four_preemptions"}, after_commits=1, grace_seconds=1, times=4),
    preempt(job={"airflow_dag": "mapped", "airflow_map_index": "1"}, after_commits=1, grace_seconds=1),
    preempt(job={"airflow_dag": "retried_preemption"}, after_commits=1, notice=False, grace_seconds=0),
    stock_out(zones=["us-central1-a"], provisioning="SPOT"),
)


@dataclass
class Case:
    """One run of one DAG, with what a person would ask about it."""

    airflow: LocalAirflow
    stack: LocalStack
    dag_id: str
    run_id: str

    @property
    def jobs(self) -> list[Any]:
        """All jobs that were ever created for it, oldest first."""
        label = self.dag_id.replace(".", "-")
        return [job for job in self.stack.jobs() if job.labels["airflow_dag"] == label]

    @property
    def alive(self) -> list[str]:
        """Jobs that are still paid for."""
        return [job.id for job in self.jobs if job.state not in OVER]

    def wait_for_jobs(self, number: int, *states: str) -> Any:
        """Wait until the n-th job is in one of these states."""
        wanted = states or ("RUNNING",)
        return until(
            f"job {number} of {self.dag_id} to be {wanted}",
            lambda: (
                len(self.jobs) >= number and self.jobs[number - 1].state in wanted and self.jobs[number - 1]
            ),
            timeout=120,
        )

    def wait_for(self, *states: str, map_index: int = -1) -> dict[str, Any]:
        """Wait for the task."""
        return self.airflow.client.wait_for_task(
            self.dag_id, self.run_id, "train", states, map_index=map_index, timeout=300
        )

    def xcoms(self, map_index: int = -1) -> dict[str, Any]:
        """What it has published."""
        return self.airflow.client.xcoms(self.dag_id, self.run_id, "train", map_index)

    def finished(self, *, jobs: int, tries: int, map_index: int = -1) -> dict[str, Any]:
        """The task succeeded at this price, and its weights are those of an undisturbed training."""
        task = self.wait_for("success", "failed", map_index=map_index)
        assert task["state"] == "success", self.log(task["try_number"])
        assert (len(self.jobs), task["try_number"]) == (jobs, tries), self.log(task["try_number"])
        until("no job to be left running", lambda: not self.alive, timeout=60)
        published = self.xcoms(map_index)
        assert published["return_value"]["metrics"]["digest"] == after(30)
        assert published["return_value"]["checkpoint_uri"] == published["checkpoint_uri"]
        return published

    def log(self, try_number: int) -> str:
        """The task's log, for a failing test."""
        return self.airflow.client.log(self.dag_id, self.run_id, "train", try_number)[-6000:]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One stack and one Airflow for all cases."""
    scratch = tmp_path_factory.mktemp("scratch")
    with LocalStack(plan=PLAN) as stack:
        env = {
            **stack.environment,
            "E2E_TRAINER": str(HERE / "chain_trainer.py"),
            "E2E_SCRATCH": str(scratch),
            "PYTHONPATH": str(HERE.parent.parent),
        }
        with LocalAirflow(HERE / "operator_dags", env=env) as airflow:
            airflow.client.wait_for_dag("plain")
            assert not airflow.client.import_errors()
            yield airflow, stack
            if os.environ.get("E2E_KEEP"):
                input("press enter")


@pytest.fixture
def start(world):
    """Trigger a DAG."""
    airflow, stack = world

    def started(dag_id: str) -> Case:
        airflow.client.wait_for_dag(dag_id)
        return Case(airflow, stack, dag_id, airflow.client.trigger(dag_id))

    return started


def test_nothing_goes_wrong(start):
    """An undisturbed training takes one job and one try."""
    case = start("plain")
    published = case.finished(jobs=1, tries=1)
    assert published["return_value"]["preemptions"] == 0


def test_task_process_killed_after_submitting(start):
    """kill -9 between submit and persist: the retry adopts the job, there is no second one."""
    start("task_killed").finished(jobs=1, tries=2)


def test_four_preemptions_with_one_retry(start):
    """Four preemptions do not eat the one retry."""
    published = start("four_preemptions").finished(jobs=5, tries=1)
    assert published["return_value"]["preemptions"] == 4
    assert [entry["verdict"] for entry in published["attempts"]] == ["preempted"] * 4 + ["succeeded"]


def test_two_errors_with_one_retry(start):
    """Two errors of the training's own use up one retry, and the task fails."""
    case = start("two_errors")
    assert case.wait_for("failed")["try_number"] == 2
    assert len(case.jobs) == 2
    assert not case.alive


def test_marking_failed_while_deferred_cancels_the_job(start):
    """A person marks the deferred task as failed: its job is cancelled."""
    case = start("marked_failed")
    case.wait_for_jobs(1)
    case.wait_for("deferred")
    case.airflow.client.mark(case.dag_id, case.run_id, "train", "failed")
    case.wait_for_jobs(1, "CANCELLED")


def test_clearing_while_deferred_replaces_the_job(start):
    """A person clears the deferred task: the old job ends, the new one resumes."""
    case = start("cleared_deferred")
    case.wait_for_jobs(1)
    case.wait_for("deferred")
    until("a commit", lambda: case.stack.status() and _committed(case), timeout=60)
    case.airflow.client.clear(case.dag_id, case.run_id, ["train"])
    published = case.finished(jobs=2, tries=2)
    assert published["attempts"][0]["verdict"] == "cancelled"
    assert published["resumed_from"]


def _committed(case: Case) -> bool:
    return bool(list(case.stack.root.glob(f"buckets/**/*{case.dag_id}*/**/manifest.json*")))
