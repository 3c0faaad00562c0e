"""The operator's flow from leg to leg and from try to try, with Airflow and Batch played."""

from __future__ import annotations

import pytest

from airflow_resume_provider.attempts.event import AttemptEvent, EventKind
from airflow_resume_provider.errors import AttemptFailed
from airflow_resume_provider.operators.conductor import Finished
from airflow_resume_provider.operators.failures import TrainingFailed
from airflow_resume_provider.operators.submission import Waiting
from tests.unit.operator_world import Crash, World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_two_preemptions_cost_no_try_and_the_third_attempt_finishes(world):
    """Preempted twice, finished once: three jobs, one try, a result that says so."""
    step = world.begin()
    for _ in range(2):
        world.run(step, commits=1, code=50001)
        step = world.proceed(step)
        assert isinstance(step, Waiting)
    world.run(step, commits=1)
    done = world.proceed(step)
    assert isinstance(done, Finished)
    assert len(world.batch.created) == 3
    assert done.summary["attempts"] == 3
    assert done.summary["preemptions"] == 2
    assert done.summary["step"] == 30
    assert world.ti.xcoms["checkpoint_uri"].endswith("/attempts/0003/checkpoints/000002")


def test_next_attempt_is_offered_what_the_one_before_published(world):
    """The reference travels through XCom into the next job's environment."""
    first = world.begin()
    world.run(first, commits=2, code=50001)
    second = world.proceed(first)
    job = world.batch.created[second.job_name]
    environment = job.task_groups[0].task_spec.runnables[0].environment.variables
    assert environment["RESUME_FROM"] == world.ti.xcoms["checkpoint"]["uri"]
    assert environment["RESUME_FROM"].endswith("/attempts/0001/checkpoints/000001")
    assert environment["RESUME_EXPLICIT"] == "0"


def test_a_worker_that_died_after_submitting_leads_to_adoption(world):
    """A crash between submit and persist never makes a second job."""
    world.batch.crash_after_create = True
    with pytest.raises(Crash):
        world.begin()
    world.next_try()
    step = world.begin()
    assert len(world.batch.created) == 1
    assert step.job_name in world.batch.created


def test_a_worker_that_died_before_submitting_submits_the_same_attempt(world):
    """An intent without a job is carried out, not counted."""
    world.batch.refuse = Crash()
    with pytest.raises(Crash):
        world.begin()
    world.batch.refuse = None
    world.next_try()
    step = world.begin()
    assert step.attempt == 1
    assert len(world.batch.created) == 1


def test_everything_is_found_again_without_xcom_and_state(world):
    """With all XComs and state deleted, the next try still resumes and its counts are right."""
    step = world.begin()
    world.run(step, commits=1, code=50001)
    step = world.proceed(step)
    world.run(step, commits=1, code=1)
    with pytest.raises(AttemptFailed):
        world.proceed(step)
    world.next_try()
    world.state_store.clear()
    step = world.begin()
    assert step.attempt == 3
    assert world.ti.xcoms["checkpoint"]["step"] == 20
    world.run(step)
    assert world.proceed(step).summary["preemptions"] == 1


def test_a_finished_training_is_returned_and_not_trained_again(world):
    """A try that starts after the job has succeeded makes no new job."""
    step = world.begin()
    world.run(step)
    world.next_try()
    assert isinstance(world.begin(), Finished)
    assert len(world.batch.created) == 1


def test_a_user_error_is_left_to_airflows_retries(world):
    """Exit code 1 raises a retryable error, and the retry resumes."""
    step = world.begin()
    world.run(step, commits=1, code=1)
    with pytest.raises(AttemptFailed, match="exit code 1"):
        world.proceed(step)
    world.next_try()
    step = world.begin()
    assert step.attempt == 2
    assert world.ti.xcoms["checkpoint"]["step"] == 10


def test_a_timeout_is_never_repeated(world):
    """50005 fails at once and says so."""
    step = world.begin()
    world.run(step, commits=1, code=50005)
    with pytest.raises(TrainingFailed, match="maximum run duration"):
        world.proceed(step)


