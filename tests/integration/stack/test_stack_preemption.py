"""Losing VMs: Spot preemption with and without notice, and every other reserved exit code."""

from __future__ import annotations

import time

import pytest
from stack_clients import (
    Client,
    State,
    TaskState,
    container,
    descriptions,
    job_of,
    name_of,
    processes,
    script,
    until,
)

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing import LocalStack, Plan, preempt
from airflow_resume_provider.testing.faults import reboot, recreate, unresponsive, vanish

WATCH = """#!/usr/bin/env python3
import os, signal, sys, time, urllib.request
told = []
signal.signal(signal.SIGTERM, lambda *_: (print("TERM", flush=True), told.append(1)))
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/preempted"

def ask(how):
    return urllib.request.urlopen(urllib.request.Request(url + how, headers={"Metadata-Flavor": "Google"}))

now = ask("").headers["ETag"]  # without it, a change before the question would not be told
print("ready", flush=True)
print(ask(f"?wait_for_change=true&last_etag={now}").read().decode(), flush=True)
while not told:
    time.sleep(0.02)
sys.exit(3)
"""


def lines(stack: LocalStack, job: str = "job-1") -> list[str]:
    """What task 0 wrote."""
    found = stack.log_entries(job, 0)
    return [entry["message"] for entry in found if entry["log"] == "batch_task_logs"]


def ready(stack: LocalStack, job: str = "job-1") -> None:
    """Wait until the job's command has said so."""
    until(lambda: "ready" in lines(stack, job), "the command to be ready")


def test_a_preemption_gives_notice_then_takes_the_vm(client: Client, stack: LocalStack) -> None:
    """Metadata turns TRUE for who waits, SIGTERM comes once, the task fails with 50001."""
    client.submit(job_of(script(WATCH)))
    ready(stack)
    [where] = stack.preempt("job-1", grace=30)
    assert sorted(lines(stack)) == ["TERM", "TRUE", "ready"]
    job = client.wait("job-1", "FAILED")
    [task] = client.tasks()
    because = "due to Spot VM preemption with exit code 50001."
    text = f"Task state is updated from RUNNING to FAILED on {where} {because}"
    assert descriptions(task)[-1] == text
    assert task.status.status_events[-1].task_execution.exit_code == 50001
    assert f'"{text}"' in descriptions(job)[-1]


def test_a_vm_has_its_grace_and_no_more(client: Client, stack: LocalStack) -> None:
    """What ignores the signal runs on until the power goes."""
    client.submit(job_of(script("trap '' TERM; echo ready; sleep 60")))
    ready(stack)
    began = time.monotonic()
    stack.preempt("job-1", grace=0.5)
    assert time.monotonic() - began >= 0.5
    client.wait("job-1", "FAILED")


def test_a_preemption_without_notice_kills_at_once(client: Client, stack: LocalStack) -> None:
    """No signal, no change of metadata, the same exit code."""
    client.submit(job_of(script(WATCH)))
    ready(stack)
    stack.preempt("job-1", notice=False)
    client.wait("job-1", "FAILED")
    assert lines(stack) == ["ready"]
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 50001


def test_an_exit_with_0_after_the_notice_is_a_success(client: Client, stack: LocalStack) -> None:
    """What catches the notice and exits 0 makes the job SUCCEEDED although nothing is finished."""
    client.submit(job_of(script("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")))
    ready(stack)
    stack.preempt("job-1", grace=5)
    assert client.wait("job-1").status.state == State.SUCCEEDED


def test_an_error_after_the_notice_is_a_preemption(client: Client, stack: LocalStack) -> None:
    """Whatever exit code the dying command has, the task's is 50001."""
    client.submit(job_of(script("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")))
    ready(stack)
    began = time.monotonic()
    stack.preempt("job-1", grace=30)
    assert time.monotonic() - began < 20, "a VM on which nothing runs any more does not wait for its grace"
    client.wait("job-1", "FAILED")
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 50001


