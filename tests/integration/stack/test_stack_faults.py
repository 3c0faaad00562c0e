"""The plan: what it does to calls, to jobs that wait, to events and to the store."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pytest
from google.api_core import exceptions
from stack_clients import PARENT, Client, State, descriptions, job_of, name_of, script, until

from airflow_resume_provider.testing import LocalStack, Plan
from airflow_resume_provider.testing.faults import (
    ClockSkew,
    EventDisorder,
    LateJob,
    api_error,
    latency,
    preempt,
    quota,
    stock_out,
    store,
    unknown_type,
)

CODES = [
    ("UNAVAILABLE", exceptions.ServiceUnavailable),
    ("DEADLINE_EXCEEDED", (exceptions.DeadlineExceeded, exceptions.GatewayTimeout)),
    ("RESOURCE_EXHAUSTED", (exceptions.ResourceExhausted, exceptions.TooManyRequests)),
    ("INTERNAL", (exceptions.InternalServerError,)),
    ("PERMISSION_DENIED", (exceptions.PermissionDenied, exceptions.Forbidden)),
    ("NOT_FOUND", exceptions.NotFound),
]


@pytest.mark.parametrize(("code", "error"), CODES, ids=[code for code, _ in CODES])
def test_calls_fail_with_the_planned_code(
    any_client: Client, stack: LocalStack, code: str, error: type[Exception]
) -> None:
    """The client's own exception of that code, for the named method and as often as planned."""
    stack.set_plan(Plan(api_error("ListJobs", code=code, times=2)))
    for _ in range(2):
        with pytest.raises(error):
            any_client.list_jobs(parent=PARENT)
    assert any_client.list_jobs(parent=PARENT) == []


def test_a_502_of_a_proxy_is_no_json(stack: LocalStack) -> None:
    """BAD_GATEWAY answers REST with an HTML page and gRPC with UNAVAILABLE."""
    stack.set_plan(Plan(api_error(code="BAD_GATEWAY")))
    rest, grpc_ = Client(stack.batch_endpoint, "rest"), Client(stack.batch_endpoint)
    with pytest.raises(exceptions.BadGateway):
        rest.list_jobs(parent=PARENT)
    with pytest.raises(exceptions.ServiceUnavailable, match="502"):
        grpc_.list_jobs(parent=PARENT)
    rest.close()
    grpc_.close()


def test_an_error_after_the_effect_leaves_the_job_behind(any_client: Client, stack: LocalStack) -> None:
    """CreateJob fails, the job is there, and the second try is ALREADY_EXISTS.

    https://github.com/nextflow-io/nextflow/pull/7610
    """
    stack.set_plan(Plan(api_error("CreateJob", after_effect=True, times=1)))
    with pytest.raises(exceptions.ServiceUnavailable):
        any_client.submit(job_of(script("true")))
    with pytest.raises(exceptions.Conflict):
        any_client.submit(job_of(script("true")))
    assert any_client.wait("job-1").status.state == State.SUCCEEDED


def test_the_same_seed_gives_the_same_errors(client: Client, stack: LocalStack) -> None:
    """A rate throws dice; the same seed throws the same."""

    def outcomes(seed: int) -> list[bool]:
        stack.set_plan(Plan(api_error("ListJobs", rate=0.5), seed=seed))
        found = []
        for _ in range(30):
            try:
                client.list_jobs(parent=PARENT)
                found.append(True)
            except exceptions.ServiceUnavailable:
                found.append(False)
        return found

    first = outcomes(3)
    assert first == outcomes(3)
    assert first != outcomes(4)
    assert 5 < sum(first) < 25


def test_latency_delays_calls_and_nothing_else(any_client: Client, stack: LocalStack) -> None:
    """The named method is slow; the others are not; a client's own deadline is kept."""
    stack.set_plan(Plan(latency(0.4, "GetJob")))
    any_client.submit(job_of(script("true")))
    began = time.monotonic()
    any_client.get_job(name=name_of("job-1"))
    assert time.monotonic() - began >= 0.4
    if any_client.transport != "rest":
        with pytest.raises(exceptions.DeadlineExceeded):
            any_client.get_job(name=name_of("job-1"), timeout=0.1)


