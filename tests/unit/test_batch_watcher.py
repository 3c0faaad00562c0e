"""The shared watcher: few calls, every end seen, errors endured, nothing blocked."""

from __future__ import annotations

import asyncio
import gc

import pytest
from google.api_core import exceptions
from google.cloud.batch_v1 import Job, JobStatus, Task

from airflow_resume_provider.attempts.observation import GONE
from airflow_resume_provider.batch.subscription import Subscription
from airflow_resume_provider.batch.watcher import JobWatcher, watcher

PARENT = "projects/p/locations/us-central1"
DAY = "20261130"


def name(number):
    """The n-th job's name."""
    return f"{PARENT}/jobs/j{number}"


class FakeApi:
    """Answers from a dictionary; can ignore filters, hide jobs and fail."""

    def __init__(self, number=3):
        self.states = {name(i): JobStatus.State.RUNNING for i in range(number)}
        self.counts = {}
        self.hidden = set()
        self.listed = self.got = 0
        self.error = None
        self.everything = []
        self.page = 1000
        self.closed = self.cannot_list = False
        self.filters = set()

    def job(self, job_name):
        job = Job(name=job_name, labels={"resume_day": DAY})
        job.status.state = self.states[job_name]
        if job_name in self.counts:
            job.status.task_groups["group0"] = JobStatus.TaskGroupStatus(counts=self.counts[job_name])
        return job

    async def list_jobs(self, parent, label_filter):
        await asyncio.sleep(0)
        self.filters.add(label_filter)
        if self.error is not None:
            raise self.error
        if self.cannot_list:
            raise exceptions.InvalidArgument("filter")
        jobs = [self.job(n) for n in self.states if n not in self.hidden] + self.everything
        for start in range(0, max(1, len(jobs)), self.page):
            self.listed += 1
            yield [Job.pb(job) for job in jobs[start : start + self.page]]

    async def get_job(self, job_name):
        await asyncio.sleep(0)
        self.got += 1
        if self.error is not None:
            raise self.error
        if job_name not in self.states:
            raise exceptions.NotFound("no such job")
        return Job.pb(self.job(job_name))

    async def list_tasks(self, job_name):
        return [Task(name=f"{job_name}/taskGroups/group0/tasks/0")]

    async def close(self):
        self.closed = True


def watching(api, clock=None, **fields):
    """A watcher of this API."""

    async def connect():
        return api

    return JobWatcher(PARENT, connect, **({"clock": clock} if clock else {}))


def interest(number, **fields):
    """An interest in the n-th job."""
    return Subscription(job_name=name(number), day=DAY, interval=0.01, **fields)


async def until(condition, seconds=5):
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_many_jobs_share_one_listing():
    """A hundred jobs cost one call a look, not a hundred."""
    api = FakeApi(100)
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(100)]
    await until(lambda: all(s.looks >= 3 for s in mine))
    assert api.got == 0
    assert api.listed <= min(s.looks for s in mine) + 2
    assert api.filters == {f'labels.resume_day="{DAY}"'}


async def test_one_job_is_asked_for_by_itself():
    """A listing of a whole day would be dearer than one read."""
    api = FakeApi(1)
    mine = watching(api).subscribe(interest(0))
    await until(lambda: mine.looks >= 2)
    assert api.listed == 0


async def test_few_jobs_among_many_pages_are_asked_for_by_themselves():
    """Three jobs of a day with a thousand finished ones: three reads instead of ten pages."""
    api = FakeApi(3)
    api.everything = [Job(name=name(1000 + i)) for i in range(1000)]
    api.page = 100
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.looks >= 5 for s in mine))
    assert api.listed <= 22
    assert api.got >= 6


async def test_each_change_is_told_once():
    """A change of state wakes the one who waits; sameness wakes nobody."""
    api = FakeApi(2)
    shared = watching(api)
    one, other = shared.subscribe(interest(0)), shared.subscribe(interest(1))
    await until(lambda: one.looks and other.looks)
    one.changed.clear()
    other.changed.clear()
    api.states[name(0)] = JobStatus.State.FAILED
    await until(one.changed.is_set)
    assert one.seen.state == "FAILED"
    assert not other.changed.is_set()


async def test_a_failed_task_of_a_running_job_is_news():
    """One node of several is lost while the job runs on."""
    api = FakeApi(1)
    mine = watching(api).subscribe(interest(0))
    await until(lambda: mine.looks)
    mine.changed.clear()
    api.counts[name(0)] = {"RUNNING": 3, "FAILED": 1}
    await until(mine.changed.is_set)
    assert mine.seen.failed_tasks == 1


async def test_servers_that_ignore_the_filter_are_endured():
    """Foreign jobs in the listing change nothing."""
    api = FakeApi(3)
    api.everything = [Job(name=f"{PARENT}/jobs/foreign")]
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.looks for s in mine))
    assert [s.seen.name for s in mine] == [name(i) for i in range(3)]


