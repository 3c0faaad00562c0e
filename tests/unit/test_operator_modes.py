"""Where a try starts from, what ends it early, and what is told of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_resume_provider.attempts.event import EventKind
from airflow_resume_provider.checkpoints import IntentRecord, Lineage
from airflow_resume_provider.errors import AttemptFailed, InvalidInput, NoProgressError
from airflow_resume_provider.links.train import CheckpointLink, JobLink, LogsLink
from airflow_resume_provider.operators import killing
from airflow_resume_provider.operators.conductor import Finished
from airflow_resume_provider.operators.failures import PreemptedRetry, TrainingFailed
from airflow_resume_provider.triggers.fence import Ruling
from airflow_resume_provider.triggers.versions import missing
from tests.unit.operator_world import World


def test_never_resuming_is_a_fresh_start_in_each_try(tmp_path):
    """resume="never": a retry starts afresh, what ran is cancelled; inside a try preemptions still resume."""
    world = World(tmp_path, resume="never")
    step = world.begin()
    world.run(step, commits=1, code=50001)
    step = world.proceed(step)
    assert world.ti.xcoms["checkpoint"]["step"] == 10
    world.running(step)
    world.next_try()
    again = world.begin()
    assert (again.lineage.rpartition("/")[2], world.ti.xcoms["checkpoint"]) == ("g2", None)
    assert world.batch.alive == [again.job_name]


def test_required_resuming_fails_without_a_checkpoint(tmp_path):
    """resume="required": nothing there is an error, not a fresh start."""
    world = World(tmp_path, resume="required")
    with pytest.raises(TrainingFailed, match="required"):
        world.begin()
    assert not world.batch.created


def test_warm_start_from_another_training(tmp_path):
    """resume_from: the other's checkpoint is offered, explicitly, until there is an own one."""
    other = World(tmp_path)
    other.ti.dag_id = "other"
    step = other.begin()
    other.run(step)
    uri = other.proceed(step).summary["checkpoint_uri"]
    world = World(tmp_path, resume_from=uri)
    step = world.begin()
    environment = _environment(world, step)
    assert (environment["RESUME_FROM"], environment["RESUME_EXPLICIT"]) == (uri, "1")
    world.run(step, commits=1, code=50001)
    step = world.proceed(step)
    environment = _environment(world, step)
    assert environment["RESUME_FROM"].startswith(step.lineage)
    assert environment["RESUME_EXPLICIT"] == "0"


def test_required_is_satisfied_by_a_warm_start(tmp_path):
    """resume="required" together with resume_from."""
    other = World(tmp_path)
    step = other.begin()
    other.run(step)
    uri = other.proceed(step).summary["checkpoint_uri"]
    world = World(tmp_path, resume="required", resume_from=uri)
    world.ti.dag_id = "another"
    assert world.begin().attempt == 1


def _environment(world, step):
    return world.batch.created[step.job_name].task_groups[0].task_spec.runnables[0].environment.variables


def test_a_stalled_attempt_is_replaced(tmp_path):
    """No new checkpoint for too long: the job is cancelled, the next one resumes, and it counts."""
    world = World(tmp_path, stall_timeout=60, max_infrastructure_failures=1)
    step = world.begin()
    world.running(step)
    again = world.proceed(step, EventKind.STALLED)
    assert world.batch.cancelled == [step.job_name]
    assert world.batch.alive == [again.job_name]
    world.running(again)
    with pytest.raises(AttemptFailed, match="infrastructure failures"):
        world.proceed(again, EventKind.STALLED)


def test_the_time_limit_of_a_training_ends_it(tmp_path):
    """timeout: the job is cancelled and nothing is repeated."""
    world = World(tmp_path, timeout=60)
    step = world.begin()
    world.running(step)
    with pytest.raises(TrainingFailed, match="timed_out"):
        world.proceed(step, EventKind.DEADLINE)
    assert world.batch.alive == []


def test_a_deadline_that_came_too_late_changes_nothing(tmp_path):
    """The event was handled long after the job succeeded: it is a success."""
    world = World(tmp_path, timeout=60)
    step = world.begin()
    world.run(step)
    assert isinstance(world.proceed(step, EventKind.DEADLINE), Finished)


def test_a_queue_deadline_that_came_too_late_changes_nothing(tmp_path):
    """The job got its VM between the trigger's last look and ours: the watch goes on."""
    world = World(tmp_path, queue_timeout=60)
    step = world.begin()
    world.running(step)
    again = world.proceed(step, EventKind.QUEUE_TIMEOUT)
    assert again.job_name == step.job_name
    assert world.batch.cancelled == []