def test_clearing_cancels_the_running_job_and_resumes(world):
    """After a clear the old job is gone and the new one resumes."""
    step = world.begin()
    world.running(step)
    world.commit(step, 10)
    world.next_try(cleared=True)
    again = world.begin()
    assert again.attempt == 2
    assert world.batch.cancelled == [step.job_name]
    assert world.batch.alive == [again.job_name]
    assert world.ti.xcoms["checkpoint"]["step"] == 10


@pytest.mark.parametrize("kind", [None, EventKind.STALLED, EventKind.DEADLINE], ids=str)
def test_a_training_that_finishes_while_it_is_looked_at_has_finished(world, monkeypatch, kind):
    """The container's own word may come between two looks: what is read last is the word, not the job."""
    step = world.begin()
    look = world.batch.look

    def finishing(name, **how):
        if not world.batch.jobs[name].over:
            world.run(step, commits=1)
        return look(name, **how)

    monkeypatch.setattr(world.batch, "look", finishing)
    if kind is None:
        world.next_try()
        end = world.begin()
    else:
        event = AttemptEvent(kind=kind, job_name=step.job_name, carry=dict(step.carry), message="late")
        end = world.conductor().proceed(event)
    assert isinstance(end, Finished)
    assert end.summary["step"] == 10
    assert len(world.batch.created) == 1


@pytest.mark.parametrize("before", [True, False], ids=["by the trigger", "by this try"])
def test_a_cleared_job_that_cannot_be_seen_yet_was_cancelled_not_lost(world, monkeypatch, before):
    """Get learns of a new job later than Cancel; who answers to that, or is being ended, was there."""
    step = world.begin()
    world.started(step)
    if before:
        world.batch.cancel(step.job_name)
    monkeypatch.setattr(world.batch, "look", lambda name, **_: None)
    world.next_try(cleared=True)
    assert world.begin().attempt == 2
    assert world.ti.xcoms["attempts"][0]["verdict"] == "cancelled"


def test_a_cleared_job_that_is_not_there_is_lost(world):
    """Deleted with the project, say: nothing answers to Cancel either."""
    step = world.begin()
    world.started(step)
    del world.batch.jobs[step.job_name]
    world.next_try(cleared=True)
    assert world.begin().attempt == 2
    assert world.ti.xcoms["attempts"][0]["verdict"] == "lost"


def test_clearing_can_mean_a_fresh_start(tmp_path):
    """on_clear="fresh" starts a new generation; what ran of the old one is cancelled."""
    world = World(tmp_path, on_clear="fresh")
    step = world.begin()
    world.running(step)
    world.commit(step, 10)
    world.next_try(cleared=True)
    again = world.begin()
    assert again.lineage.endswith("/g2")
    assert again.attempt == 1
    assert world.ti.xcoms["checkpoint_uri"] == ""
    assert world.batch.alive == [again.job_name]


def test_the_queue_deadline_moves_to_the_next_rung(tmp_path):
    """A job that got no VM is cancelled and the next rung's job is submitted, elsewhere and on-demand."""
    world = World(
        tmp_path,
        placements=[
            {"zones": ["us-central1-a", "us-central1-b"], "queue_timeout": 60},
            {"region": "us-east1", "provisioning_model": "STANDARD"},
        ],
    )
    step = world.begin()
    again = world.proceed(step, EventKind.QUEUE_TIMEOUT)
    assert world.batch.cancelled == [step.job_name]
    assert "/locations/us-east1/" in again.job_name
    policy = world.batch.created[again.job_name].allocation_policy
    assert policy.instances[0].policy.provisioning_model.name == "STANDARD"


def test_a_checkpoint_named_by_the_author_must_exist(tmp_path):
    """An explicit URI that is not there fails the task; nothing is submitted."""
    world = World(tmp_path, resume_from=f"file://{tmp_path}/nothing/attempts/0001/checkpoints/000001")
    with pytest.raises(TrainingFailed, match="resume_from"):
        world.begin()
    assert not world.batch.created
