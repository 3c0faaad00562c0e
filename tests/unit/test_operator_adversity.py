"""What an adversary tries: to make the operator pay twice, lose a job, loop without hope, or misjudge."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions

from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.attempts.observation import EventSeen, JobSeen, TaskSeen
from airflow_resume_provider.checkpoints import EndRecord, EndState, Lineage
from airflow_resume_provider.errors import AttemptFailed, JobNotOurs, PermissionDenied, StoreUnavailable
from airflow_resume_provider.operators import killing, training
from airflow_resume_provider.operators.conductor import Finished
from airflow_resume_provider.operators.failures import PreemptedRetry, TrainingFailed
from airflow_resume_provider.triggers.fence import Ruling
from airflow_resume_provider.triggers.train import TrainAttemptTrigger
from tests.unit.operator_world import World, failed_event


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def hide(world, step):
    """The API does not find the job for a while; it runs all the same."""
    hidden = world.batch.jobs.pop(step.job_name)
    return lambda: world.batch.jobs.update({step.job_name: hidden})


def started(world, step):
    """The container has begun, and goes on."""
    world.run(step, commits=1, code=50001)
    world.batch.jobs[step.job_name] = JobSeen(name=step.job_name, state="RUNNING")


# -- not found is not gone -----------------------------------------------------


def test_a_new_try_does_not_replace_a_job_that_is_not_found_for_a_moment(world):
    """NOT_FOUND while its container is at work: the job is waited for, there is no second one."""
    first = world.begin()
    started(world, first)
    show = hide(world, first)
    world.next_try()
    again = world.begin()
    show()
    assert again.job_name == first.job_name
    assert len(world.batch.created) == 1


def test_a_queue_deadline_cancels_a_job_that_is_not_found_for_a_moment(world):
    """The trigger saw it waiting: it is cancelled before the next one is made."""
    step = world.begin()
    seen = world.batch.jobs[step.job_name]
    hide(world, step)
    event = AttemptEvent(
        kind=EventKind.QUEUE_TIMEOUT, job_name=step.job_name, job=seen, carry=dict(step.carry)
    )
    with pytest.raises(AttemptFailed, match="no placement is left"):
        world.conductor().proceed(event)
    assert world.batch.cancelled == [step.job_name]


def test_a_lost_job_is_cancelled_should_it_be_there_after_all(world):
    """Whatever could not be found for long may still be paid for."""
    step = world.begin()
    started(world, step)
    hide(world, step)
    gone = AttemptEvent(
        kind=EventKind.ENDED,
        job_name=step.job_name,
        job=JobSeen(name=step.job_name, state="NOT_FOUND"),
        carry=dict(step.carry),
    )
    assert world.conductor().proceed(gone).attempt == 2
    assert world.batch.cancelled == [step.job_name]


# -- the API is out ------------------------------------------------------------


def test_an_outage_when_a_try_begins_is_waited_out_in_the_trigger(world, monkeypatch):
    """The running attempt is adopted without being looked at; the outage costs no further try."""
    step = world.begin()
    started(world, step)
    world.next_try()

    def out(name, **_):
        raise exceptions.ServiceUnavailable("out")

    monkeypatch.setattr(world.batch, "look", out)
    assert world.begin().job_name == step.job_name
    assert len(world.batch.created) == 1


def test_what_is_finished_needs_no_api(world):
    """The API stayed away, and meanwhile the container finished: that is success."""
    step = world.begin()
    world.run(step)
    assert isinstance(world.proceed(step, EventKind.UNREACHABLE), Finished)


def test_no_job_is_left_behind_by_the_last_try(world):
    """Out of sight, and no try is left that could adopt the job: it is cancelled."""
    world.ti.max_tries = 0
    step = world.begin()
    started(world, step)
    conductor = world.conductor()
    event = AttemptEvent(kind=EventKind.UNREACHABLE, job_name=step.job_name, carry=dict(step.carry))
    with pytest.raises(AttemptFailed) as failed:
        conductor.proceed(event)
    conductor.forsake(failed.value)
    assert world.batch.alive == []


def test_somebody_elses_job_is_never_cancelled(world):
    """The name is taken by another training's job: that is an error of this task, and no reason to end it."""
    world.batch.refuse = JobNotOurs("taken", job_name="j")
    conductor = world.conductor()
    with pytest.raises(TrainingFailed, match="taken") as failed:
        conductor.begin()
    conductor.forsake(failed.value)
    assert world.batch.cancelled == []