def test_the_rest_of_a_task_still_runs_within_the_grace(client: Client, stack: LocalStack) -> None:
    """A finaliser that follows the signalled command has what is left of the window, and no more."""
    train = script("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    client.submit(job_of(train, script("echo final; sleep 60; echo too late", always_run=True)))
    ready(stack)
    stack.preempt("job-1", grace=4)
    client.wait("job-1", "FAILED")
    assert [line for line in lines(stack) if line != "Terminated"] == ["ready", "final"]


INNER = """
import signal, sys, time
def stop(*_):
    print('inner TERM', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print('ready', flush=True)
time.sleep(60)
"""


def test_the_signal_reaches_only_the_main_process_of_a_container(client: Client, stack: LocalStack) -> None:
    """As with `docker stop`; what does not pass it on is killed with the main process's end.

    https://github.com/petuum/adaptdl/issues/105
    """
    outer = f"trap 'echo outer TERM' TERM; python3 -c \"{INNER}\" & wait; exit 3"
    client.submit(job_of(container("sh", "-c", outer)))
    ready(stack)
    stack.preempt("job-1", grace=30)
    assert lines(stack) == ["ready", "outer TERM"]


def test_the_signal_reaches_the_whole_process_group_of_a_script(client: Client, stack: LocalStack) -> None:
    """A machine that shuts down signals every process."""
    outer = f"trap 'echo outer TERM' TERM; python3 -c \"{INNER}\" & wait; wait; exit 3"
    client.submit(job_of(script(outer)))
    ready(stack)
    stack.preempt("job-1", grace=30)
    assert sorted(lines(stack)) == ["inner TERM", "outer TERM", "ready"]


def test_what_escapes_its_session_dies_with_the_vm(client: Client, stack: LocalStack) -> None:
    """setsid, nohup and double forks do not outlive the VM."""
    escape = (
        "(setsid nohup sleep 312.25 >/dev/null 2>&1 &) ; (trap '' TERM HUP; setsid sleep 312.25 &) ; "
        "echo ready; sleep 60"
    )
    client.submit(job_of(script(escape)))
    ready(stack)
    until(lambda: len(list(processes("sleep\x00312.25"))) == 2, "both to run")
    stack.preempt("job-1", notice=False)
    assert list(processes("sleep\x00312.25")) == []


def test_a_preempted_task_is_retried_on_a_new_vm_with_an_empty_disk(
    client: Client, stack: LocalStack
) -> None:
    """With maxRetryCount the job stays RUNNING without a word; only the task's events tell.

    https://github.com/nextflow-io/nextflow/pull/5223
    """
    text = "ls $HOME; touch $HOME/dirt; test $BATCH_TASK_RETRY_ATTEMPT = 1 && exit 0; echo ready; sleep 60"
    client.submit(job_of(script(text), max_retry_count=1))
    ready(stack)
    stack.preempt("job-1", notice=False)
    job = client.wait("job-1")
    [task] = client.tasks()
    vms = {text.rpartition(" on ")[2].split()[0].rstrip(".") for text in descriptions(task) if " on " in text}
    assert (job.status.state, lines(stack), len(vms)) == (State.SUCCEEDED, ["ready"], 2)
    assert all("50001" not in text for text in descriptions(job))


def test_a_vm_can_be_preempted_before_its_task_runs(client: Client, stack: LocalStack) -> None:
    """The job goes from SCHEDULED to FAILED, the task from PENDING, with 50001 all the same.

    https://github.com/scylladb/scylla-cluster-tests/pull/2945
    """
    stack.set_plan(Plan(preempt(on_state="SCHEDULED")))
    job = client.run(job_of(script("echo ran")))
    [task] = client.tasks()
    assert "Job state is set from SCHEDULED to FAILED" in descriptions(job)[-1]
    assert "from PENDING to FAILED" in descriptions(task)[-1]
    assert task.status.status_events[-1].task_execution.exit_code == 50001
    assert lines(stack) == []


def test_one_lost_vm_of_several_leaves_the_job_running(client: Client, stack: LocalStack) -> None:
    """Only the tasks tell; the job is RUNNING until the last one ends."""
    client.submit(
        job_of(script("echo ready; sleep $((60 * (BATCH_TASK_INDEX == 0)))"), task_count=1), "other"
    )
    client.submit(job_of(script("sleep 60"), task_count=2, parallelism=2))
    until(lambda: [t.status.state for t in client.tasks()] == [TaskState.RUNNING] * 2, "both tasks to run")
    stack.lose("job-1", "preempt", task=1, notice=False)
    until(lambda: client.tasks()[1].status.state == TaskState.FAILED, "task 1 to fail")
    assert client.get_job(name=name_of("job-1")).status.state == State.RUNNING
    assert client.tasks()[0].status.state == TaskState.RUNNING


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (vanish, 50002, "Batch no longer receives VM updates"),
        (reboot, 50003, "VM is rebooted during task execution"),
        (unresponsive, 50004, "tasks cannot be canceled"),
        (recreate, 50006, "VM is recreated during task execution"),
    ],
)
def test_other_losses_have_their_own_exit_codes(
    client: Client, stack: LocalStack, fault: object, code: int, words: str
) -> None:
    """Each in the documented words; a silent VM shows RUNNING until the server gives it up."""
    stack.set_plan(Plan(fault(job=1, on_state="RUNNING")))  # type: ignore[operator]
    client.run(job_of(script("sleep 60")))
    event = client.tasks()[0].status.status_events[-1]
    assert event.task_execution.exit_code == code
    assert event.description.endswith(f"due to {words} with exit code {code}.")


