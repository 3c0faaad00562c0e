"""Verdicts: every reserved code, every way to fail before and after the command, every oddity of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.attempts.observation import GONE, EventSeen, JobSeen, TaskSeen
from airflow_resume_provider.attempts.verdict import Kind, explained, judge, waiting_reason
from airflow_resume_provider.checkpoints.records import EndRecord, EndState

NAME = "projects/p/locations/us-central1/jobs/j"
SPOT = (
    "Task state is updated from RUNNING to FAILED on zones/us-central1-a/instances/1 due to Spot VM"
    " preemption with exit code 50001."
)


def end(state="finished", exit_code=0):
    """The container's own account."""
    return EndRecord(attempt=1, state=EndState(state), exit_code=exit_code)


def event(description="", time=1.0, code=None):
    """One status event."""
    return EventSeen(description=description, time=time, exit_code=code, task_state="FAILED")


def task(*events, state="FAILED", number=0):
    """One task with its events."""
    return TaskSeen(name=f"{NAME}/taskGroups/group0/tasks/{number}", state=state, events=events)


def failed(*tasks, events=(), state="FAILED", failed_tasks=0):
    """A job with these tasks."""
    return JobSeen(name=NAME, state=state, tasks=tasks, events=events, failed_tasks=failed_tasks)


@pytest.mark.parametrize(
    ("code", "kind", "hopeless"),
    [
        (50001, Kind.PREEMPTED, False),
        (50002, Kind.INFRASTRUCTURE, False),
        (50003, Kind.INFRASTRUCTURE, False),
        (50004, Kind.INFRASTRUCTURE, False),
        (50005, Kind.TIMED_OUT, True),
        (50006, Kind.INFRASTRUCTURE, False),
        (1, Kind.USER_ERROR, False),
        (126, Kind.USER_ERROR, False),
        (127, Kind.USER_ERROR, False),
        (137, Kind.USER_ERROR, False),
        (80, Kind.PREEMPTED, False),
        (81, Kind.INFRASTRUCTURE, False),
        (82, Kind.INFRASTRUCTURE, False),
        (83, Kind.SUPERSEDED, False),
        (84, Kind.USER_ERROR, True),
        (85, Kind.USER_ERROR, True),
        (86, Kind.USER_ERROR, True),
        (87, Kind.USER_ERROR, True),
        (88, Kind.USER_ERROR, True),
        (89, Kind.INFRASTRUCTURE, False),
        (90, Kind.USER_ERROR, True),
        (94, Kind.USER_ERROR, True),
        (91, Kind.USER_ERROR, True),
        (92, Kind.USER_ERROR, False),
        (93, Kind.USER_ERROR, True),
        (99, Kind.USER_ERROR, False),
    ],
)
@pytest.mark.parametrize("where", ["task", "job", "words"])
def test_each_exit_code_has_its_meaning(code, kind, hopeless, where):
    """A code means the same in a task's event, in a job's event, and in words only."""
    told = event(f"Task failed with exit code {code}.", code=None if where == "words" else code)
    job = failed(task(told)) if where != "job" else failed(events=(told,))
    verdict = judge(job, started=True)
    assert (verdict.kind, verdict.hopeless) == (kind, hopeless)
    assert verdict.exit_code == code


