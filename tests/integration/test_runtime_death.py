"""Every way a Spot VM or a training dies: the right verdict, and the right next attempt."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.testing.gcs.faults import Fault
from tests.integration.runtime_world import TOY, Running, World, until, world

FOREVER = [*TOY, "--steps", "100000"]
SHORT = [*TOY, "--steps", "40"]


def expected_digest(spot: World, *words: str) -> str:
    """What an uninterrupted training ends with."""
    plain = World(spot.root / "undisturbed")
    try:
        run = plain.start(1, [*SHORT, *words])
        assert run.wait() == 0
        return str(run.heard("digest"))
    finally:
        plain.close()


def resumes_exactly(spot: World, attempt: int, *, from_step: int, command: list[str] = SHORT) -> Running:
    """The next attempt starts at `from_step` and ends as if nothing had happened."""
    spot.intend(attempt)
    run = spot.start(attempt, command)
    assert run.wait() == 0, run.log
    assert run.heard("start") == from_step
    assert run.heard("digest") == expected_digest(spot)
    return run


def newest_step(spot: World, attempt: int) -> int:
    return spot.attempt(attempt).checkpoints[-1].step


def test_a_notice_from_the_metadata_server_alone_is_enough(spot: World) -> None:
    """No signal reaches us, yet the training is told, saves and counts as preempted (clusterfuzz#5394)."""
    server = spot.with_metadata()
    run = spot.start(1, SHORT)
    until(run.commits)
    spot.loop.run(server.preempt())
    assert run.wait() == ExitCode.PREEMPTED
    assert run.heard("signal") == "SIGTERM"
    assert spot.end(1) == ("preempted", ExitCode.PREEMPTED)
    assert newest_step(spot, 1) == run.heard("stopped")
    spot.on_another_machine()
    resumes_exactly(spot, 2, from_step=run.heard("stopped"))


def test_sigterm_to_us_reaches_the_training(spot: World) -> None:
    """What the training saves on SIGTERM is in the store before we exit, and exit 0 is no success."""
    run = spot.start(1, SHORT)
    until(run.commits)
    run.terminate()
    assert run.wait() == ExitCode.PREEMPTED
    assert spot.end(1) == ("preempted", ExitCode.PREEMPTED)
    resumes_exactly(spot, 2, from_step=run.heard("stopped"))


def test_a_shell_does_not_swallow_the_signal(spot: World) -> None:
    """`sh -c 'python train.py; true'`: Python gets it, although the shell is our child (adaptdl#105)."""
    run = spot.start(1, ["sh", "-c", " ".join([*FOREVER, "; true"])])
    until(run.commits)
    run.terminate()
    run.wait()
    assert run.heard("signal") == "SIGTERM"
    assert newest_step(spot, 1) == run.heard("stopped")


LAUNCHER = """
import subprocess, sys, signal
worker = subprocess.Popen(sys.argv[1:], start_new_session=True)
{handler}
sys.exit(worker.wait())
"""
FORWARDS = "signal.signal(signal.SIGTERM, lambda *_: worker.terminate())"
DIES = ""


def test_a_launcher_with_sessions_of_its_own_is_waited_for(spot: World) -> None:
    """bash → torchrun → python: the grandchild hears of it and its last save counts (sagemaker#125)."""
    launcher = [sys.executable, "-c", LAUNCHER.format(handler=FORWARDS), *FOREVER]
    run = spot.start(1, ["bash", "-c", '"$@"; exit $?', "bash", *launcher])
    until(run.commits)
    run.terminate()
    run.wait()
    assert run.heard("signal") == "SIGTERM"
    assert newest_step(spot, 1) == run.heard("stopped")


def test_a_worker_that_its_launcher_left_behind_is_ended(spot: World) -> None:
    """A worker in a session of its own cannot hold up the machine, nor live on beside a new attempt."""
    run = spot.start(1, [sys.executable, "-c", LAUNCHER.format(handler=DIES), *FOREVER], "--grace", "0.5")
    until(run.commits)
    pid = next(p for p in Path("/proc").glob("[0-9]*") if _is_toy_of(p, spot.root))
    run.terminate()
    assert run.wait() == 128 + signal.SIGTERM
    assert not pid.exists()
    assert spot.end(1)[0] == "preempted"


def _is_toy_of(process: Path, root: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
        environ = (process / "environ").read_bytes().decode()
    except OSError:
        return False
    return words[1:3] == ["-S", "-E"] and f"RESUME_DIR={root}" in environ


def test_the_author_chooses_the_signal(spot: World) -> None:
    """`--stop-signal USR1`: the training gets that one and no other."""
    run = spot.start(1, [*FOREVER, "--signal", "USR1"], "--stop-signal", "USR1")
    until(run.commits)
    run.terminate()
    assert run.wait() == ExitCode.PREEMPTED
    assert [line["signal"] for line in run.said if "signal" in line] == ["SIGUSR1"]


def test_a_training_that_ignores_the_notice_is_killed_in_time(spot: World) -> None:
    """Its last periodic checkpoint is what the next attempt gets (spd#677)."""
    run = spot.start(1, [*FOREVER, "--on-signal", "ignore"], "--grace", "0.5")
    until(lambda: run.commits() >= 2)
    run.terminate()
    assert run.wait() == 128 + signal.SIGKILL
    assert spot.end(1) == ("preempted", 137)
    assert newest_step(spot, 1) % 5 == 0


def test_a_second_sigterm_is_not_passed_on(spot: World) -> None:
    """The shutdown's own SIGTERM must not abort the save that the notice began."""
    server = spot.with_metadata()
    run = spot.start(1, [*FOREVER, "--on-signal", "ignore"], "--grace", "1")
    until(run.commits)
    spot.loop.run(server.preempt())
    until(lambda: run.heard("signal"))
    run.terminate()
    until(lambda: "known already" in run.log)
    run.wait()
    assert len([line for line in run.said if "signal" in line]) == 1


def test_a_second_interrupt_ends_it_at_once(spot: World) -> None:
    """A person at a terminal who presses Ctrl-C twice does not wait for the grace."""
    run = spot.start(1, [*FOREVER, "--on-signal", "ignore"], "--grace", "3600")
    until(run.commits)
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        until(lambda: "notice from SIGINT" in run.log)
    assert run.wait() == 137


@pytest.mark.parametrize("gcs", [False, True], ids=["file", "gcs"])
def test_a_kill_without_notice_loses_nothing_that_was_committed(tmp_path: Path, gcs: bool) -> None:
    """The power goes: the next attempt starts from the last commit."""
    with world(tmp_path, gcs=gcs) as spot:
        run = spot.start(1, [*SHORT, "--pause", "0.05"])
        until(lambda: run.commits() >= 2)
        run.kill_machine()
        assert spot.attempt(1).end is None
        resumes_exactly(spot, 2, from_step=newest_step(spot, 1))


def test_any_time_between_notice_and_kill_is_enough(tmp_path: Path) -> None:
    """0, 2, 11 and 30 seconds between notice and power-off, amid uploads that take about four."""
    with world(tmp_path, gcs=True) as spot:
        spot.disturb(Fault(bandwidth=250_000), "ballast")
        runs = {}
        for number, seconds in enumerate((0, 2, 11, 30), 1):
            spot.uri = f"gs://resume/lineage-{seconds}"
            command = [
                *FOREVER,
                "--bytes",
                "1000000",
                "--files",
                "20",
                "--every",
                "50",
                "--on-signal",
                "ignore",
            ]
            runs[seconds] = spot.start(1, command, directory=f"disk-{number}")
        for run in runs.values():
            until(run.commits, 60)
        for run in runs.values():
            run.terminate()
        begun = time.monotonic()
        for seconds, run in runs.items():
            until(lambda s=seconds, r=run: time.monotonic() >= begun + s or r.process.poll() is not None, 40)
            run.kill_machine()
            spot.uri = f"gs://resume/lineage-{seconds}"
            choice = spot.lineage.choose(2, contents=True)
            assert choice.reference is not None, seconds
            assert choice.reference == spot.attempt(1).checkpoints[-1]
        assert spot.end(1)[0] == "preempted"


def test_the_metadata_server_may_fall_silent_after_the_notice(spot_gcs: World) -> None:
    """Uploads go on with the client that was held from the start (gcsfs#476)."""
    server = spot_gcs.with_metadata()
    run = spot_gcs.start(1, FOREVER)
    until(run.commits)
    spot_gcs.loop.run(server.preempt())
    server.silent = True
    assert run.wait() == ExitCode.PREEMPTED
    assert newest_step(spot_gcs, 1) == run.heard("stopped")


def test_a_preemption_before_the_first_checkpoint_is_no_error(spot: World) -> None:
    """The next attempt starts fresh and says why (scylla-cluster-tests#2945)."""
    run = spot.start(1, [*SHORT, "--on-signal", "exit", "--every", "1000"])
    until(lambda: run.heard("start") is not None)
    run.terminate()
    assert run.wait() == ExitCode.PREEMPTED
    assert "fresh" in resumes_exactly(spot, 2, from_step=0).log


def test_an_attempt_without_own_checkpoints_hands_on_what_it_restored(spot: World) -> None:
    """Preempted twice before it could save: the chain never goes backwards (seeds M11)."""
    first = spot.start(1, SHORT)
    until(first.commits)
    first.kill_machine()
    step = newest_step(spot, 1)
    for attempt in (2, 3):
        spot.intend(attempt)
        run = spot.start(attempt, [*SHORT, "--every", "1000", "--pause", "5"])
        until(lambda r=run: r.heard("start") is not None)
        run.kill_machine()
        assert run.heard("start") == step
    resumes_exactly(spot, 4, from_step=step)


def test_a_notice_while_restoring_ends_the_attempt_before_the_training(spot_gcs: World) -> None:
    """Preempted in restore: nothing is started, nothing is lost, and it is said at once."""
    first = spot_gcs.start(1, [*SHORT, "--bytes", "400000", "--pause", "0.1"])
    until(first.commits)
    first.kill_machine()
    step = newest_step(spot_gcs, 1)
    slow = spot_gcs.disturb(Fault(latency=60), "ballast", "GET")
    spot_gcs.intend(2)
    run = spot_gcs.start(2, SHORT)
    until(lambda: slow.hits)
    run.terminate()
    assert run.wait(10) == ExitCode.PREEMPTED
    assert run.said == []
    assert spot_gcs.end(2) == ("preempted", ExitCode.PREEMPTED)
    slow.times = 0
    resumes_exactly(spot_gcs, 3, from_step=step)


def test_a_kill_while_restoring_leaves_nothing_behind(spot_gcs: World) -> None:
    """On the same disk the next attempt finds no half of a checkpoint."""
    first = spot_gcs.start(1, [*SHORT, "--bytes", "400000", "--pause", "0.1"])
    until(first.commits)
    first.kill_machine()
    slow = spot_gcs.disturb(Fault(latency=60), "ballast", "GET")
    spot_gcs.intend(2)
    run = spot_gcs.start(2, SHORT, directory="same")
    until(lambda: slow.hits)
    run.kill_machine()
    slow.times = 0
    spot_gcs.intend(3)
    third = spot_gcs.start(3, SHORT, directory="same")
    assert third.wait() == 0, third.log
    assert third.heard("start") == newest_step(spot_gcs, 1)
    left = [path.name for path in (spot_gcs.root / "same").iterdir() if "restoring" in path.name]
    assert left == []


def test_a_kill_during_an_upload_leaves_no_checkpoint(spot_gcs: World) -> None:
    """Half an upload has no manifest, so the one before is used."""
    run = spot_gcs.start(1, [*SHORT, "--bytes", "100000", "--pause", "0.05"])
    until(run.commits)
    slow = spot_gcs.disturb(Fault(latency=60), "ballast")
    until(lambda: slow.hits)
    run.kill_machine()
    slow.times = 0
    resumes_exactly(spot_gcs, 2, from_step=newest_step(spot_gcs, 1))


def test_a_kill_during_the_last_upload_is_no_success(spot_gcs: World) -> None:
    """The training had ended, its last checkpoint was on the way: the next attempt redoes the rest."""
    run = spot_gcs.start(1, [*SHORT, "--bytes", "100000", "--every", "20", "--pause", "0.05"])
    until(run.commits)
    slow = spot_gcs.disturb(Fault(latency=60), "ballast")
    until(lambda: run.heard("end") and slow.hits)
    run.kill_machine()
    slow.times = 0
    assert spot_gcs.attempt(1).end is None
    resumes_exactly(spot_gcs, 2, from_step=20)


def test_a_training_killed_for_memory_is_a_failure_that_resumes(spot: World) -> None:
    """KILL from outside without a notice: exit 137, failed, the signal named, the checkpoints kept."""
    run = spot.start(1, FOREVER)
    until(run.commits)
    pid = next(p for p in Path("/proc").glob("[0-9]*") if _is_toy_of(p, spot.root))
    os.kill(int(pid.name), signal.SIGKILL)
    assert run.wait() == 137
    assert spot.end(1) == ("failed", 137)
    assert "SIGKILL" in spot.attempt(1).end.reason  # type: ignore[union-attr]
    assert spot.lineage.choose(2).reference == spot.attempt(1).checkpoints[-1]


def test_a_newer_attempt_stops_an_older_one(spot: World) -> None:
    """A zombie sees the newer attempt before its next commit, stops its training and says superseded."""
    run = spot.start(1, FOREVER)
    until(run.commits)
    spot.intend(2)
    assert run.wait() == ExitCode.SUPERSEDED
    assert run.heard("signal") == "SIGTERM"
    assert all(each.step <= run.heard("stopped") for each in spot.attempt(1).checkpoints)


def test_a_superseded_attempt_does_not_even_start(spot: World) -> None:
    """An attempt that comes late finds the newer one and leaves."""
    spot.intend(2)
    run = spot.start(1, SHORT)
    assert run.wait() == ExitCode.SUPERSEDED
    assert run.said == []
