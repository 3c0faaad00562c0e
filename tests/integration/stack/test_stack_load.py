"""Many jobs at once, and long random trouble: nothing hangs, nothing is left, nothing contradicts itself."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import batch_v1
from google.cloud.batch_v1.services.batch_service.transports import BatchServiceGrpcAsyncIOTransport
from stack_clients import (
    ENDED,
    PARENT,
    Client,
    State,
    descriptions,
    job_of,
    name_of,
    processes,
    script,
    until,
)

from airflow_resume_provider.testing import LocalStack, Plan, Settings
from airflow_resume_provider.testing.faults import api_error, latency, preempt, vanish

SOAK_SECONDS = float(os.environ.get("RESUME_SOAK_SECONDS", "15"))


def handles() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_five_hundred_jobs_at_once(tmp_path: Path) -> None:
    """All are created at once by one asynchronous client and all succeed; lists stay quick meanwhile."""
    slowest = 0.0

    async def submit_all(endpoint: str) -> None:
        nonlocal slowest
        async with grpc.aio.insecure_channel(endpoint) as channel:
            client = batch_v1.BatchServiceAsyncClient(
                transport=BatchServiceGrpcAsyncIOTransport(channel=channel)
            )
            job = job_of(script("true"))
            made = [
                client.create_job(parent=PARENT, job_id=f"job-{n}", job=job, timeout=120) for n in range(500)
            ]
            await asyncio.gather(*made)
            while True:
                began = time.monotonic()
                pager = await client.list_jobs(parent=PARENT)
                states = Counter([found.status.state.name async for found in pager])
                slowest = max(slowest, time.monotonic() - began)
                if states["SUCCEEDED"] == 500:
                    return
                assert not states["FAILED"]
                await asyncio.sleep(0.5)

    with LocalStack(tmp_path) as stack:
        asyncio.run(asyncio.wait_for(submit_all(stack.batch_endpoint), 240))
        assert stack.status()["jobs"] == {"SUCCEEDED": 500}
        assert stack.status()["vms"] == 0
    print(f"slowest list of 500 jobs: {slowest:.2f} s")


def test_twenty_four_jobs_really_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits until all the others run too."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    text = f"touch {meeting}/$BATCH_JOB_UID; until [ $(ls {meeting} | wc -l) = 24 ]; do sleep 0.05; done"
    with LocalStack(tmp_path / "stack") as stack:
        client = Client(stack.batch_endpoint)
        for number in range(24):
            client.submit(job_of(script(text)), f"job-{number}")
        for number in range(24):
            assert client.wait(f"job-{number}", timeout=90).status.state == State.SUCCEEDED
        client.close()


def test_a_job_of_many_tasks_holds_nobody_else_up(tmp_path: Path) -> None:
    """Others are answered while thousands of tasks are made, and given up."""
    meanwhile: list[float] = []
    cancelled = threading.Event()

    def look(endpoint: str) -> None:
        client = Client(endpoint)
        while not cancelled.is_set():
            began = time.monotonic()
            client.list_jobs(parent=PARENT)
            meanwhile.append(time.monotonic() - began)
        client.close()

    with LocalStack(tmp_path, settings=Settings(max_vms=1)) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(job_of(script("exec sleep 60")), "first")
        client.wait("first", "RUNNING")
        looking = threading.Thread(target=look, args=(stack.batch_endpoint,))
        looking.start()
        try:
            client.submit(job_of(script("true"), task_count=2_500), "many")
            client.cancel_job(name=name_of("many"))
        finally:
            cancelled.set()
            looking.join()
        job = client.get_job(name=name_of("many"))
        client.close()
    assert job.status.state == State.CANCELLED
    assert dict(job.status.task_groups["group0"].counts) == {"UNEXECUTED": 2_500}
    print(f"slowest of {len(meanwhile)} lists meanwhile: {max(meanwhile):.2f} s")
    assert max(meanwhile) < 2  # much more than it takes, for a machine that is busy


class Soak:
    """Submits, cancels, deletes and preempts at random, under a plan of random faults."""

    def __init__(self, stack: LocalStack, seed: int) -> None:
        self.stack, self.dice = stack, random.Random(seed)
        self.client = Client(stack.batch_endpoint)
        self.created = 0

    def step(self) -> None:
        """One random act; the planned API errors are what a client has to live with."""
        try:
            self.dice.choice([self.submit, self.submit, self.cancel, self.delete, self.lose, self.look])()
        except (exceptions.ServiceUnavailable, exceptions.TooManyRequests, exceptions.NotFound):
            pass
        except exceptions.FailedPrecondition:
            pass  # cancelled at the end of its life

    def submit(self) -> None:
        """A job of a random kind."""
        self.created += 1
        text = self.dice.choice(
            ["true", "exit 3", "sleep 0.3", "sleep 1.7", "(setsid sleep 333.75 &) ; sleep 0.2"]
        )
        job = job_of(
            script(text), task_count=self.dice.choice([1, 1, 3]), max_retry_count=self.dice.choice([0, 2])
        )
        self.client.submit(job, f"job-{self.created}")

    def any_job(self) -> str:
        """One of the jobs that were created."""
        return f"job-{self.dice.randint(1, max(1, self.created))}"

    def cancel(self) -> None:
        """Begin to cancel."""
        self.client.begin("cancel_job", name=name_of(self.any_job()))

    def delete(self) -> None:
        """Begin to delete."""
        self.client.begin("delete_job", name=name_of(self.any_job()))

    def lose(self) -> None:
        """Lose a job's VMs in a random way, if it is there."""
        kind = self.dice.choice(["preempt", "vanish", "reboot", "recreate"])
        job = self.any_job()
        if any(found.id == job for found in self.stack.jobs()):
            self.stack.lose(job, kind, **({"grace": 0.1} if kind == "preempt" else {}))

    def look(self) -> None:
        """List everything."""
        self.client.list_jobs(parent=PARENT)


