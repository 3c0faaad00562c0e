"""The second way in: restore, sync and finish beside a training that knows nothing of us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.testing.gcs.faults import Fault
from tests.integration.runtime_world import TOY, World, until
from tests.integration.sidecar_job import Job

# It looks for its checkpoint where it writes them, as most scripts do, and knows no variable but its own.
UNMODIFIED = """
import json, os, pathlib, sys, time
out = pathlib.Path(sys.argv[1]); out.mkdir(exist_ok=True)
found = sorted(out.glob("checkpoint-*[0-9]"), key=lambda p: int(p.name[11:]))
step = json.loads((found[-1] / "s.json").read_text()) if found else 0
print(json.dumps({"start": step}), flush=True)
while step < int(sys.argv[2]):
    step += 1; time.sleep(0.02)
    if step % 5 == 0:
        new = out / "t.tmp"; new.mkdir(); (new / "s.json").write_text(str(step))
        new.rename(out / f"checkpoint-{step}")
    if (out.parent / "stop-it").exists(): sys.exit(int((out.parent / "stop-it").read_text()))
print(json.dumps({"end": step}), flush=True)
"""


def sourced(*command: str) -> list[str]:
    """A container that takes what is only known after the restore out of resume.env."""
    return ["sh", "-c", '. "$RESUME_STATE_DIR/resume.env" && exec "$@"', "sh", *command]


def unmodified(job: Job, steps: int) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", UNMODIFIED, str(job.directory), str(steps)]


def test_an_unmodified_training_is_committed_and_finished(spot: World) -> None:
    """Exit 0 of the user's container is known by the runnable that only then runs."""
    job = Job(spot, 1)
    assert job.run(unmodified(job, 40))[:2] == (0, 0)
    assert spot.end(1) == ("finished", 0)
    assert spot.attempt(1).checkpoints[-1].step == 40