def test_an_api_out_of_sight_leaves_the_job_to_the_next_try(tmp_path):
    """UNREACHABLE: a retryable error, the job runs on, and the next try adopts it."""
    world = World(tmp_path)
    step = world.begin()
    world.running(step)
    with pytest.raises(AttemptFailed, match="out of sight"):
        world.proceed(step, EventKind.UNREACHABLE)
    world.next_try()
    assert world.begin().job_name == step.job_name
    assert len(world.batch.created) == 1


def test_a_late_kill_of_the_try_before_is_repeated(tmp_path):
    """The adopted job is cancelled under the try that adopted it: another attempt, not a failure."""
    world = World(tmp_path)
    step = world.begin()
    world.running(step)
    world.next_try()
    adopted = world.begin()
    world.batch.cancel(adopted.job_name)
    assert world.proceed(adopted).attempt == 2


def test_cancelled_from_outside_is_not_repeated(tmp_path):
    """Somebody cancelled the job in the console: that is what they want."""
    world = World(tmp_path)
    step = world.begin()
    world.running(step)
    world.batch.cancel(step.job_name)
    with pytest.raises(TrainingFailed, match="cancelled"):
        world.proceed(step)


def test_a_stray_job_is_found_and_cancelled_by_the_next_try(tmp_path):
    """A kill that never came: the next try ends what still runs of older attempts."""
    world = World(tmp_path)
    first = world.begin()
    world.running(first)
    zombies = IntentRecord(attempt=2, job_name=first.job_name[:-1] + "2", created="2026-11-30T00:00:00+00:00")
    Lineage.open(first.lineage).write_intent(zombies)
    world.state_store.clear()
    world.next_try()
    second = world.begin()
    assert (second.attempt, second.job_name) == (2, zombies.job_name)
    assert world.batch.cancelled == [first.job_name]
    assert world.batch.alive == [second.job_name]


def test_a_kill_between_intent_and_job_leaves_no_job(tmp_path, monkeypatch):
    """SIGTERM while the job is being created: there was nothing to cancel yet, so it is cancelled after."""
    world = World(tmp_path)
    conductor = world.conductor()
    submit = world.batch.submit
    monkeypatch.setattr(killing, "ruling", lambda hold, waiting: Ruling.CANCEL)

    def interrupted(*arguments):
        killing.kill(conductor)
        return submit(*arguments)

    monkeypatch.setattr(world.batch, "submit", interrupted)
    conductor.begin()
    assert len(world.batch.created) == 1
    assert world.batch.alive == []


def test_a_workers_shutdown_leaves_the_job(tmp_path, monkeypatch):
    """SIGTERM of a task that is still meant to run: the job is left for the next try to adopt."""
    world = World(tmp_path)
    conductor = world.conductor()
    step = conductor.begin()
    monkeypatch.setattr(killing, "ruling", lambda hold, waiting: Ruling.LEAVE)
    killing.kill(conductor)
    assert world.batch.alive == [step.job_name]


def test_attempts_that_never_commit_end(tmp_path):
    """Without a commit the loop ends, and says that there was no progress."""
    world = World(tmp_path, max_attempts_without_progress=3)
    step = world.begin()
    for _ in range(2):
        world.run(step, commits=0, code=50001)
        step = world.proceed(step)
    world.run(step, commits=0, code=50001)
    with pytest.raises(TrainingFailed, match="committed no checkpoint") as failed:
        world.proceed(step)
    assert isinstance(failed.value.__cause__, NoProgressError)


def test_a_poisoned_checkpoint_is_quarantined(tmp_path):
    """Two quick deaths from one checkpoint: the next try walks back."""
    world = World(tmp_path)
    step = world.begin()
    world.run(step, commits=2, code=50001)
    step = world.proceed(step)
    for _ in range(2):
        world.run(step, commits=0, code=1, seconds=5)
        with pytest.raises(AttemptFailed):
            world.proceed(step)
        world.next_try()
        step = world.begin()
    assert world.ti.xcoms["checkpoint"]["step"] == 10


def test_a_warm_start_that_kills_is_no_reason_to_fail_otherwise(tmp_path):
    """The checkpoint of another training cannot be quarantined here; its deaths are what people are told."""
    other = World(tmp_path / "other")
    step = other.begin()
    source = other.commit(step, 5).uri
    world = World(tmp_path / "own", resume_from=source)
    step = world.begin()
    for _ in range(3):
        world.run(step, commits=0, code=1, seconds=5)
        with pytest.raises(AttemptFailed):
            world.proceed(step)
        world.next_try()
        step = world.begin()
    assert world.ti.xcoms["checkpoint"]["uri"] == source


