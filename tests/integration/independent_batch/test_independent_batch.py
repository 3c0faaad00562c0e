"""The operator against a Batch server that makes other choices than the local stack, and misbehaves.

Real operator, real trigger, Google's unmodified clients; many trainings at
once on each server, each by a script of its own. After each: how many jobs were
ever made, whether two of one training were ever alive, every attempt's verdict,
what each was offered, the tries, and what was published.
"""

from __future__ import annotations

import functools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_resume_provider.batch import clients, retrying, watch_api
from airflow_resume_provider.hooks import batch as hook_module
from airflow_resume_provider.operators import training
from airflow_resume_provider.operators.conductor import Conductor
from airflow_resume_provider.operators.train import ResumableTrainOperator
from tests.integration.independent_batch.airflow_side import Task, TaskInstance, Triggerer
from tests.integration.independent_batch.jobs import State
from tests.integration.independent_batch.quirks import Quirks
from tests.integration.independent_batch.server import IndependentBatch
from tests.integration.independent_batch.trainings import RETRIES, Containers, Outcome, Script

SEEDS = range(int(os.environ.get("RESUME_INDEPENDENT_SEEDS", "6")))
TRAININGS = 6
PATIENCE = 0.5


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A client with little patience and short pauses, so that the server's slowness shows in seconds."""
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.delenv("BATCH_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    monkeypatch.setattr(hook_module, "CALL_TIMEOUT", PATIENCE)
    monkeypatch.setattr(watch_api, "CALL_TIMEOUT", PATIENCE)
    short = functools.partial(retrying.repeated, sleep=lambda seconds: time.sleep(min(seconds, 0.02)))
    monkeypatch.setattr(hook_module, "repeated", short)
    monkeypatch.setattr(hook_module, "READABLE_WITHIN", 4.0)
    monkeypatch.setattr(training, "LATE_PAUSE", 0.02)
    clients.speaks_grpc.cache_clear()


@pytest.fixture(scope="module")
def triggerer():
    """One triggerer for all."""
    with Triggerer() as running:
        yield running


class Bench:
    """One server with several trainings on it."""

    def __init__(self, tmp_path, monkeypatch, triggerer, seed, quirks, scripts):
        self.root, self.triggerer, self.seed = tmp_path, triggerer, seed
        self.quirks, self.scripts = quirks, scripts
        self.outage = 0  # so many deferrals begin with the API out, which comes back after as many refusals
        containers = Containers(scripts, tmp_path)
        self.server = IndependentBatch(quirks, containers, seed=seed, patience=PATIENCE)
        extra = {"batch_endpoint": self.server.address, "is_anonymous": True, "project": "local-project"}
        self.connection = f"independent_{seed}"
        value = json.dumps({"conn_type": "google_cloud_platform", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{self.connection.upper()}", value)

    def task(self, name, **changes):
        """The task that trains `name`."""
        rungs = [{"queue_timeout": 0.5}, {"provisioning_model": "STANDARD"}]
        script = self.scripts[name]
        parameters = {
            "task_id": name,
            "project_id": "local-project",
            "region": "us-central1",
            "image": "image",
            "command": ["python", "train.py"],
            "checkpoint_root": f"file://{self.root}/checkpoints",
            "gcp_conn_id": self.connection,
            "placements": rungs if script.has("stocked out") else None,
            "poll_interval": 0.03,
            # Whoever vanishes is waited for; whoever does not must not be given up on a busy machine.
            "not_found_grace": 4.0 if script.has("vanishes") else 60.0,
            "trigger_min_seconds": 0.0,
        }
        operator = ResumableTrainOperator(**{**parameters, **changes})
        return Task(operator, self.triggerer, TaskInstance("independent", name, max_tries=RETRIES))

    def run(self):
        """Run all of them, and return each one's task with its end."""
        with self.server, ThreadPoolExecutor(len(self.scripts)) as pool:
            tasks = {name: self.task(name) for name in self.scripts}
            ends = dict(zip(tasks, pool.map(self._run, tasks.values()), strict=True))
            return {name: (tasks[name], ends[name]) for name in tasks}

    def _run(self, task):
        script = self.scripts[task.ti.task_id]
        given_up = set()

        def interrupted(running):
            if self.outage and not given_up:
                self.server.out(self.outage)
            number = int(running.ti.xcoms["attempts"][-1]["number"])
            outcome = script.outcomes[min(number, len(script.outcomes)) - 1]
            if outcome.kind == "cleared" and number not in given_up:
                given_up.add(number)
                self.until_running(running.ti.xcoms["job_name"])
                return "clear"
            if outcome.spurious and number not in given_up:
                given_up.add(number)
                return "retry"
            return ""

        try:
            return task.run(interrupted)
        except TimeoutError as error:
            held = [(h.name[-30:], h.state, h.fate, h.reads, h.ending) for h in self.jobs_of(task.ti.task_id)]
            raise TimeoutError(f"{held} {script} {self.server.broken!r} {self.quirks}") from error

    @property
    def refused(self):
        """How many calls were refused in the outage."""
        return self.server.refused

    def until_running(self, name):
        """Wait for a job's container."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with self.server.paused() as jobs:
                if jobs.held[name].state == State.RUNNING:
                    return
            time.sleep(0.02)
        raise TimeoutError(name)

    def jobs_of(self, name):
        """All jobs that were ever made for a training."""
        return [held for held in self.server.jobs.created if held.spec.labels["airflow_task"] == name]


def check(bench, name, task, end):
    """Compare what came of a training with what its script deserves."""
    script = bench.scripts[name]
    print(script.outcomes, bench.quirks, task.errors)
    assert script.surprises == []
    published = task.ti.xcoms
    assert [entry["verdict"] for entry in published["attempts"]] == script.verdicts
    made = [held.name for held in bench.jobs_of(name)]
    assert len(made) == len(set(made)) == len(script.outcomes)
    assert (end, task.ti.try_number) == ("success" if script.succeeds else "failed", script.tries)
    assert published["checkpoint_uri"] == script.newest
    assert published["job_name"] == made[-1]
    if script.succeeds:
        assert task.result["checkpoint_uri"] == script.newest
        assert task.result["attempts"] == len(script.outcomes)
        assert task.result["preemptions"] == script.verdicts.count("preempted")


@pytest.mark.parametrize("seed", SEEDS)
def test_any_server_and_any_course_of_a_training(tmp_path, monkeypatch, triggerer, seed):
    """Whatever the server chooses and whatever happens: the right jobs, verdicts, tries and XComs."""
    scripts = {f"train_{i}": Script.drawn(f"{seed}-{i}") for i in range(TRAININGS)}
    bench = Bench(tmp_path, monkeypatch, triggerer, seed, Quirks.drawn(seed), scripts)
    for name, (task, end) in bench.run().items():
        check(bench, name, task, end)
    assert bench.server.jobs.two_at_once == []


def test_an_outage_while_everything_waits_costs_nothing(tmp_path, monkeypatch, triggerer):
    """The API is out from before the first look until each training is at work: one try, one job each."""
    scripts = {f"train_{i}": Script([Outcome("preempted"), Outcome("finish")]) for i in range(3)}
    bench = Bench(tmp_path, monkeypatch, triggerer, 1000, Quirks(), scripts)
    bench.outage = len(scripts)
    for name, (task, end) in bench.run().items():
        check(bench, name, task, end)
    assert bench.refused >= bench.outage
    assert bench.server.jobs.two_at_once == []


def test_each_of_many_finds_itself_in_a_listing_of_pages(tmp_path, monkeypatch, triggerer):
    """Seven jobs a page whatever is asked for, opaque tokens, no events: each training gets its own end."""
    scripts = {f"train_{i:02}": Script([Outcome("preempted"), Outcome("finish")]) for i in range(12)}
    bench = Bench(tmp_path, monkeypatch, triggerer, 1001, Quirks(lists_events=False), scripts)
    for name, (task, end) in bench.run().items():
        check(bench, name, task, end)
    assert "ListJobs" in bench.server.calls


def test_the_last_try_leaves_no_job_behind(tmp_path, monkeypatch, triggerer):
    """Out of sight for longer than the budget, with no try left: the operator's last word cancels the job."""
    bench = Bench(tmp_path, monkeypatch, triggerer, 1002, Quirks(), {"train": Script([Outcome("cleared")])})
    forsake = Conductor.forsake

    def when_the_api_is_back(conductor, error):
        bench.server.outage = 0
        forsake(conductor, error)

    def interrupted(running):
        bench.until_running(running.ti.xcoms["job_name"])
        bench.server.out(10**6)
        return ""

    monkeypatch.setattr(Conductor, "forsake", when_the_api_is_back)
    with bench.server:
        task = bench.task("train", error_budget=0.2)
        task.ti.max_tries = 0
        assert task.run(interrupted) == "failed"
    assert "out of sight" in task.errors[-1]
    assert [held.alive for held in bench.jobs_of("train")] == [False]