def test_a_plan_counts_jobs_in_the_order_of_their_creation(client: Client, stack: LocalStack) -> None:
    """The second job is hit, the first and the third are not."""
    stack.set_plan(Plan(preempt(job=2, after_seconds=0, notice=False)))
    states = [client.run(job_of(script("sleep 0.3")), f"j{n}").status.state.name for n in range(3)]
    assert states == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_a_plan_finds_jobs_by_labels_and_stops_after_its_times(client: Client, stack: LocalStack) -> None:
    """Labels name a training over all of its attempts; `times` bounds how often."""
    stack.set_plan(Plan(preempt(job={"training": "a"}, on_state="RUNNING", notice=False, times=2)))
    states = [
        client.run(job_of(script("sleep 0.2"), labels={"training": training}), f"j{n}").status.state.name
        for n, training in enumerate("abaa")
    ]
    assert states == ["FAILED", "SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_the_metadata_server_can_fall_silent_after_the_notice(client: Client, stack: LocalStack) -> None:
    """Whoever asks then gets no answer, as met in the field.

    https://github.com/fsspec/gcsfs/issues/476
    """
    text = """#!/usr/bin/env python3
import os, signal, socket, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
host, port = os.environ["GCE_METADATA_HOST"].split(":")
print("ready", flush=True)
while not told:
    time.sleep(0.02)
held = socket.create_connection((host, int(port)), timeout=0.4)
lines = "GET /computeMetadata/v1/instance/id HTTP/1.1", "Host: x", "Metadata-Flavor: Google", "", ""
held.sendall("\\r\\n".join(lines).encode())
try:
    print("answer", held.recv(10), flush=True)
except TimeoutError:
    print("silence", flush=True)
raise SystemExit(3)
"""
    client.submit(job_of(script(text)))
    ready(stack)
    stack.lose("job-1", "preempt", grace=30, silent_metadata=True)
    assert lines(stack) == ["ready", "silence"]


def test_a_vm_that_the_cloud_never_preempts_is_not_preempted_here(client: Client, stack: LocalStack) -> None:
    """By hand it is refused in words, by plan it does not happen: who forgot SPOT sees it."""
    stack.set_plan(Plan(preempt(on_state="RUNNING")))
    waiting = script("echo ready; while [ ! -e $HOME/end ]; do sleep 0.02; done")
    client.submit(job_of(waiting, provisioning="STANDARD"))
    ready(stack)
    with pytest.raises(InvalidInput, match="never preempted"):
        stack.preempt("job-1")
    assert client.get_job(name=name_of("job-1")).status.state == State.RUNNING


def test_a_maintenance_event_is_announced_and_nothing_else(client: Client, stack: LocalStack) -> None:
    """The metadata server tells it for its time; the job goes on."""
    text = """#!/usr/bin/env python3
import os, urllib.request
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/maintenance-event"
def ask(query=""):
    request = urllib.request.Request(url + query, headers={"Metadata-Flavor": "Google"})
    answer = urllib.request.urlopen(request)
    print(answer.read().decode(), flush=True)
    return answer.headers["ETag"]
etag = ask()
print("ready", flush=True)
for _ in range(2):
    etag = ask(f"?wait_for_change=true&last_etag={etag}")
"""
    client.submit(job_of(script(text)))
    ready(stack)
    stack.lose("job-1", "maintenance", grace=2)
    state = client.wait("job-1").status.state
    assert lines(stack) == ["NONE", "ready", "TERMINATE_ON_HOST_MAINTENANCE", "NONE"]
    assert state == State.SUCCEEDED, stack.logs("job-1")