@pytest.mark.parametrize("spoil", ["manifest.json", ""])
def test_a_poisoned_checkpoint_that_broke_meanwhile_is_walked_past(tmp_path, spoil):
    """It cannot be quarantined any more, and need not be: the next try resumes from the one before."""
    world = World(tmp_path)
    step = world.begin()
    world.run(step, commits=2, code=50001)
    step = world.proceed(step)
    world.run(step, commits=0, code=1, seconds=5)
    with pytest.raises(AttemptFailed):
        world.proceed(step)
    world.next_try()
    step = world.begin()
    place = Path(world.ti.xcoms["checkpoint"]["uri"].removeprefix("file://"))
    world.run(step, commits=0, code=1, seconds=5)
    (place / "manifest.json").write_text("{") if spoil else shutil.rmtree(place)
    with pytest.raises(AttemptFailed):
        world.proceed(step)
    world.next_try()
    world.begin()
    assert world.ti.xcoms["checkpoint"]["step"] == 10


def test_preemption_can_be_a_try_that_people_see(tmp_path):
    """on_preemption="retry": the error asks for a retry without delay, and is retryable."""
    world = World(tmp_path, on_preemption="retry")
    step = world.begin()
    world.run(step, commits=1, code=50001)
    with pytest.raises(PreemptedRetry) as failed:
        world.proceed(step)
    policy = getattr(world.operator, "retry_policy", None)
    if policy is not None:
        decision = policy.evaluate(failed.value, 1, 2)
        assert decision.retry_delay.total_seconds() == 0


def test_refused_jobs_are_not_repeated(tmp_path):
    """A bad spec fails at once; a passing error of the API is retried by Airflow."""
    from google.api_core import exceptions

    world = World(tmp_path)
    world.batch.refuse = exceptions.InvalidArgument("machine type")
    with pytest.raises(TrainingFailed, match="machine type"):
        world.begin()
    world.batch.refuse = exceptions.ServiceUnavailable("later")
    with pytest.raises(AttemptFailed, match="later"):
        world.begin()


def test_each_index_of_a_mapped_task_has_its_own_lineage(tmp_path):
    """Mapped instances share a root and nothing else."""
    seen = set()
    for index in range(3):
        world = World(tmp_path)
        world.ti.map_index = index
        step = world.begin()
        seen.add((step.lineage, step.job_name))
    assert len({lineage for lineage, _ in seen}) == len({job for _, job in seen}) == 3


def test_the_asset_event_carries_the_reference(tmp_path):
    """Whoever is scheduled by the asset knows which checkpoint it is about."""
    asset = SimpleNamespace(uri="gs://bucket/model")
    world = World(tmp_path)
    world.outlet_events = {id(asset): SimpleNamespace(extra={})}
    events = SimpleNamespace(extra={})
    world.outlet_events = type("Events", (), {"__getitem__": lambda self, key: events})()
    world.operator.outlets = [asset]
    step = world.begin()
    world.run(step)
    done = world.proceed(step)
    assert events.extra["checkpoint"]["uri"] == done.summary["checkpoint_uri"]


def test_links_point_to_what_the_leg_holds(tmp_path):
    """Job, logs and checkpoint, while it waits and when it is done."""
    world = World(tmp_path)
    conductor = world.conductor()
    world.operator._conductor = conductor
    step = conductor.begin()
    job = JobLink().get_link(world.operator, ti_key=None)
    assert job.endswith(f"/jobs/{step.job_name.rpartition('/')[2]}/details?project=local-project")
    assert "resume_training" in LogsLink().get_link(world.operator, ti_key=None)
    assert CheckpointLink().get_link(world.operator, ti_key=None) == ""  # a local root has no page
    world.operator._conductor = None
    assert JobLink().get_link(world.operator, ti_key=None) == ""


def test_what_an_older_airflow_lacks_is_said(tmp_path):
    """Below Airflow 3.3 what is missing is visible, and everything works."""
    world = World(tmp_path, state_store=False)
    assert any("no task state store" in words for words in missing({}, on_preemption="retry"))
    step = world.begin()
    world.run(step)
    assert isinstance(world.proceed(step), Finished)


@pytest.mark.parametrize(
    ("given", "returned", "whole"),
    [
        (None, ["python", "t.py"], ["python", "t.py"]),
        (["python", "t.py"], ["--lr", 0.1], ["python", "t.py", "--lr", "0.1"]),
        (["t.py"], {"lr": 0.1, "big_model": True, "debug": False}, ["t.py", "--lr", "0.1", "--big-model"]),
    ],
)
def test_the_decorated_function_gives_the_command(given, returned, whole):
    """A list is the command or its arguments, a dictionary its options."""
    from airflow_resume_provider.decorators.train import UNTIL_EXECUTED, command

    assert command(given or UNTIL_EXECUTED, returned) == whole


@pytest.mark.parametrize("returned", [None, "python t.py", [], {"lr": 1}])
def test_a_function_that_gives_no_command_is_refused(returned):
    """What is no command is named."""
    from airflow_resume_provider.decorators.train import UNTIL_EXECUTED, command

    with pytest.raises(InvalidInput):
        command(UNTIL_EXECUTED, returned)