def consistent(job: batch_v1.Job, tasks: list[batch_v1.Task]) -> None:
    """What must hold for every finished job, whatever happened to it."""
    states = Counter(task.status.state.name for task in tasks)
    assert dict(job.status.task_groups["group0"].counts) == dict(states)
    texts = [text for text in descriptions(job) if text.startswith("Job state is set from ")]
    steps = [
        text.split(" for job ")[0].removeprefix("Job state is set from ").split(" to ") for text in texts
    ]
    assert [step[1] for step in steps[:-1]] == [step[0] for step in steps[1:]], (
        "each step begins where the last ended"
    )
    assert steps[-1][1] == job.status.state.name
    assert set(states) <= {"SUCCEEDED", "FAILED", "UNEXECUTED"}
    if job.status.state == State.SUCCEEDED:
        assert set(states) == {"SUCCEEDED"}
    if job.status.state == State.FAILED:
        assert states["FAILED"]


@pytest.mark.timeout(SOAK_SECONDS + 180)
def test_a_soak_with_random_faults_leaves_nothing_behind(tmp_path: Path) -> None:
    """No process, no file handle, no VM directory, no contradiction; RESUME_SOAK_SECONDS sets the length."""
    plan = Plan(
        api_error("*", rate=0.05),
        api_error("GetJob", code="RESOURCE_EXHAUSTED", rate=0.05),
        latency(0.0, jitter_seconds=0.02),
        preempt(after_seconds=0.1, jitter_seconds=0.5, grace_seconds=0.1, times=0, job="job-*5"),
        vanish(on_state="RUNNING", times=0, job="job-*7"),
        seed=11,
    )
    settings = Settings(stop_grace_seconds=0.2, report_timeout_seconds=0.2, max_vms=12)
    with LocalStack(tmp_path / "warm-up"):
        pass
    before = handles()
    with LocalStack(tmp_path / "stack", settings=settings, plan=plan) as stack:
        soak = Soak(stack, seed=7)
        deadline = time.monotonic() + SOAK_SECONDS
        while time.monotonic() < deadline:
            soak.step()
        stack.set_plan(Plan())
        until(lambda: not set(stack.status()["jobs"]) - ENDED, "every job to end", timeout=90)
        for job in soak.client.list_jobs(parent=PARENT):
            consistent(job, soak.client.list_tasks(parent=f"{job.name}/taskGroups/group0"))
        assert soak.created > SOAK_SECONDS
        until(lambda: stack.status()["vms"] == 0, "every VM to be gone")
        until(lambda: not list((tmp_path / "stack" / "vms").iterdir()), "every VM's disk to be wiped")
        assert list(processes("sleep\x00333.75")) == []
        soak.client.close()
    until(lambda: handles() <= before + 2, f"file handles to fall from {handles()} to {before}")