def test_it_resumes_after_the_machine_was_taken(spot_gcs: World) -> None:
    """No notice, everything killed: the next job restores what sync had committed."""
    job = Job(spot_gcs, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    sync, training = job.ours("sync"), job.training(unmodified(job, 100000))
    until(lambda: sync.commits() >= 2)
    for run in (sync, training):
        run.kill_machine()
    newest = spot_gcs.attempt(1).checkpoints[-1].step
    spot_gcs.intend(2)
    second = Job(spot_gcs, 2)
    code, result, training = second.run(unmodified(second, newest + 20))
    assert (code, result) == (0, 0)
    assert training.heard("start") == newest
    assert "RESUMED=1" in (second.state / "resume.env").read_text()
    assert (second.state / "checkpoint").resolve() == second.directory / f"checkpoint-{newest}"


def test_a_failed_container_is_a_failed_attempt_and_not_masked(spot: World) -> None:
    """finish exits 0, so that the user's own exit code is the one people see; end.json says failed."""
    job = Job(spot, 1)
    job.directory.parent.joinpath("stop-it").write_text("3")
    assert job.run(unmodified(job, 40))[:2] == (3, 0)
    assert spot.end(1) == ("failed", -1)


def test_exit_0_after_a_notice_is_a_preemption(spot: World) -> None:
    """The container saved and left on the notice: 80, not success."""
    spot.with_metadata()
    job = Job(spot, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    sync, training = job.ours("sync"), job.training(sourced(*TOY, "--steps", "100000"))
    until(sync.commits)
    spot.loop.run(spot.metadata.preempt())  # type: ignore[union-attr]
    until((job.state / "notice.json").exists)
    training.terminate()
    assert training.wait() == 0
    assert job.ours("finish", "--succeeded").wait() == 0
    assert job.ours("finish").wait() == ExitCode.PREEMPTED
    assert spot.end(1) == ("preempted", ExitCode.PREEMPTED)
    assert spot.attempt(1).checkpoints[-1].step == training.heard("stopped")


def test_a_notice_that_only_the_training_has_seen_is_no_success(spot: World) -> None:
    """It asked the metadata server itself, saved and left, before any of ours had looked."""
    server = spot.with_metadata()
    job = Job(spot, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    spot.loop.run(server.preempt())
    assert job.training(unmodified(job, 10)).wait() == 0
    assert job.ours("finish", "--succeeded").wait() == 0
    assert job.ours("finish").wait() == ExitCode.PREEMPTED
    assert spot.end(1) == ("preempted", ExitCode.PREEMPTED)
    assert spot.attempt(1).checkpoints[-1].step == 10


def test_finish_brings_up_what_sync_could_not(spot_gcs: World) -> None:
    """Batch kills the background in the middle of the last upload; finish sends it again."""
    job = Job(spot_gcs, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    slow = spot_gcs.disturb(Fault(latency=60), "checkpoint-40/s")
    sync, training = job.ours("sync"), job.training(unmodified(job, 40))
    assert training.wait() == 0
    until(lambda: slow.hits)
    sync.kill_machine()
    slow.times = 0
    assert job.ours("finish", "--succeeded").wait() == 0
    assert job.ours("finish").wait() == 0
    assert spot_gcs.end(1) == ("finished", 0)
    assert spot_gcs.attempt(1).checkpoints[-1].step == 40
    steps = [each.step for each in spot_gcs.attempt(1).checkpoints]
    assert steps == sorted(set(steps))


def test_files_written_in_place_are_taken_when_the_container_ended_well(spot: World) -> None:
    """A trainer that writes one file over and over: the last state is the last commit."""
    job = Job(spot, 1, format="files")
    script = f"import pathlib; pathlib.Path({str(job.directory)!r}, 'model.bin').write_bytes(b'done')"
    assert job.run([sys.executable, "-c", script])[:2] == (0, 0)
    assert spot.attempt(1).checkpoints[-1].total_bytes == 4


def test_a_notice_while_restoring_ends_the_job_before_the_training(spot_gcs: World) -> None:
    """restore itself exits 80 and says preempted."""
    first = Job(spot_gcs, 1)
    assert first.run(unmodified(first, 10))[:2] == (0, 0)
    slow = spot_gcs.disturb(Fault(latency=60), "s.json", "GET")
    spot_gcs.intend(2)
    restore = Job(spot_gcs, 2).ours("restore", "--for-training")
    until(lambda: slow.hits)
    restore.terminate()
    assert restore.wait() == ExitCode.PREEMPTED
    assert spot_gcs.end(2) == ("preempted", ExitCode.PREEMPTED)


def test_a_newer_attempt_makes_finish_say_superseded(spot: World) -> None:
    """A zombie's last checkpoint is not committed."""
    job = Job(spot, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    assert job.training(unmodified(job, 10)).wait() == 0
    spot.intend(2)
    assert job.ours("finish", "--succeeded").wait() == 0
    assert job.ours("finish").wait() == ExitCode.SUPERSEDED
    assert spot.attempt(1).checkpoints == ()


def test_another_user_may_write(spot: World) -> None:
    """The training's container may run as nobody."""
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    spot.root.chmod(0o755)
    for parent in spot.root.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)
    job = Job(spot, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    script = f"cd {job.directory} && mkdir c-1.tmp && echo x > c-1.tmp/model.bin && mv c-1.tmp c-1"
    subprocess.run(["sh", "-c", script], user=65534, check=True)
    assert job.ours("finish", "--succeeded").wait() == 0
    assert job.ours("finish").wait() == 0
    assert spot.attempt(1).checkpoints[-1].step == 1


def test_a_terminated_sync_ends_cleanly(spot: World) -> None:
    """Batch ends the background with SIGTERM: exit 0, what was begun is finished."""
    job = Job(spot, 1)
    assert job.ours("restore", "--for-training").wait() == 0
    sync = job.ours("sync")
    training = job.training(unmodified(job, 100000))
    until(sync.commits)
    sync.process.send_signal(signal.SIGTERM)
    assert sync.wait() == 0
    training.kill_machine()


def test_finish_without_restore_says_what_is_missing(spot: World) -> None:
    """A wrong volume or state directory is named."""
    finish = Job(spot, 1).ours("finish")
    assert finish.wait() == ExitCode.USAGE
    assert "RESUME_STATE_DIR" in finish.log