def test_slow_calls_do_not_hold_each_other_up(stack: LocalStack) -> None:
    """A hundred calls of half a second each take about half a second together."""
    from concurrent.futures import ThreadPoolExecutor

    client = Client(stack.batch_endpoint)
    stack.set_plan(Plan(latency(0.5, "ListJobs")))
    began = time.monotonic()
    with ThreadPoolExecutor(100) as threads:
        list(threads.map(lambda _: client.list_jobs(parent=PARENT), range(100)))
    assert time.monotonic() - began < 100 * 0.5 / 4, "far from one after the other"
    client.close()


def test_a_stock_out_holds_the_job_in_scheduled_and_says_so(client: Client, stack: LocalStack) -> None:
    """The event is the cloud's; the job runs when there are VMs again."""
    stack.set_plan(Plan(stock_out(provisioning="SPOT")))
    client.submit(job_of(script("true")))
    job = until(
        lambda: (j := client.get_job(name=name_of("job-1"))).status.status_events[1:] and j, "the event"
    )
    assert job.status.state == State.SCHEDULED
    assert "CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED" in descriptions(job)[-1]
    assert job.status.status_events[-1].type_ == "OPERATIONAL_INFO"
    stack.set_plan(Plan())
    assert client.wait("job-1").status.state == State.SUCCEEDED


def test_a_stock_out_can_be_of_one_zone_or_model_only(client: Client, stack: LocalStack) -> None:
    """Other zones are tried; other provisioning models are not concerned."""
    stack.set_plan(Plan(stock_out(zones=["us-central1-a"], provisioning="SPOT")))
    client.run(job_of(script("true")), "spot")
    client.run(job_of(script("true"), provisioning="STANDARD"), "standard")
    assert "zones/us-central1-b/" in descriptions(client.tasks("spot")[0])[-1]
    assert "zones/us-central1-a/" in descriptions(client.tasks("standard")[0])[-1]


def test_an_unknown_machine_or_accelerator_fails_the_job_before_any_task_runs(
    client: Client, stack: LocalStack
) -> None:
    """From SCHEDULED to FAILED, with Compute Engine's refusal in an event; its tasks are UNEXECUTED."""
    stack.set_plan(Plan(unknown_type("n1-*")))
    job = client.run(job_of(script("echo ran")))
    assert "CODE_GCE_BAD_REQUEST" in descriptions(job)[-2]
    assert "from SCHEDULED to FAILED" in descriptions(job)[-1]
    assert job.status.task_groups["group0"].counts == {"UNEXECUTED": 1}
    assert stack.logs("job-1") == ""


@pytest.mark.parametrize(
    ("scheduled", "state", "words"),
    [
        (
            False,
            "QUEUED",
            "due to inadequate quotas [Quota: NVIDIA_T4_GPUS, limit: 0, usage: 0, wanted: 1.].",
        ),
        (True, "SCHEDULED", "CODE_GCE_QUOTA_EXCEEDED"),
    ],
)
def test_a_quota_holds_the_job_up_and_says_so(
    client: Client, stack: LocalStack, scheduled: bool, state: str, words: str
) -> None:
    """Found by Batch while QUEUED or by Compute Engine while SCHEDULED; such a job can be cancelled."""
    stack.set_plan(Plan(quota("NVIDIA_T4_GPUS", wanted=1, scheduled=scheduled)))
    client.submit(job_of(script("true")))
    job = until(
        lambda: (j := client.get_job(name=name_of("job-1"))) and words in "".join(descriptions(j)) and j,
        "the event",
    )
    assert job.status.state.name == state
    client.cancel_job(name=name_of("job-1"))
    assert client.get_job(name=name_of("job-1")).status.state == State.CANCELLED


def test_a_job_can_be_late_to_be_found(any_client: Client, stack: LocalStack) -> None:
    """NOT_FOUND right after CreateJob is not "gone".

    https://github.com/nextflow-io/nextflow/issues/5422
    """
    stack.set_plan(Plan(LateJob(seconds=0.5)))
    any_client.submit(job_of(script("true")))
    with pytest.raises(exceptions.NotFound):
        any_client.get_job(name=name_of("job-1"))
    assert any_client.list_jobs(parent=PARENT) == []
    stack.set_plan(Plan())
    assert any_client.get_job(name=name_of("job-1")).name == name_of("job-1")