@pytest.mark.parametrize(
    ("job", "account", "kind"),
    [
        pytest.param(failed(state="SUCCEEDED"), end(), Kind.SUCCEEDED, id="finished"),
        pytest.param(
            failed(task(event(SPOT, code=50001), state="SUCCEEDED"), state="SUCCEEDED"),
            end(),
            Kind.SUCCEEDED,
            id="a stale preemption of a job that succeeded",
        ),
        pytest.param(
            failed(state="SUCCEEDED"), end("preempted", 80), Kind.PREEMPTED, id="exit 0 after a notice"
        ),
        pytest.param(failed(state="SUCCEEDED"), None, Kind.USER_ERROR, id="no completion record"),
        pytest.param(failed(state="CANCELLED"), None, Kind.CANCELLED, id="cancelled from outside"),
        pytest.param(failed(state="CANCELLED"), end(), Kind.SUCCEEDED, id="cancelled after it finished"),
        pytest.param(failed(state="DELETION_IN_PROGRESS"), None, Kind.CANCELLED, id="being deleted"),
        pytest.param(failed(state=GONE), None, Kind.LOST, id="deleted from outside"),
        pytest.param(failed(state=GONE), end(), Kind.SUCCEEDED, id="deleted after it finished"),
        pytest.param(failed(state="QUEUED"), None, Kind.PENDING, id="queued"),
        pytest.param(failed(state="RUNNING"), None, Kind.PENDING, id="running"),
        pytest.param(failed(state="CANCELLATION_IN_PROGRESS"), None, Kind.PENDING, id="being cancelled"),
        pytest.param(failed(state="STATE_UNSPECIFIED"), None, Kind.PENDING, id="unspecified"),
        pytest.param(failed(state="99"), None, Kind.PENDING, id="a state nobody knows"),
        pytest.param(
            failed(task(event("exit code 1", code=1))),
            end("preempted", 80),
            Kind.PREEMPTED,
            id="the container saw the notice before Batch did",
        ),
        pytest.param(
            failed(task(event("", code=50005))),
            end("preempted", 80),
            Kind.TIMED_OUT,
            id="50005 ends by SIGTERM",
        ),
        pytest.param(
            failed(task(event(SPOT, code=50001))), end(), Kind.SUCCEEDED, id="preempted after it finished"
        ),
        pytest.param(
            failed(task(event("exit code 3", code=3))),
            end(),
            Kind.USER_ERROR,
            id="finished, then failed by itself",
        ),
        pytest.param(
            failed(task(event(SPOT.replace(" with exit code 50001", "")))),
            None,
            Kind.PREEMPTED,
            id="words only",
        ),
        pytest.param(
            failed(task(event("", code=50000))), end("failed", 4), Kind.USER_ERROR, id="50000 with an account"
        ),
    ],
)
def test_each_end_has_one_verdict(job, account, kind):
    """States, records and their contradictions."""
    assert judge(job, account, started=True).kind is kind


@pytest.mark.parametrize(("started", "kind"), [(False, Kind.INFRASTRUCTURE), (True, Kind.USER_ERROR)])
@pytest.mark.parametrize("code", [50000, None])
def test_unknown_failure_depends_on_whether_the_command_ran(started, kind, code):
    """50000 is the platform's fault before the command ran, and the command's after."""
    assert judge(failed(task(event("failed", code=code))), started=started).kind is kind


@pytest.mark.parametrize(
    ("words", "kind", "hopeless"),
    [
        ("Error response from daemon: manifest for x:y not found: manifest unknown", Kind.USER_ERROR, True),
        ("failed to pull image x: denied: permission denied", Kind.USER_ERROR, True),
        ("failed to pull image x: net/http: TLS handshake timeout", Kind.INFRASTRUCTURE, False),
        ("write /var/lib/docker/tmp: no space left on device", Kind.USER_ERROR, True),
    ],
)
def test_what_fails_before_the_command_is_named(words, kind, hopeless):
    """Image pulls and a full disk are said in words, and repeated only where that can help."""
    verdict = judge(failed(task(event(words, code=125))), started=False)
    assert (verdict.kind, verdict.hopeless) == (kind, hopeless)
    assert words[:40] in verdict.reason


def test_newest_event_decides_whatever_their_order():
    """A preemption that Batch itself repeated is not the verdict when the command failed later."""
    events = (event("exit code 1", time=20, code=1), event(SPOT, time=10, code=50001))
    assert judge(failed(task(*events))).kind is Kind.USER_ERROR
    assert judge(failed(task(*reversed(events)))).kind is Kind.USER_ERROR


def test_the_reason_quotes_the_event_that_tells_of_the_code():
    """Where events have no times the last in the list may be about something else."""
    other = event("Task state is updated from ASSIGNED to RUNNING", time=0.0)
    verdict = judge(failed(task(event("the VM is gone, exit code 50002", time=0.0, code=50002), other)))
    assert verdict.kind is Kind.INFRASTRUCTURE
    assert "the VM is gone" in verdict.reason


@pytest.mark.parametrize(
    ("job", "told"),
    [
        pytest.param(failed(task(event("exit code 1", code=1))), True, id="a task's code"),
        pytest.param(failed(task(event("", code=50000))), True, id="a task's unknown code"),
        pytest.param(failed(task(event(SPOT.split(" with")[0]))), True, id="words of preemption"),
        pytest.param(failed(task(event("no space left on device"))), True, id="words of a full disk"),
        pytest.param(failed(events=(event("exit code 3", code=3),)), True, id="the job's code"),
        pytest.param(failed(), False, id="nothing"),
        pytest.param(failed(events=(event("", code=50000),)), False, id="the job's unknown code"),
        pytest.param(failed(task(), events=(event("", code=3),)), False, id="a task without events"),
        pytest.param(failed(task(event("", code=1)), task(number=1)), False, id="one of two tasks"),
    ],
)
def test_a_failure_without_its_reason_is_known(job, told):
    """The API may tell the state before the reason; only some things are worth waiting for."""
    assert explained(job) is told


