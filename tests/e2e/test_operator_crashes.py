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

from airflow_resume_provider.checkpoints import Lineage, StoreOptions
from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import until
from airflow_resume_provider.testing.faults import Plan, preempt, stock_out
from airflow_resume_provider.testing.stack import LocalStack
from tests.e2e.chain_trainer import after

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
# A busy machine must not look like a dead worker; a dead one is still found in time.
PATIENT = {"SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45"}
PLAN = Plan(
    preempt(job={"airflow_dag": "four_preemptions"}, after_commits=1, grace_seconds=1, times=4),
    preempt(job={"airflow_dag": "mapped", "airflow_map_index": "1"}, after_commits=1, grace_seconds=1),
    preempt(job={"airflow_dag": "decorated"}, after_commits=1, grace_seconds=1),
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
        with LocalAirflow(HERE / "operator_dags", env=env, settings=PATIENT) as airflow:
            airflow.client.wait_for_dag("plain")
            assert not airflow.client.import_errors()
            yield airflow, stack
            if os.environ.get("E2E_KEEP"):
                input("press enter")


# Nobody has to act on these while they run, so they all run at once.
BY_THEMSELVES = (
    "plain",
    "task_killed",
    "supervisor_killed",
    "four_preemptions",
    "one_error",
    "two_errors",
    "stocked_out",
    "mapped",
    "retried_preemption",
    "decorated",
)


@pytest.fixture(scope="module")
def by_themselves(world):
    """Runs that were started together."""
    airflow, stack = world
    for dag_id in BY_THEMSELVES:
        airflow.client.wait_for_dag(dag_id)
    return {d: Case(airflow, stack, d, airflow.client.trigger(d)) for d in BY_THEMSELVES}


@pytest.fixture
def start(world):
    """Trigger a DAG and wait until its first job runs and its task is in `state`."""
    airflow, stack = world

    def started(dag_id: str, state: str = "deferred") -> Case:
        airflow.client.wait_for_dag(dag_id)
        case = Case(airflow, stack, dag_id, airflow.client.trigger(dag_id))
        case.wait_for_jobs(1)
        case.wait_for(state)
        return case

    return started


def test_nothing_goes_wrong(by_themselves):
    """An undisturbed training takes one job and one try, and tells its asset what it made."""
    case = by_themselves["plain"]
    published = case.finished(jobs=1, tries=1)
    assert published["return_value"]["preemptions"] == 0
    events = case.airflow.client.request("GET", "assets/events?limit=100")["asset_events"]
    extra = next(event["extra"] for event in events if event["source_dag_id"] == "plain")
    assert extra["checkpoint"]["uri"] == published["checkpoint_uri"]


def test_task_process_killed_after_submitting(by_themselves):
    """kill -9 between submit and persist: the retry adopts the job, there is no second one."""
    by_themselves["task_killed"].finished(jobs=1, tries=2)


def test_supervisor_killed_after_submitting(by_themselves):
    """kill -9 of the supervisor: the orphan goes on, and still there is one job only."""
    by_themselves["supervisor_killed"].finished(jobs=1, tries=2)


def test_four_preemptions_with_one_retry(by_themselves):
    """Four preemptions do not eat the one retry."""
    published = by_themselves["four_preemptions"].finished(jobs=5, tries=1)
    assert published["return_value"]["preemptions"] == 4
    assert [entry["verdict"] for entry in published["attempts"]] == ["preempted"] * 4 + ["succeeded"]


def test_one_error_with_one_retry(by_themselves):
    """An error of the training's own takes the retry, which resumes."""
    published = by_themselves["one_error"].finished(jobs=2, tries=2)
    assert published["resumed_from"]


def test_two_errors_with_one_retry(by_themselves):
    """Two errors of the training's own use up one retry, and the task fails."""
    case = by_themselves["two_errors"]
    assert case.wait_for("failed")["try_number"] == 2
    assert len(case.jobs) == 2
    assert not case.alive


def test_stock_out_moves_to_the_next_rung(by_themselves):
    """No Spot VM in one zone: the next rung's job runs in another region, on demand."""
    case = by_themselves["stocked_out"]
    published = case.finished(jobs=2, tries=1)
    assert [entry["verdict"] for entry in published["attempts"]] == ["stocked_out", "succeeded"]
    assert "/locations/us-east1/" in published["job_name"]
    assert case.jobs[0].state == "CANCELLED"


def test_mapped_over_three_with_one_preempted(by_themselves):
    """Each index has its own lineage; one preemption among three costs one more job."""
    case = by_themselves["mapped"]
    published = [case.finished(jobs=4, tries=1, map_index=i) for i in range(3)] if _all_done(case) else []
    assert [p["return_value"]["preemptions"] for p in published] == [0, 1, 0]
    assert len({p["checkpoint_uri"] for p in published}) == 3


def _all_done(case: Case) -> bool:
    return all(case.wait_for("success", "failed", map_index=i)["state"] == "success" for i in range(3))


def test_preemption_handed_to_airflow_is_retried_at_once(by_themselves):
    """on_preemption="retry": the try is visible, and it does not wait for retry_delay."""
    by_themselves["retried_preemption"].finished(jobs=2, tries=2)


def test_a_decorated_function_gives_the_command_of_all_attempts(by_themselves):
    """@task.resumable_train, found through the provider: the second attempt runs the same command."""
    by_themselves["decorated"].finished(jobs=2, tries=1)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_while_deferred_cancels_the_job(start, state):
    """A person marks the deferred task, even before its trigger has begun: its job is cancelled."""
    case = start(f"marked_{state}")
    case.airflow.client.mark(case.dag_id, case.run_id, "train", state)
    case.wait_for_jobs(1, "CANCELLED")
    assert len(case.jobs) == 1


def test_failing_the_run_cancels_the_job(start):
    """A person fails the whole run: its job is cancelled."""
    case = start("run_failed")
    case.airflow.client.set_run_state(case.dag_id, case.run_id, "failed")
    case.wait_for_jobs(1, "CANCELLED")


def test_marking_failed_while_running_cancels_the_job(start):
    """A person marks the running task of the synchronous mode: its job is cancelled."""
    case = start("failed_running", "running")
    case.airflow.client.mark(case.dag_id, case.run_id, "train", "failed")
    case.wait_for_jobs(1, "CANCELLED")
    assert len(case.jobs) == 1


@pytest.mark.parametrize("state", ["deferred", "running"])
def test_clearing_replaces_the_job(start, state):
    """A person clears the task: the old job ends, the new one resumes, and one of them is paid for."""
    case = start(f"cleared_{state}", state)
    until("a commit", lambda: _committed(case), timeout=60)
    case.airflow.client.clear(case.dag_id, case.run_id, ["train"])
    published = case.finished(jobs=2, tries=2)
    assert published["attempts"][0]["verdict"] == "cancelled"
    assert published["resumed_from"]


def test_clearing_a_failed_task_resumes(start):
    """After the training's own error a person clears the failed task: it goes on from its checkpoint."""
    case = start("retried_by_hand")
    assert case.wait_for("failed")["try_number"] == 1
    # Airflow may close the run just after the task was cleared, and then never begins the next try.
    assert case.airflow.client.wait_for_run(case.dag_id, case.run_id) == "failed"
    case.airflow.client.clear(case.dag_id, case.run_id, ["train"])
    until("the next try", lambda: len(case.jobs) == 2, timeout=90)
    assert case.finished(jobs=2, tries=2)["resumed_from"]


def test_triggerer_killed(start):
    """kill -9 of the triggerer: the job is left alone, and its end is seen after the restart.

    The links to the job and its logs are there while the task is deferred.
    """
    case = start("triggerer_killed")
    links = case.airflow.client.links(case.dag_id, case.run_id, "train")
    assert links["Batch job"].endswith(f"/jobs/{case.jobs[0].id}/details?project=local-project")
    assert "resume_training" in links["Training logs"]
    case.airflow.kill("triggerer")
    case.airflow.start_component("triggerer")
    case.finished(jobs=1, tries=1)


def _committed(case: Case) -> bool:
    spec = case.stack.job(case.jobs[0].id)["job"]["taskGroups"][0]["taskSpec"]
    uri = spec["runnables"][0]["environment"]["variables"]["RESUME_LINEAGE"]
    options = StoreOptions(emulator=case.stack.storage_endpoint)
    return any(attempt.checkpoints for attempt in Lineage.open(uri, options=options).history().attempts)