def test_events_can_come_in_another_order(client: Client, stack: LocalStack) -> None:
    """Only their times tell the order then."""
    client.run(job_of(script("true")))
    straight = descriptions(client.tasks()[0])
    stack.set_plan(Plan(EventDisorder()))
    [task] = client.tasks()
    assert sorted(descriptions(task)) == sorted(straight)
    assert descriptions(task) != straight
    by_time = sorted(task.status.status_events, key=lambda event: event.event_time)
    assert [event.description for event in by_time] == straight


def test_the_servers_clock_can_be_off(client: Client, stack: LocalStack) -> None:
    """Times of new jobs are skewed, and still never go back within a job."""
    stack.set_plan(Plan(ClockSkew(seconds=3600)))
    made = client.submit(job_of(script("true")))
    assert made.create_time.timestamp() - time.time() > 3000
    done = client.wait("job-1")
    assert done.update_time > done.create_time


def test_the_store_can_fail_and_be_slow(stack: LocalStack) -> None:
    """Planned errors hit as often as planned; planned latency is kept."""
    url = f"{stack.storage_endpoint}/storage/v1/b/resume/o"
    stack.set_plan(Plan(store(status=503, times=1), store(latency_seconds=0.3, times=1)))
    with pytest.raises(urllib.error.HTTPError, match="503") as caught:
        urllib.request.urlopen(url)
    caught.value.close()
    began = time.monotonic()
    urllib.request.urlopen(url).close()
    assert time.monotonic() - began >= 0.3


def put(stack: LocalStack, name: str) -> None:
    """Create an object."""
    url = f"{stack.storage_endpoint}/upload/storage/v1/b/resume/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST")).close()


LINEAGE = "t/dag/task/run/-1/g1"


def training_job(attempt: int, text: str) -> object:
    """A job that belongs to a lineage."""
    from stack_clients import variables

    environment = variables(RESUME_LINEAGE=f"gs://resume/{LINEAGE}", RESUME_ATTEMPT=str(attempt))
    return job_of(script(text, environment=environment))


def test_a_job_is_preempted_after_its_nth_commit(client: Client, stack: LocalStack) -> None:
    """Only manifests of its own attempt count, and it has happened when the client hears of the commit."""
    stack.set_plan(Plan(preempt(after_commits=2, notice=False)))
    client.submit(training_job(1, "sleep 60"))
    client.wait("job-1", "RUNNING")
    for name in (
        "0001/checkpoints/000000/model.bin",
        "0001/checkpoints/000000/manifest.json",
        "0002/checkpoints/000001/manifest.json",
    ):
        put(stack, f"{LINEAGE}/attempts/{name}")
    assert stack.jobs()[0].vms
    put(stack, f"{LINEAGE}/attempts/0001/checkpoints/000001/manifest.json")
    assert not stack.jobs()[0].vms
    assert "50001" in descriptions(client.wait("job-1", "FAILED"))[-1]


def test_a_job_is_preempted_while_it_restores(client: Client, stack: LocalStack) -> None:
    """When it reads a checkpoint's bytes, not when it lists or reads a manifest."""
    put(stack, f"{LINEAGE}/attempts/0001/checkpoints/000000/model.bin")
    put(stack, f"{LINEAGE}/attempts/0001/checkpoints/000000/manifest.json")
    stack.set_plan(Plan(preempt(while_restoring=True, notice=False)))
    get = (
        "import os, urllib.request; store = os.environ['STORAGE_EMULATOR_HOST']; "
        "print(urllib.request.urlopen(store + '/resume/%s').read(), flush=True)"
    )
    base = f"{LINEAGE}/attempts/0001/checkpoints/000000/"
    reads = [f'python3 -c "{get % (base + name)}"' for name in ("manifest.json", "model.bin")]
    text = "\n".join([*reads, "sleep 60"])
    client.submit(training_job(2, text))
    job = client.wait("job-1", "FAILED")
    assert "50001" in descriptions(job)[-1]
    assert stack.logs("job-1").count("b'{}'") == 1
