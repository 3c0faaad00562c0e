"""A training that commits nothing for too long is noticed from the store, and one that commits is not."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_resume_provider.attempts.event import EventKind
from airflow_resume_provider.attempts.observation import EventSeen, JobSeen
from airflow_resume_provider.checkpoints import Lineage
from airflow_resume_provider.operators.blocking import wait
from airflow_resume_provider.testing.stack import LocalStack
from airflow_resume_provider.triggers import stall
from airflow_resume_provider.triggers.stall import StallWatch
from tests.integration.test_operator_stack import job, trigger

PARENT = "projects/local-project/locations/us-central1"


@pytest.fixture(scope="module")
def stack():
    """One stack for this file."""
    with LocalStack() as running:
        yield running


@pytest.fixture
def hook(stack, monkeypatch):
    """The hook, pointed at the stack."""
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

    stack.reset()
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stall, "SHORTEST_PAUSE", 0.1)
    return ResumableBatchHook()


def commit(uri, step):
    """A checkpoint of attempt 1."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "weights").write_text(str(step))
        Lineage.open(uri).commit(directory, attempt=1, step=step)


def test_a_stall_is_an_event(hook):
    """The job runs and commits nothing: the trigger says so, and how long it waited."""
    created, _ = hook.submit(job("sleep 60"), PARENT, "j1")
    limits = {"lineage": "gs://resume/stall/a", "attempt": 1, "seconds": 1.5}
    event = wait(trigger(created.name, stall=limits))
    assert event.kind is EventKind.STALLED
    assert "no new checkpoint for" in event.message


async def test_commits_hold_the_stall_off(hook):
    """With a commit every now and then no stall is called, until they stop."""
    uri = "gs://resume/stall/b"
    created, _ = await asyncio.to_thread(hook.submit, job("sleep 60"), PARENT, "j1")
    limits = {"lineage": uri, "attempt": 1, "seconds": 2.5}
    began = time.monotonic()
    watched = asyncio.create_task(asyncio.to_thread(wait, trigger(created.name, stall=limits)))
    for step in range(1, 6):
        await asyncio.sleep(1)
        await asyncio.to_thread(commit, uri, step)
        assert not watched.done()
    event = await asyncio.wait_for(watched, 30)
    assert event.kind is EventKind.STALLED
    assert time.monotonic() - began > 5


async def test_a_store_that_cannot_be_asked_is_no_stall(monkeypatch):
    """Could not look is not "nothing there"."""
    monkeypatch.setattr(stall, "SHORTEST_PAUSE", 0.01)
    log = SimpleNamespace(info=lambda *arguments: looked.set())
    looked = asyncio.Event()
    watching = StallWatch(SimpleNamespace(log=log, stall={}), 0.02)
    monkeypatch.setattr(watching, "_newest_commit", lambda: 1 / 0)
    event = EventSeen(description="Job state is set from SCHEDULED to RUNNING", time=1.0)
    watching.saw(JobSeen(name="j", state="RUNNING", events=(event,)))
    for _ in range(3):
        looked.clear()
        await asyncio.wait_for(looked.wait(), 5)
    assert not watching.stalled
    await watching.stop()