def test_a_job_whose_creation_was_never_answered_is_cancelled_by_the_last_try(world):
    """It may have been made; nobody would ever look for it."""
    world.ti.max_tries = 0
    world.batch.refuse = exceptions.DeadlineExceeded("no answer")
    conductor = world.conductor()
    with pytest.raises(AttemptFailed) as failed:
        conductor.begin()
    conductor.forsake(failed.value)
    assert [name.endswith("-1") for name in world.batch.cancelled] == [True]


def test_a_job_is_left_to_the_next_try(world):
    """The same with a try left: the job goes on."""
    step = world.begin()
    started(world, step)
    conductor = world.conductor()
    event = AttemptEvent(kind=EventKind.UNREACHABLE, job_name=step.job_name, carry=dict(step.carry))
    with pytest.raises(AttemptFailed) as failed:
        conductor.proceed(event)
    conductor.forsake(failed.value)
    assert world.batch.alive == [step.job_name]


@pytest.mark.parametrize(("tries", "alive"), [(2, 1), (0, 0)], ids=["another try", "the last one"])
def test_time_that_is_up_ends_the_job_with_the_last_try(world, monkeypatch, tries, alive):
    """execution_timeout in the synchronous mode: the next try adopts, and without one nothing runs on."""
    world.ti.max_tries = tries
    conductor = world.conductor()
    conductor.begin()
    meant = {killing.RUNNING: Ruling.LEAVE, killing.NEVER: Ruling.CANCEL}
    monkeypatch.setattr(killing, "ruling", lambda hold, waiting: meant[waiting])
    killing.kill(conductor)
    assert len(world.batch.alive) == alive


# -- the store is out ----------------------------------------------------------


