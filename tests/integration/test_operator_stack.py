"""Hook, trigger and watcher with Google's own clients against the local stack, over gRPC and REST."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import uuid

import pytest
from google.cloud.batch_v1 import JobStatus

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.placement import Placement
from airflow_resume_provider.attempts.verdict import Kind, judge
from airflow_resume_provider.batch import clients, jobs, labels
from airflow_resume_provider.errors import JobNotOurs
from airflow_resume_provider.hooks.batch import ResumableBatchHook
from airflow_resume_provider.testing.faults import Plan, api_error, preempt
from airflow_resume_provider.testing.stack import LocalStack
from airflow_resume_provider.triggers.train import TrainAttemptTrigger

PARENT = "projects/local-project/locations/us-central1"
DAY = labels.day_of(0)


class RestOnly:
    """A proxy that lets HTTP/1.1 through and turns HTTP/2 away, as a server that speaks REST only does."""

    def __init__(self, target):
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection):
        with connection:
            head = connection.recv(65536)
            if head.startswith(b"PRI "):
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                return
            with socket.create_connection(self._target) as upstream:
                upstream.sendall(head)
                back = threading.Thread(target=_pump, args=(upstream, connection), daemon=True)
                back.start()
                _pump(connection, upstream)
                back.join()

    def close(self):
        self._socket.close()


def _pump(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def shared_stack():
    """One stack for this file."""
    with LocalStack() as running:
        yield running


@pytest.fixture
def stack(shared_stack):
    """The stack, with nothing in it and nothing going wrong."""
    shared_stack.reset()
    shared_stack.set_plan(Plan())
    return shared_stack


@pytest.fixture(params=["grpc", "rest"])
def hook(request, stack, monkeypatch):
    """The hook, over either transport."""
    clients.speaks_grpc.cache_clear()
    proxy = RestOnly(stack.batch_endpoint) if request.param == "rest" else None
    environment = {**stack.environment, "RESUME_TRIGGER_MIN_SECONDS": "0"}
    if proxy:
        environment["BATCH_EMULATOR_HOST"] = f"http://{proxy.address}/"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = ResumableBatchHook()
    assert type(made.get_conn().transport).__name__.lower().find(request.param) > 0
    yield made
    if proxy:
        proxy.close()


def job(command, training="t1", attempt=1):
    """A job that runs this shell command."""
    spec = {
        "labels": {labels.DAY: DAY, labels.TRAINING: training, labels.ATTEMPT: str(attempt)},
        "task_groups": [{"task_count": 1, "task_spec": {"runnables": [{"script": {"text": command}}]}}],
        "allocation_policy": {
            "location": {"allowed_locations": Placement(region="us-central1").allowed_locations},
            "instances": [{"policy": {"provisioning_model": "SPOT", "machine_type": "e2-standard-4"}}],
        },
    }
    return jobs.message(spec)


def trigger(name, **fields):
    """A trigger of this job."""
    hold = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, "job_name": name, "token": "x"}
    defaults = {"job_name": name, "hold": hold, "carry": {"attempt": 1}, "submitted": 0.0}
    return TrainAttemptTrigger(**{**defaults, "poll_interval": 0.2, "minimum_seconds": 0, **fields})


async def fired(one):
    """The trigger's event, after what Airflow does to a trigger on its way: serialize and rebuild."""
    path, arguments = one.serialize()
    assert path == "airflow_resume_provider.triggers.train.TrainAttemptTrigger"
    rebuilt = TrainAttemptTrigger(**json.loads(json.dumps(arguments)))
    events = [event.payload async for event in rebuilt.run()]
    assert len(events) == 1
    return AttemptEvent.from_dict(json.loads(json.dumps(events[0])))


async def submitted(hook, command, job_id="j1", **fields):
    """Submit a job without blocking the loop."""
    created, _ = await asyncio.to_thread(hook.submit, job(command, **fields), PARENT, job_id)
    return created.name


async def test_an_end_is_seen_with_its_exit_code(hook):
    """The event of a failed job carries the task's exit code."""
    event = await fired(trigger(await submitted(hook, "exit 3")))
    verdict = judge(event.job)
    assert (event.kind, verdict.kind, verdict.exit_code) == (EventKind.ENDED, Kind.USER_ERROR, 3)
    assert event.carry == {"attempt": 1}


async def test_preemption_is_seen_as_preemption(hook, stack):
    """Spot preemption: 50001, whatever the process did."""
    stack.set_plan(Plan(preempt(job=1, after_seconds=0.2, grace_seconds=0.2)))
    event = await fired(trigger(await submitted(hook, "sleep 60")))
    assert judge(event.job).kind is Kind.PREEMPTED


async def test_many_triggers_share_one_watch(hook, stack):
    """Twenty deferred trainings of one process: each gets its own end."""
    names = [await submitted(hook, f"sleep 1; exit {i % 3}", f"j{i}") for i in range(20)]
    events = await asyncio.gather(*(fired(trigger(name)) for name in names))
    assert [event.job_name for event in events] == names
    expected = ["SUCCEEDED" if i % 3 == 0 else "FAILED" for i in range(20)]
    assert [event.job.state for event in events] == expected