async def test_projects_by_number_are_the_same_projects():
    """The API may name the project by its number; a job is recognised by its place in it."""
    api = FakeApi(3)
    api.everything = [api.job(n) for n in api.states]
    for job in api.everything:
        job.name = job.name.replace("projects/p/", "projects/123456/")
    api.hidden = set(api.states)
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.looks >= 2 for s in mine))
    assert api.got == 0


async def test_a_job_that_the_listing_does_not_show_is_asked_for():
    """A label or a filter that is late does not hide a job."""
    api = FakeApi(3)
    api.hidden = {name(1)}
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.looks >= 2 for s in mine))
    assert api.got >= 2


async def test_a_server_that_cannot_list_by_label_is_asked_for_each(caplog):
    """A filter that is refused does not end the watch."""
    api = FakeApi(3)
    api.cannot_list = True
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.looks >= 2 for s in mine))
    assert caplog.text.count("does not list jobs by label") == 1


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ServiceUnavailable("x"),
        exceptions.GatewayTimeout("x"),
        exceptions.TooManyRequests("x"),
        exceptions.BadGateway("x"),
        exceptions.DeadlineExceeded("x"),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
async def test_passing_errors_do_not_end_the_watch(error):
    """429, 5xx, deadlines and resets pass; the job's end is seen afterwards."""
    api = FakeApi(3)
    api.error = error
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(3)]
    await until(lambda: all(s.failing_since for s in mine))
    assert not any(s.changed.is_set() for s in mine)
    api.error = None
    api.states[name(0)] = JobStatus.State.SUCCEEDED
    await until(lambda: mine[0].seen is not None)
    assert mine[0].seen.state == "SUCCEEDED"
    assert mine[0].failing_since == 0


async def test_errors_have_a_budget():
    """What fails for longer than its budget is given up, with the error at hand."""
    now = [1000.0]
    api = FakeApi(2)
    api.error = exceptions.ServiceUnavailable("x")
    shared = watching(api, clock=lambda: now[0])
    mine = [shared.subscribe(interest(i, error_budget=600)) for i in range(2)]
    await until(lambda: mine[0].failing_since == 1000)
    now[0] = 1599.0
    await asyncio.sleep(0.05)
    assert not mine[0].given_up
    now[0] = 1600.0
    await until(lambda: mine[0].given_up and mine[1].given_up)


async def test_a_denied_permission_is_not_waited_for():
    """403 does not pass by itself: three in a row are enough."""
    api = FakeApi(2)
    api.error = exceptions.PermissionDenied("batch.jobs.list")
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(2)]
    await until(lambda: mine[0].given_up)
    assert "batch.jobs.list" in str(mine[0].error)


async def test_not_found_is_not_gone_at_once():
    """Just after its creation, and at scale, a job may not be found for minutes."""
    now = [1000.0]
    api = FakeApi(0)
    mine = watching(api, clock=lambda: now[0]).subscribe(interest(0, not_found_grace=300))
    await until(lambda: mine.missing_since)
    now[0] = 1299.0
    await asyncio.sleep(0.05)
    assert mine.seen is None
    now[0] = 1300.0
    await until(lambda: mine.seen is not None)
    assert mine.seen.state == GONE


async def test_a_job_seen_being_deleted_is_gone_at_once():
    """Nobody waits for a job that was seen to be deleted."""
    api = FakeApi(1)
    api.states[name(0)] = JobStatus.State.DELETION_IN_PROGRESS
    mine = watching(api).subscribe(interest(0, not_found_grace=300))
    await until(lambda: mine.looks)
    del api.states[name(0)]
    await until(lambda: mine.seen.state == GONE)


async def test_a_new_trigger_is_served_at_once():
    """Whoever comes during the pause does not wait for a whole period."""
    api = FakeApi(2)
    shared = watching(api)
    first = shared.subscribe(Subscription(job_name=name(0), day=DAY, interval=30))
    await until(lambda: first.looks)
    second = shared.subscribe(Subscription(job_name=name(1), day=DAY, interval=30))
    await until(lambda: second.looks, seconds=3)


async def test_the_last_one_out_closes_the_connection():
    """With the last subscription the loop ends and gives its connection back."""
    api = FakeApi(1)
    shared = watching(api)
    mine = shared.subscribe(interest(0))
    await until(lambda: mine.looks)
    shared.unsubscribe(mine)
    await until(lambda: api.closed)
    assert len(shared) == 0


async def test_one_watcher_per_connection_and_place_of_each_loop():
    """Triggers of one process share; other loops, connections and places do not."""

    async def connect():
        return FakeApi()

    one = watcher(("a", None, PARENT), PARENT, connect)
    assert watcher(("a", None, PARENT), PARENT, connect) is one
    assert watcher(("b", None, PARENT), PARENT, connect) is not one


async def test_nothing_blocks_the_loop(caplog):
    """asyncio's debug mode finds no callback that takes long, with hundreds of jobs."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.25
    api = FakeApi(300)
    shared = watching(api)
    mine = [shared.subscribe(interest(i)) for i in range(300)]
    gc.collect()
    caplog.clear()
    await until(lambda: all(s.looks >= 3 for s in mine), seconds=20)
    assert not [r for r in caplog.records if "took" in r.getMessage()]