@pytest.mark.parametrize("method", ["training", "ensure_training", "history", "choose", "write_intent"])
@pytest.mark.parametrize("error", [PermissionDenied("403"), StoreUnavailable("out")], ids=["403", "out"])
def test_a_store_that_cannot_be_used_makes_no_job(world, monkeypatch, method, error):
    """At each moment before the submission: nothing is submitted, and never a fresh start instead."""
    with monkeypatch.context() as out:
        out.setattr(Lineage, method, lambda *a, **k: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            world.begin()
    assert not world.batch.created
    world.next_try()
    assert world.begin().attempt == 1


@pytest.mark.parametrize("method", ["history", "choose", "write_intent"])
def test_a_store_that_is_out_between_attempts_costs_a_try_and_nothing_else(world, monkeypatch, method):
    """The next try goes on from the last checkpoint, with one job for each attempt."""
    step = world.begin()
    world.run(step, commits=1, code=50001)
    with monkeypatch.context() as out:
        out.setattr(Lineage, method, lambda *a, **k: (_ for _ in ()).throw(StoreUnavailable("out")))
        with pytest.raises(StoreUnavailable):
            world.proceed(step)
    world.next_try()
    assert world.begin().attempt == 2
    assert world.ti.xcoms["checkpoint"]["step"] == 10
    assert len(world.batch.created) == 2


@pytest.mark.parametrize("state", ["edited by a person", {"generation": 1}, {"generation": 1, "ledger": [1]}])
def test_a_state_store_with_nonsense_in_it_is_not_believed(world, state):
    """People can edit it in the UI; the lineage is the truth."""
    step = world.begin()
    world.run(step, commits=1, code=1)
    with pytest.raises(AttemptFailed):
        world.proceed(step)
    world.state_store["resume"] = state
    world.next_try()
    assert world.begin().attempt == 2
    assert world.ti.xcoms["checkpoint"]["step"] == 10


def test_a_state_store_that_is_down_changes_nothing(world, monkeypatch):
    """It is a cache."""
    for name in ("get", "set"):
        monkeypatch.setattr(type(world.state_store), name, lambda *a, **k: 1 / 0)
    step = world.begin()
    world.run(step, commits=1, code=50001)
    world.next_try()
    assert world.begin().attempt == 2


# -- the right verdict, and no loop --------------------------------------------


def test_what_cannot_succeed_is_not_repeated_although_nobody_saw_its_end(world):
    """50005 while the API was out of sight: the next try says so and submits nothing."""
    step = world.begin()
    world.run(step, commits=1, code=50005)
    world.next_try()
    with pytest.raises(TrainingFailed, match="maximum run duration"):
        world.begin()
    assert len(world.batch.created) == 1
    world.next_try(cleared=True)
    assert world.begin().attempt == 2


def test_why_a_job_failed_is_waited_for(world, monkeypatch):
    """The API tells FAILED first and 50001 later: preempted, not an error of the training."""
    monkeypatch.setattr(training, "LATE_PAUSE", 0.001)
    step = world.begin()
    world.run(step, commits=1, code=50001)
    known = world.batch.jobs[step.job_name]
    silent = replace(known, events=(EventSeen(description="Job state is set from RUNNING to FAILED"),))
    task = TaskSeen(name="j/taskGroups/group0/tasks/0", state="FAILED", events=(failed_event(50001),))
    answers = iter([silent, silent, replace(silent, tasks=(task,))])
    event = AttemptEvent(kind=EventKind.ENDED, job_name=step.job_name, job=silent, carry=dict(step.carry))
    monkeypatch.setattr(world.batch, "look", lambda name, **_: next(answers))
    assert world.conductor().proceed(event).attempt == 2
    assert world.ti.xcoms["attempts"][0]["verdict"] == "preempted"


def test_a_driver_that_could_not_be_installed_is_the_platforms_fault(world):
    """255 before the command ran: https://github.com/DataBiosphere/dsub/issues/229"""
    step = world.begin()
    world.end(step, 255)
    assert world.proceed(step).attempt == 2
    assert world.ti.xcoms["attempts"][0]["verdict"] == "infrastructure"


def test_a_training_whose_time_is_up_gets_no_further_attempt(tmp_path):
    """Preempted just before its time limit passed: another job would be paid for nothing."""
    world = World(tmp_path, timeout=60)
    step = world.begin()
    world.run(step, commits=1, code=50001)
    with pytest.raises(TrainingFailed, match="timed_out"):
        world.proceed(step, EventKind.DEADLINE)
    assert len(world.batch.created) == 1


@pytest.mark.parametrize(
    "fixed", [{"machine_type": "n2-standard-8"}, {"project_id": "other-project"}], ids=lambda f: next(iter(f))
)
def test_a_fix_of_what_was_refused_is_heeded(world, fixed):
    """The first job was refused, the author corrects the DAG and clears: the correction is what is made."""
    world.batch.refuse = exceptions.InvalidArgument("no")
    with pytest.raises(TrainingFailed):
        world.begin()
    world.batch.refuse = None
    world.change(**fixed)
    world.next_try(cleared=True)
    step = world.begin()
    made = world.batch.created[step.job_name].allocation_policy.instances[0].policy.machine_type
    assert made == fixed.get("machine_type", "e2-standard-4")
    assert step.job_name.split("/")[1] == fixed.get("project_id", "local-project")


@pytest.mark.parametrize("state_store", [True, False], ids=["3.3", "3.1"])
def test_all_rungs_used_up_begin_anew_in_the_next_try(tmp_path, state_store):
    """Quota exhausted everywhere: two jobs in this try, both cancelled; the next starts at the first rung."""
    rungs = [{"queue_timeout": 60}, {"provisioning_model": "STANDARD", "queue_timeout": 60}]
    world = World(tmp_path, placements=rungs, state_store=state_store)
    second = world.proceed(world.begin(), EventKind.QUEUE_TIMEOUT)
    with pytest.raises(AttemptFailed, match="no placement is left"):
        world.proceed(second, EventKind.QUEUE_TIMEOUT)
    assert (len(world.batch.created), world.batch.alive) == (2, [])
    world.next_try()
    assert world.begin().placement.provisioning_model == "SPOT"


def test_a_job_that_was_intended_long_ago_gets_its_whole_time_in_the_queue(tmp_path, monkeypatch):
    """The intent is an hour old, the job is new: its queue deadline counts from now."""
    world = World(tmp_path, queue_timeout=60)
    world.batch.refuse = exceptions.ServiceUnavailable("out")
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    with monkeypatch.context() as then:
        then.setattr("airflow_resume_provider.operators.submission.now", lambda: hour_ago)
        with pytest.raises(AttemptFailed):
            world.begin()
    world.batch.refuse = None
    world.next_try()
    step = world.begin()
    assert step.attempt == 1
    assert step.queued - step.submitted > 3000


def test_a_container_at_work_is_past_its_queue_deadline(tmp_path):
    """The API says nothing that means "running", but the container has spoken: the watch goes on for good."""
    world = World(tmp_path, queue_timeout=60)
    step = world.begin()
    started(world, step)
    world.batch.jobs[step.job_name] = JobSeen(name=step.job_name, state="77")
    again = world.proceed(step, EventKind.QUEUE_TIMEOUT)
    assert (again.job_name, again.placement.queue_timeout) == (step.job_name, None)
    assert world.batch.cancelled == []


def test_zombies_of_one_try_and_the_next_make_one_job(world):
    """The process of try 1 goes on while try 2 begins: whoever comes second adopts."""
    zombie = world.conductor()
    world.next_try()
    mine = world.begin()
    assert zombie.begin().job_name == mine.job_name
    assert len(world.batch.created) == 1


def test_a_budget_of_no_preemption_hands_the_first_to_airflow(tmp_path):
    """max_preemptions=0: the try ends, the next one resumes."""
    world = World(tmp_path, max_preemptions=0)
    step = world.begin()
    world.run(step, commits=1, code=50001)
    with pytest.raises(AttemptFailed, match="1 preemptions"):
        world.proceed(step)
    world.next_try()
    assert world.begin().attempt == 2
    assert len(world.batch.created) == 2


def test_retrying_preemptions_without_retries_fails_with_the_first(tmp_path):
    """on_preemption="retry" with retries=0: the task fails, and nothing is left running."""
    world = World(tmp_path, on_preemption="retry", retries=0)
    world.ti.max_tries = 0
    step = world.begin()
    world.run(step, commits=1, code=50001)
    conductor = world.conductor()
    event = AttemptEvent(
        kind=EventKind.ENDED, job_name=step.job_name, job=world.batch.jobs[step.job_name], carry=step.carry
    )
    with pytest.raises(PreemptedRetry) as failed:
        conductor.proceed(event)
    conductor.forsake(failed.value)
    assert (len(world.batch.created), world.batch.alive, world.batch.cancelled) == (1, [], [])


@pytest.mark.parametrize(
    ("dag_id", "task_id", "run_id"),
    [
        ("d" * 250, "t" * 250, "manual__2026-11-30T10:00:00.123456+00:00"),
        ("группа.обучение", "zug.übung", "scheduled__2026-11-30T00:00:00+05:30"),
        ("a.b.c", "x__y.z-1", "r" * 250),
    ],
)
def test_any_name_that_airflow_allows(world, dag_id, task_id, run_id):
    """Long, dotted, with + and : and letters of any alphabet: the job is made, and found by the next try."""
    world.ti.dag_id, world.ti.task_id, world.ti.run_id = dag_id, task_id, run_id
    first = world.begin()
    world.running(first)
    world.next_try()
    assert world.begin().job_name == first.job_name


def test_two_hundred_indexes_share_nothing(world):
    """Each index of a large map has its own lineage and job."""
    for index in range(200):
        world.ti.map_index = index
        world.begin()
    assert len(world.batch.created) == len(world.batch.alive) == 200


# -- the trigger ---------------------------------------------------------------


def test_a_deadline_that_has_passed_does_not_keep_the_loop_busy():
    """A job that was never seen is no waiting job: nobody wakes up for its queue deadline."""
    hold = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, "job_name": "j", "token": "x"}
    trigger = TrainAttemptTrigger(job_name="j", hold=hold, carry={}, submitted=0.0, queue_deadline=1.0)
    assert trigger.due(None, 2.0) is None
    assert trigger.next_due(None) is None
    late = trigger.due(JobSeen(name="j", state="77"), 2.0)
    assert late is not None
    assert late.kind is EventKind.QUEUE_TIMEOUT
    assert json.loads(json.dumps(late.to_dict()))["kind"] == "queue_timeout"


def test_an_end_that_the_container_told_wins_over_a_job_that_is_gone(world):
    """The container said that it failed, the job is gone: the next attempt need not wait."""
    step = world.begin()
    started(world, step)
    hide(world, step)
    Lineage.open(step.lineage).end_attempt(
        EndRecord(attempt=1, state=EndState.FAILED, exit_code=1, ended=datetime.now(UTC).isoformat())
    )
    world.next_try()
    assert world.begin().attempt == 2