async def test_nothing_that_blocks_is_called_on_the_loop(hook, monkeypatch):
    """Connections, credentials, sockets and sleeps belong into threads; asyncio's debug mode agrees."""
    loop, mine = asyncio.get_running_loop(), threading.get_ident()
    loop.set_debug(True)
    guilty = []

    def watched(owner, name):
        original = getattr(owner, name)

        def checked(*arguments, **named):
            if threading.get_ident() == mine:
                guilty.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, checked)

    watched(time, "sleep")
    watched(socket, "create_connection")
    watched(socket, "getaddrinfo")
    watched(socket.socket, "connect")
    watched(ResumableBatchHook, "__init__")  # it fetches the connection
    watched(ResumableBatchHook, "get_credentials")
    clients.speaks_grpc.cache_clear()
    names = [await submitted(hook, "exit 3", f"j{i}") for i in range(3)]
    events = await asyncio.gather(*(fired(trigger(name)) for name in names))
    assert {event.job.state for event in events} == {"FAILED"}
    assert guilty == []


async def test_errors_of_the_api_do_not_end_the_watch(hook, stack):
    """A third of all reads fail with 503, 429 and 504: the end is seen all the same."""
    faults = [api_error(m, code=c, rate=0.3) for m in ("GetJob", "ListJobs", "ListTasks") for c in CODES]
    stack.set_plan(Plan(*faults, seed=1))
    names = [await submitted(hook, "sleep 0.5; exit 3", f"j{i}") for i in range(5)]
    events = await asyncio.gather(*(fired(trigger(name)) for name in names))
    assert {event.job.state for event in events} == {"FAILED"}


CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


async def test_an_api_that_stays_away_is_an_event(hook, stack):
    """Beyond the budget the operator is told, and the job is left alone."""
    name = await submitted(hook, "sleep 60")
    stack.set_plan(Plan(api_error("GetJob", code="UNAVAILABLE")))
    event = await fired(trigger(name, error_budget=1.0))
    assert event.kind is EventKind.UNREACHABLE
    assert stack.jobs()[0].state in ("SCHEDULED", "QUEUED", "RUNNING")


async def test_a_job_deleted_from_outside_is_an_event(hook):
    """Somebody deletes the job: that is seen."""
    name = await submitted(hook, "sleep 60")
    watched = asyncio.create_task(fired(trigger(name, not_found_grace=1.0)))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(lambda: hook.get_conn().delete_job(request={"name": name}))
    event = await asyncio.wait_for(watched, 20)
    assert judge(event.job).kind in (Kind.CANCELLED, Kind.LOST)


async def test_deadlines_are_absolute(hook):
    """A trigger that is rebuilt long after its deadline fires at once."""
    name = await submitted(hook, "sleep 60")
    assert (await fired(trigger(name, deadline=1.0))).kind is EventKind.DEADLINE


async def test_the_queue_deadline_says_why(hook, stack):
    """A job that waits for capacity is an event with the reason in words."""
    from airflow_resume_provider.attempts.verdict import waiting_reason
    from airflow_resume_provider.testing.faults import stock_out

    stack.set_plan(Plan(stock_out(provisioning="SPOT")))
    name = await submitted(hook, "true")
    event = await fired(trigger(name, queue_deadline=time.time() + 1.5))
    assert event.kind is EventKind.QUEUE_TIMEOUT
    assert waiting_reason(event.job).kind is Kind.STOCKED_OUT


def test_a_second_submission_makes_no_second_job(hook, stack):
    """The request id repeats the answer; where that is forgotten, the taken name leads to adoption."""
    assert hook.submit(job("sleep 60"), PARENT, "j1")[1] is False
    assert hook.submit(job("sleep 60"), PARENT, "j1")[0].name == f"{PARENT}/jobs/j1"
    assert len(stack.jobs()) == 1


def test_a_taken_name_is_adopted(hook, stack, monkeypatch):
    """After the hour in which a request id counts, AlreadyExists leads to the same job."""
    hook.submit(job("sleep 60"), PARENT, "j1")
    monkeypatch.setattr(identity, "request_id", lambda name: str(uuid.uuid4()))
    created, adopted = hook.submit(job("sleep 60"), PARENT, "j1")
    assert (created.name, adopted, len(stack.jobs())) == (f"{PARENT}/jobs/j1", True, 1)


def test_an_answer_that_is_lost_makes_no_second_job(hook, stack):
    """502 after the server has accepted: the repetition meets its own job."""
    stack.set_plan(Plan(api_error("CreateJob", code="BAD_GATEWAY", times=1, after_effect=True)))
    hook.submit(job("sleep 60"), PARENT, "j1")
    assert len(stack.jobs()) == 1


def test_somebody_elses_job_is_not_adopted(hook):
    """A name that is taken by another training is an error."""
    hook.submit(job("sleep 60", training="other"), PARENT, "j1")
    with pytest.raises(JobNotOurs):
        hook.submit(job("sleep 60"), PARENT, "j1")


def test_cancelling_twice_and_too_late_is_no_error(hook, stack):
    """What is over, or being cancelled, or gone, cannot be cancelled, and need not be."""
    created, _ = hook.submit(job("sleep 60"), PARENT, "j1")
    assert hook.cancel(created.name)
    hook.cancel(created.name)
    assert hook.look(f"{PARENT}/jobs/nowhere") is None
    assert hook.cancel(f"{PARENT}/jobs/nowhere") is None


def test_states_are_read_as_words(hook):
    """The client's states and the observation's are the same words."""
    hook.submit(job("sleep 60"), PARENT, "j1")
    assert hook.look(f"{PARENT}/jobs/j1").state in {state.name for state in JobStatus.State}
