"""The fence: what is a person's kill, and what is not."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from airflow_resume_provider.triggers import fence, killing
from airflow_resume_provider.triggers.fence import Hold, Ruling, rule

MINE = Hold(dag_id="d", task_id="t", run_id="r", map_index=-1, job_name="job-1", token="mine")


def published(token="mine", job_name="job-1"):
    """The newest hold, as `execute` publishes it."""
    return {"token": token, "job_name": job_name}


@pytest.mark.parametrize(
    ("state", "newest", "ruling"),
    [
        pytest.param("deferred", published(), Ruling.LEAVE, id="moved to another triggerer"),
        pytest.param("failed", published(), Ruling.CANCEL, id="marked failed"),
        pytest.param("success", published(), Ruling.CANCEL, id="marked success"),
        pytest.param("skipped", published(), Ruling.CANCEL, id="marked skipped"),
        pytest.param(None, published(), Ruling.CANCEL, id="cleared, nothing has begun"),
        pytest.param("queued", published(), Ruling.CANCEL, id="cleared, about to begin"),
        pytest.param("running", None, Ruling.CANCEL, id="cleared, the next try has begun"),
        pytest.param("deferred", published("new", "job-1"), Ruling.LEAVE, id="the next try adopted the job"),
        pytest.param("running", published("new", "job-1"), Ruling.LEAVE, id="the next try is adopting it"),
        pytest.param("deferred", published("new", "job-2"), Ruling.CANCEL, id="the next try has its own job"),
        pytest.param("deferred", None, Ruling.CANCEL, id="deferred without any hold"),
        pytest.param("up_for_retry", published(), Ruling.LEAVE, id="Airflow itself gave the try up"),
    ],
)
def test_each_situation_has_its_ruling(state, newest, ruling):
    """Task state and newest hold decide together."""
    assert rule(MINE, state, newest) is ruling


def test_a_worker_that_is_shut_down_leaves_its_job():
    """SIGTERM of a running task that is still meant to run is no kill."""
    assert rule(MINE, "running", published(), waiting="running") is Ruling.LEAVE
    assert rule(MINE, "failed", published(), waiting="running") is Ruling.CANCEL


def test_what_cannot_be_looked_up_is_left_alone(monkeypatch, caplog):
    """No answer from Airflow: the job goes on, and the log says how to end it by hand."""
    monkeypatch.setattr(fence, "task_state", lambda hold: 1 / 0)
    assert fence.ruling(MINE) is Ruling.LEAVE
    assert "gcloud batch jobs cancel job-1" in caplog.text


async def test_a_kill_outlives_airflows_interruption(monkeypatch):
    """Airflow interrupts on_kill after a second; the job is cancelled all the same."""
    began, release, done = threading.Event(), threading.Event(), threading.Event()

    def slow(trigger):
        began.set()
        release.wait(10)
        done.set()

    monkeypatch.setattr(killing, "_kill_if_meant", slow)
    kill = asyncio.create_task(killing.kill_detached(SimpleNamespace(job_name="job-1")))
    assert await asyncio.to_thread(began.wait, 5)
    kill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await kill
    release.set()
    assert await asyncio.to_thread(done.wait, 5)