@pytest.mark.parametrize(
    ("words", "code"),
    [("exit code 255", 255), ("Failed to install the GPU drivers on the VM", 1)],
)
def test_setting_up_the_vm_is_the_platforms_task(words, code):
    """Before the command ran; afterwards the same code is the command's own."""
    assert judge(failed(task(event(words, code=code))), started=False).kind is Kind.INFRASTRUCTURE
    assert judge(failed(task(event(words, code=code))), started=True).kind is Kind.USER_ERROR


def test_preemption_of_one_node_is_preemption():
    """The other nodes' errors are its consequence."""
    job = failed(
        task(event("exit code 1", code=1), number=0),
        task(event(SPOT, code=50001), number=1),
        task(event("exit code 134", code=134), number=2),
    )
    verdict = judge(job)
    assert verdict.kind is Kind.PREEMPTED
    assert "tasks/1" in verdict.reason


def test_one_lost_node_ends_a_job_that_still_runs():
    """Batch goes on with the other nodes, which wait for the lost one for ever."""
    job = failed(task(event(SPOT, code=50001)), state="RUNNING", failed_tasks=1)
    assert judge(job).kind is Kind.PREEMPTED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Quota checking process decided to delay: CODE_GCE_QUOTA_EXCEEDED NVIDIA_T4_GPUS", "quota"),
        ("CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED in us-central1-a", "no capacity"),
        ("Job state is set from QUEUED to SCHEDULED", "SCHEDULED"),
    ],
)
def test_why_a_job_did_not_start_is_said(words, said):
    """Quota, stock-out, or at least the last that was heard."""
    verdict = waiting_reason(JobSeen(name=NAME, state="SCHEDULED", events=(event(words),)))
    assert verdict.kind is Kind.STOCKED_OUT
    assert said in verdict.reason


STATES = st.sampled_from(
    [
        "QUEUED",
        "SCHEDULED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
        "CANCELLATION_IN_PROGRESS",
        "DELETION_IN_PROGRESS",
        "STATE_UNSPECIFIED",
        GONE,
        "42",
    ]
)
CODES = st.none() | st.sampled_from(
    [0, 1, 50000, 50001, 50005, 50006, 50099, 80, 83, 125, 137, -1, 2**31 - 1]
)
EVENTS = st.builds(
    EventSeen,
    description=st.sampled_from([SPOT, "exit code 1", "quota", "no space left on device", ""]) | st.text(),
    time=st.floats(0, 10),
    exit_code=CODES,
)
TASKS = st.builds(
    TaskSeen,
    name=st.text(max_size=5),
    state=st.sampled_from(["FAILED", "RUNNING", "SUCCEEDED", "17"]),
    events=st.lists(EVENTS, max_size=4).map(tuple),
)
JOBS = st.builds(
    JobSeen,
    name=st.just(NAME),
    state=STATES,
    events=st.lists(EVENTS, max_size=5).map(tuple),
    tasks=st.lists(TASKS, max_size=3).map(tuple),
    failed_tasks=st.integers(0, 2),
)
ENDS = st.none() | st.builds(
    EndRecord, attempt=st.just(1), state=st.sampled_from(EndState), exit_code=st.integers(-1, 255)
)


@given(job=JOBS, account=ENDS, started=st.booleans())
def test_whatever_is_seen_gives_exactly_one_verdict(job, account, started):
    """No sequence of events crashes a verdict; what is not over is pending, what is over never is."""
    verdict = judge(job, account, started=started)
    assert isinstance(verdict.kind, Kind)
    assert verdict.reason
    if job.over:
        assert verdict.kind is not Kind.PENDING
    if verdict.kind is Kind.SUCCEEDED:
        assert account is not None
        assert account.state is EndState.FINISHED


@given(job=JOBS, account=ENDS, seed=st.randoms())
def test_order_of_events_does_not_matter(job, account, seed):
    """Events are read by their time; only where times are equal the API's order speaks."""
    distinct = {e.time: e for e in job.events}
    events = list(distinct.values())
    shuffled = events.copy()
    seed.shuffle(shuffled)
    one = JobSeen(name=NAME, state=job.state, events=tuple(events))
    other = JobSeen(name=NAME, state=job.state, events=tuple(shuffled))
    assert judge(one, account) == judge(other, account)


@given(job=JOBS)
def test_what_is_seen_survives_the_triggers_event(job):
    """A JobSeen that travels as JSON is the same when it arrives."""
    import json

    assert JobSeen.from_dict(json.loads(json.dumps(job.to_dict()))) == job
