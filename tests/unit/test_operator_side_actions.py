"""What is done beside the training hides no verdict, ends no healthy job, and blocks no later try."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from google.api_core import exceptions

from airflow_resume_provider.attempts.event import EventKind
from airflow_resume_provider.attempts.observation import JobSeen
from airflow_resume_provider.checkpoints import Lineage
from airflow_resume_provider.errors import AttemptFailed, StoreUnavailable
from airflow_resume_provider.operators import killing
from airflow_resume_provider.operators.conductor import Finished
from airflow_resume_provider.operators.failures import TrainingFailed
from airflow_resume_provider.operators.publishing import Publisher
from airflow_resume_provider.triggers.fence import Ruling
from tests.unit.operator_world import Crash, World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "own")


@pytest.fixture
def base(tmp_path):
    """A checkpoint of another training, to start from."""
    other = World(tmp_path / "other")
    return other.commit(other.begin(), 5).uri


def forget(uri):
    """Delete a checkpoint, or a lineage, as its owner may."""
    shutil.rmtree(Path(uri.removeprefix("file://")))


def at_work(world, step):
    """The container has begun, has committed, and goes on."""
    world.run(step, commits=1, code=50001)
    world.batch.jobs[step.job_name] = JobSeen(name=step.job_name, state="RUNNING")


# -- a warm start whose source is gone -----------------------------------------


def test_a_job_that_needs_its_source_no_more_is_adopted(tmp_path, base):
    """The worker is lost after hours, and the first source has been deleted: the job goes on."""
    world = World(tmp_path / "own", resume_from=base)
    step = world.begin()
    at_work(world, step)
    forget(base)
    world.next_try()
    assert world.begin().job_name == step.job_name
    assert world.batch.cancelled == []


def test_why_an_attempt_failed_is_told_although_its_source_is_gone(tmp_path, base):
    """Its own exit code, and not what the next attempt could not start from."""
    world = World(tmp_path / "own", resume_from=base)
    step = world.begin()
    world.run(step, commits=0, code=3)
    forget(base)
    with pytest.raises(AttemptFailed, match="exit code 3"):
        world.proceed(step)
    world.next_try()
    with pytest.raises(TrainingFailed, match="cannot be used"):
        world.begin()


def test_what_is_finished_is_finished_although_its_source_is_gone(tmp_path, base):
    """A training that commits nothing of its own, and whose source is deleted, has still succeeded."""
    world = World(tmp_path / "own", resume_from=base)
    step = world.begin()
    world.run(step, commits=0, code=0)
    forget(base)
    assert isinstance(world.proceed(step), Finished)


def test_a_corrected_source_is_what_the_next_attempt_starts_from(tmp_path, base):
    """The first source was the wrong one; nothing has been committed since."""
    right = World(tmp_path / "right")
    corrected = right.commit(right.begin(), 7).uri
    world = World(tmp_path / "own", resume_from=base)
    world.run(world.begin(), commits=0, code=3)
    world.change(resume_from=corrected)
    world.next_try(cleared=True)
    world.begin()
    assert world.ti.xcoms["checkpoint_uri"] == corrected


# -- what cannot be published --------------------------------------------------


@pytest.mark.parametrize("broken", [(Lineage, "condemn"), (Publisher, "standing")], ids=lambda b: b[1])
def test_what_must_not_be_repeated_is_not_repeated_for_want_of_publication(world, monkeypatch, broken):
    """Time is up and the store is out: were that told instead, Airflow would retry, with new time."""
    step = world.begin()
    world.running(step)

    def out(*_):
        raise StoreUnavailable("out", uri="gs://b/l")

    monkeypatch.setattr(*broken, out)
    with pytest.raises(TrainingFailed, match="timed_out"):
        world.proceed(step, EventKind.DEADLINE)
    assert world.batch.alive == []


# -- what was refused, and corrected -------------------------------------------


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_project_that_nobody_may_see_can_be_corrected(tmp_path, resume):
    """A misspelt project is forbidden to look into as well, and is left alone once it is corrected."""
    world = World(tmp_path, project_id="misspelt", resume=resume)
    world.batch.forbidden = "projects/misspelt/"
    with pytest.raises(TrainingFailed, match="Permission denied"):
        world.begin()
    world.change(project_id="local-project")
    for _ in range(2):
        world.next_try(cleared=True)
        step = world.begin()
        assert step.job_name.startswith("projects/local-project/")
        world.run(step, commits=0, code=3)
    assert len(world.batch.created) == 2


def test_a_project_that_nobody_may_see_is_told_while_it_is_named(tmp_path):
    """Rights that are missing today are an error today."""
    world = World(tmp_path)
    world.begin()
    world.batch.forbidden = "projects/local-project/"
    world.next_try(cleared=True)
    with pytest.raises(exceptions.Forbidden):
        world.begin()


def test_a_retry_after_a_refusal_and_a_clear_is_no_clear(world):
    """The first job was refused, the role was granted and the task cleared: later retries adopt."""
    world.batch.refuse = exceptions.Forbidden("no role")
    with pytest.raises(TrainingFailed):
        world.begin()
    world.batch.refuse = None
    world.next_try(cleared=True)
    step = world.begin()
    at_work(world, step)
    world.next_try()
    assert world.begin().job_name == step.job_name
    assert world.batch.alive == [step.job_name]


# -- what was deleted ----------------------------------------------------------


def test_old_generations_may_be_deleted(tmp_path):
    """The job of the newest generation is adopted, whatever is left of the ones before."""
    world = World(tmp_path, on_clear="fresh")
    first = world.begin()
    world.run(first, commits=1, code=3)
    world.next_try(cleared=True)
    second = world.begin()
    assert second.lineage.endswith("/g2")
    at_work(world, second)
    forget(first.lineage)
    world.next_try()
    assert world.begin().job_name == second.job_name
    assert world.batch.alive == [second.job_name]


@pytest.mark.parametrize("code", [0, 3, 50001])
def test_a_deleted_lineage_is_a_new_training(world, code):
    """Jobs of the deleted one still have the names of its first attempts: nothing is concluded from them."""
    step = world.begin()
    for _ in range(2):
        world.run(step, commits=1, code=50001)
        step = world.proceed(step)
    world.run(step, commits=0, code=code)
    forget(step.lineage)
    world.next_try(cleared=True)
    again = world.begin()
    assert world.batch.alive == [again.job_name]
    assert [each["job_name"] for each in world.ti.xcoms["attempts"]] == [again.job_name]


# -- what would be left running ------------------------------------------------


@pytest.mark.parametrize(("tries", "cancelled"), [(1, True), (5, False)], ids=["last", "earlier"])
def test_only_the_last_try_leaves_no_job_when_the_store_is_out(world, monkeypatch, tries, cancelled):
    """Nothing can be read any more; the job that is remembered is ended when nobody will come for it."""
    step = world.begin()
    at_work(world, step)
    world.ti.max_tries = tries
    world.next_try()
    conductor = world.conductor()

    def out(*_):
        raise StoreUnavailable("out", uri="gs://b/l")

    monkeypatch.setattr(Lineage, "history", out)
    with pytest.raises(StoreUnavailable) as failed:
        conductor.begin()
    conductor.forsake(failed.value)
    assert world.batch.alive == ([] if cancelled else [step.job_name])


def test_a_fresh_start_ends_a_job_that_cannot_be_looked_at_yet(tmp_path):
    """Cancel knows a job before Get does; a new generation would not fence it."""
    world = World(tmp_path, resume="never")
    world.batch.crash_after_create = True
    with pytest.raises(Crash):
        world.begin()
    (name,) = world.batch.created
    del world.batch.jobs[name]
    world.next_try()
    world.begin()
    assert world.batch.cancelled == [name]


@pytest.mark.parametrize(("said", "created"), [(Ruling.CANCEL, 0), (Ruling.LEAVE, 1)])
def test_a_kill_before_there_was_a_job_makes_none(world, monkeypatch, said, created):
    """A person ends the task while its history is read; a worker that is shut down is no person."""
    monkeypatch.setattr(killing, "ruling", lambda hold, waiting: said)
    conductor = world.operator._conductor = world.conductor()
    world.operator.on_kill()
    if said is Ruling.CANCEL:
        with pytest.raises(AttemptFailed, match="was ended before"):
            conductor.begin()
    else:
        conductor.begin()
    assert len(world.batch.created) == created


# -- why a job was ended -------------------------------------------------------


@pytest.mark.parametrize("state_store", [True, False], ids=["3.3", "3.1"])
def test_why_a_job_was_ended_outlives_the_worker(tmp_path, monkeypatch, state_store):
    """Time was up, the job is cancelled, the worker dies: the next try does not pay for another one."""
    world = World(tmp_path, state_store=state_store)
    step = world.begin()
    world.running(step)
    cancel = world.batch.cancel

    def die(name, **options):
        cancel(name, **options)
        raise Crash

    with monkeypatch.context() as then:
        then.setattr(world.batch, "cancel", die)
        with pytest.raises(Crash):
            world.proceed(step, EventKind.DEADLINE)
    world.next_try()
    with pytest.raises(TrainingFailed, match="timed_out"):
        world.begin()
    assert len(world.batch.created) == 1


def test_nonsense_in_a_verdict_is_not_believed(world):
    """What nobody can understand leaves the job what it looks like: cancelled by somebody."""
    step = world.begin()
    world.running(step)
    world.batch.cancel(step.job_name)
    place = Path(step.lineage.removeprefix("file://")) / f"attempts/{step.attempt:04d}"
    (place / "verdict.json").write_text('{"attempt": 1, "verdict": "nonsense"}')
    world.next_try()
    assert world.begin().attempt == 2


def test_why_a_job_was_ended_is_known_while_it_still_ends(tmp_path, monkeypatch):
    """The next try comes while Batch is at cancelling: it adopts the job, and judges its end rightly."""
    world = World(tmp_path)
    step = world.begin()
    world.running(step)

    def die(name, **_):
        raise Crash

    with monkeypatch.context() as then:
        then.setattr(world.batch, "cancel", die)
        with pytest.raises(Crash):
            world.proceed(step, EventKind.DEADLINE)
    world.next_try()
    again = world.begin()
    assert again.job_name == step.job_name
    world.batch.jobs[step.job_name] = JobSeen(name=step.job_name, state="CANCELLED")
    with pytest.raises(TrainingFailed, match="timed_out"):
        world.proceed(again)


def test_a_kill_while_a_job_is_looked_at_ends_it(world, monkeypatch):
    """A person ends the task before it has adopted the job of the try before."""
    step = world.begin()
    at_work(world, step)
    world.next_try()
    monkeypatch.setattr(killing, "ruling", lambda hold, waiting: Ruling.CANCEL)
    conductor = world.operator._conductor = world.conductor()
    world.operator.on_kill()
    with pytest.raises(AttemptFailed, match="while its job was looked at"):
        conductor.begin()
    assert world.batch.alive == []


def test_a_finished_training_is_published_although_a_newer_version_wrote_beside_it(world):
    """What the attempt itself committed is its result, whatever else cannot be read."""
    step = world.begin()
    world.run(step, commits=2, code=0)
    newest = world.commit(step, 999).uri
    manifest = Path(newest.removeprefix("file://")) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 9}))
    finished = world.proceed(step)
    assert isinstance(finished, Finished)
    assert finished.summary["step"] == world.ti.xcoms["checkpoint"]["step"] == 20


def test_a_finished_training_publishes_nothing_that_is_in_quarantine(world):
    """Without any checkpoint that may be chosen there is none to hand on."""
    step = world.begin()
    world.run(step, commits=1, code=0)
    lineage = Lineage.open(step.lineage)
    lineage.quarantine(f"{step.lineage}/attempts/0001/checkpoints/000000", "nan")
    finished = world.proceed(step)
    assert isinstance(finished, Finished)
    assert finished.summary["checkpoint_uri"] == world.ti.xcoms["checkpoint_uri"] == ""
