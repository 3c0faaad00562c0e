"""The commit pipeline: what reaches the store, in which order, and what happens when it cannot."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.testing.gcs.faults import Fault
from tests.integration.runtime_world import TOY, Running, World, descendants, steps, until

PYTHON = [sys.executable, "-S", "-E", "-c"]


def worker_of(run: Running) -> int:
    """The process that talks to the store."""
    for pid in descendants(run.process.pid):
        if b"runtime.store_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return 0


def test_the_last_upload_is_awaited(spot_gcs: World) -> None:
    """The training exits 0 while its last upload still takes two seconds (marin#5022)."""
    spot_gcs.disturb(Fault(latency=2), "checkpoint-40/state")
    run = spot_gcs.start(1, [*TOY, "--steps", "40", "--every", "20"])
    assert run.wait() == 0
    assert steps(spot_gcs)[-1] == 40
    assert spot_gcs.end(1) == ("finished", 0)


def test_a_failed_last_upload_is_a_failed_attempt(spot_gcs: World) -> None:
    """Exit 0 with a checkpoint that the store refused would be a lie (VeOmni#1162)."""
    spot_gcs.disturb(Fault(status=503), "checkpoint-40")
    run = spot_gcs.start(1, [*TOY, "--steps", "40", "--every", "20"], environ={"RESUME_STORE_SECONDS": "1"})
    assert run.wait() == ExitCode.UPLOAD_FAILED
    assert spot_gcs.end(1) == ("failed", ExitCode.UPLOAD_FAILED)
    assert steps(spot_gcs) == [20]


def test_a_store_that_comes_back_is_used_again(spot_gcs: World) -> None:
    """Errors in the middle of a training cost nothing but the checkpoints of that time."""
    spot_gcs.disturb(Fault(status=503), "checkpoint-10")
    run = spot_gcs.start(
        1,
        [*TOY, "--steps", "60", "--every", "10", "--pause", "0.05"],
        environ={"RESUME_STORE_SECONDS": "0.5"},
    )
    assert run.wait() == 0
    assert 10 not in steps(spot_gcs)
    assert steps(spot_gcs)[-1] == 60


def test_a_store_that_cannot_be_asked_is_never_a_fresh_start(spot: World) -> None:
    """Exit 81 before the training is started (seeds M5)."""
    spot.uri = "gs://resume/lineage"
    run = spot.start(
        1, [*TOY], environ={"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1", "RESUME_STORE_SECONDS": "1"}
    )
    assert run.wait() == ExitCode.STORE_UNAVAILABLE
    assert run.said == []


def test_a_slow_store_does_not_slow_the_training(spot_gcs: World) -> None:
    """Under back-pressure the newest wins: few uploads, whole ones, in order, the last one included."""
    slow = spot_gcs.disturb(Fault(latency=1), "state.json")
    run = spot_gcs.start(1, [*TOY, "--steps", "200", "--every", "2", "--pause", "0.01", "--keep", "1"])
    assert run.wait() == 0
    committed = steps(spot_gcs)
    assert committed == sorted(set(committed))
    assert committed[-1] == 200
    assert len(committed) == slow.hits < 20
    assert run.heard("end") == 200


def test_rotation_while_uploading_is_harmless(spot_gcs: World) -> None:
    """keep=1 and saves faster than uploads: every set in the store is whole (neptune-client#1888)."""
    spot_gcs.disturb(Fault(bandwidth=400_000), "ballast")
    words = ["--steps", "60", "--every", "3", "--keep", "1", "--bytes", "200000", "--files", "4"]
    run = spot_gcs.start(1, [*TOY, *words, "--pause", "0.03"])
    assert run.wait() == 0
    for reference in spot_gcs.attempt(1).checkpoints:
        spot_gcs.checkpoint(reference.uri).verify()
    assert steps(spot_gcs)[-1] == 60


IN_PLACE = """
import os, sys, time
path = os.path.join(os.environ["RESUME_DIR"], "last.bin")
for round in range(int(sys.argv[1])):
    with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
        for _ in range(8):
            file.write(bytes([65 + round]) * 65536)
            time.sleep(0.01)
    time.sleep(float(sys.argv[2]))
"""


def test_a_file_written_in_place_is_never_committed_mixed(spot_gcs: World) -> None:
    """One file, written over and over while its upload is slow: every object is of one round (wandb#1721)."""
    spot_gcs.disturb(Fault(bandwidth=300_000), "last")
    run = spot_gcs.start(1, [*PYTHON, IN_PLACE, "4", "3"])
    assert run.wait(60) == 0
    contents = [_read(spot_gcs, reference.uri) for reference in spot_gcs.attempt(1).checkpoints]
    assert contents
    assert all(len(set(data)) == 1 and len(data) == 8 * 65536 for data in contents)
    assert contents[-1][:1] == b"D"


def _read(spot: World, uri: str) -> bytes:
    with spot.checkpoint(uri).as_directory() as directory:
        return (directory / "last.bin").read_bytes()


def test_a_store_worker_that_dies_is_replaced(spot: World) -> None:
    """The process that uploads may be killed for memory: another one goes on."""
    run = spot.start(1, [*TOY, "--steps", "100", "--pause", "0.03"])
    until(run.commits)
    os.kill(until(lambda: worker_of(run)), signal.SIGKILL)
    assert run.wait() == 0
    assert "starting another" in run.log
    assert steps(spot)[-1] == 100


def thread_niceness(pid: int) -> set[int]:
    """Linux has a niceness per thread."""
    return {os.getpriority(os.PRIO_PROCESS, int(p.name)) for p in Path(f"/proc/{pid}/task").iterdir()}


def test_the_uploader_is_niced_and_not_the_training(spot: World) -> None:
    """What uploads yields to what trains."""
    run = spot.start(1, [*TOY, "--steps", "1000"], environ={"RESUME_NICE": ""})
    until(lambda: run.heard("start") is not None)
    child = next(p for p in descendants(run.process.pid)[1:] if p != worker_of(run))
    until(lambda: thread_niceness(worker_of(run)) == {19})
    assert _session_niceness(worker_of(run)) in (19, None)
    assert _session_niceness(child) in (0, None)
    assert os.getpriority(os.PRIO_PROCESS, child) == os.getpriority(os.PRIO_PROCESS, 0)


def _session_niceness(pid: int) -> int | None:
    """Where the kernel groups by session, the session's own niceness is what counts."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except OSError:
        return None


def test_the_exit_code_and_the_arguments_pass_through(spot: World) -> None:
    """Arguments are the training's, unchanged, `--` and spaces included; so is its exit code (seeds M9)."""
    script = "import json, sys; print(json.dumps({'argv': sys.argv[1:]})); sys.exit(37)"
    run = spot.start(1, [*PYTHON, script, "--attempt", "9", "--", "a b", "", "*"])
    assert run.wait() == 37
    assert run.heard("argv") == ["--attempt", "9", "--", "a b", "", "*"]
    assert spot.end(1) == ("failed", 37)


def test_a_command_that_is_not_there_is_said_so(spot: World) -> None:
    """One line with the name, exit 93, and an end in the store."""
    run = spot.start(1, ["no-such-trainer"])
    assert run.wait() == ExitCode.COMMAND_NOT_FOUND
    assert "no-such-trainer" in run.log
    assert spot.end(1) == ("failed", ExitCode.COMMAND_NOT_FOUND)


def test_what_a_shell_leaves_behind_does_not_hold_us_up(spot: World) -> None:
    """A background process of the training is ended after it, and the attempt is finished."""
    run = spot.start(1, ["sh", "-c", f"sleep 1000 & {' '.join(TOY)} --steps 5"])
    assert run.wait(15) == 0
    assert spot.end(1) == ("finished", 0)


def test_finished_when_turns_a_preemption_into_the_end(spot: World) -> None:
    """`--finished-when`: a training that was done when the notice came is done."""
    script = "import pathlib, os, time; pathlib.Path(os.environ['RESUME_DIR'], 'final.txt').touch()"
    run = spot.start(1, [*PYTHON, f"{script}; time.sleep(60)"], "--finished-when", "final.*")
    until((spot.root / "disk-1/work/final.txt").exists)
    run.terminate()
    assert run.wait() == 0
    assert spot.end(1) == ("finished", 0)


def test_retention_bounds_what_preemptions_leave(spot: World) -> None:
    """Each preemption writes one more checkpoint; --keep-last 2 keeps the store small (lightning#6204)."""
    for attempt in range(1, 6):
        spot.intend(attempt)
        run = spot.start(attempt, [*TOY, "--steps", "100000"], "--keep-last", "2")
        until(lambda r=run: r.commits() >= 3)
        run.terminate()
        run.wait()
    there = [each for past in spot.lineage.history().attempts for each in past.checkpoints]
    assert len(there) <= 3
    assert there[-1].step == run.heard("stopped")


def test_logs_are_appended_and_metrics_reach_the_manifest(spot: World) -> None:
    """Small files travel: the log of both attempts is one, and RESUME_METRICS_FILE is in the manifest."""
    first = spot.start(1, [*TOY, "--steps", "40"])
    until(lambda: first.commits() >= 2)
    first.kill_machine()
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "40"])
    assert second.wait() == 0
    lines = (spot.root / "disk-2/work/train.log").read_text().split()
    start = second.heard("start")
    assert lines[:start] == [str(n) for n in range(1, start + 1)]
    assert lines[-1] == "40"
    assert spot.attempt(2).checkpoints[-1].metrics == {"at": 40}


def test_the_training_sees_by_name_what_it_resumes_from(spot: World) -> None:
    """RESUMED, step, index, URI, attempt, and an id that stays (wandb#2236)."""
    first = spot.start(1, [*TOY, "--steps", "100000"])
    until(first.commits)
    first.terminate()
    first.wait()
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "100000"])
    until(lambda: second.heard("environment"))
    fresh, resumed = first.heard("environment"), second.heard("environment")
    newest = spot.attempt(1).checkpoints[-1]
    assert (fresh["RESUMED"], fresh["RESUME_STEP"], fresh["RESUME_INDEX"], fresh["RESUME_FROM"]) == (
        "0",
        "0",
        "-1",
        "",
    )
    assert (resumed["RESUMED"], resumed["RESUME_STEP"]) == ("1", str(newest.step))
    assert (resumed["RESUME_INDEX"], resumed["RESUME_FROM"]) == (str(newest.index), newest.uri)
    assert resumed["RESUME_ATTEMPT"] == "2"
    assert resumed["RESUME_TRAINING_ID"] == fresh["RESUME_TRAINING_ID"] != ""
    assert resumed["RESUME_CHECKPOINT"].endswith(f"/work/checkpoint-{newest.step}")
    assert (spot.root / "disk-2/work.resume/resume.env").read_text().count("export RESUME") >= 10


def test_what_lay_there_before_is_not_taken_for_ours(spot: World) -> None:
    """checkpoint-5000 of an older run neither is committed nor wins over our own (SimpleTuner#2989)."""
    stale = spot.root / "disk-1/work/checkpoint-5000"
    stale.mkdir(parents=True)
    (stale / "state.json").write_text("{}")
    run = spot.start(1, [*TOY, "--steps", "20"])
    assert run.wait() == 0
    assert steps(spot)[-1] == 20
    assert 5000 not in steps(spot)


def test_a_fresh_start_on_a_used_disk_is_fresh(spot: World) -> None:
    """What an attempt left without a commit does not leak into the next one on the same disk."""
    first = spot.start(1, [*TOY, "--steps", "10"], "--poll", "3600", directory="same")
    left = spot.root / "same/work/checkpoint-5"
    until(left.exists)
    first.kill_machine()
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "20"], directory="same")
    assert second.wait() == 0
    assert second.heard("start") == 0
    assert steps(spot, 2)[-1] == 20, second.log
    assert "never committed" in second.log
    assert (spot.root / "same/work.uncommitted/checkpoint-5").exists()


def test_the_last_checkpoint_counts_though_its_rename_left_no_trace(spot: World) -> None:
    """A small one is written and renamed between two ticks of the clock that stamps files."""
    run = spot.start(1, [*TOY, "--steps", "10", "--one-tick"])
    assert run.wait() == 0
    assert steps(spot)[-1:] == [10], run.log


PATIENCE = """
import json, os, pathlib, sys, time
work = pathlib.Path(os.environ["RESUME_DIR"]); state = {"step": 0, "best": 9.0, "bad": 0}
if os.environ["RESUME_CHECKPOINT"]:
    state["step"] = int(pathlib.Path(os.environ["RESUME_CHECKPOINT"]).name[2:])
if (work / "early.json").exists():
    state.update(json.loads((work / "early.json").read_text()))
print(json.dumps({"bad": state["bad"]}), flush=True)
while state["bad"] < 3:
    state["step"] += 1; state["bad"] += 1; time.sleep(0.3)
    (work / "e.tmp").write_text(json.dumps(state)); (work / "e.tmp").rename(work / "early.json")
    new = work / "n.tmp"; new.mkdir(); (new / "w").write_text("w"); new.rename(work / f"c-{state['step']}")
print(json.dumps({"stopped": state["step"]}), flush=True)
"""


def test_early_stopping_counts_on_over_preemptions(spot: World) -> None:
    """Patience three, killed at every evaluation: it stops after the third (transformers#28544)."""
    for attempt in range(1, 10):
        spot.intend(attempt)
        run = spot.start(attempt, [*PYTHON, PATIENCE])
        until(lambda r=run: r.commits() or r.process.poll() is not None)
        if run.process.poll() is not None:
            break
        run.kill_machine()
    assert run.wait() == 0
    assert attempt <= 4
    assert run.heard("stopped") == 3


def test_a_changed_configuration_is_visible_and_strict_refuses_it(spot: World) -> None:
    """Old and new value are in the log and in attempt.json; --strict exits 87 (transformers#43718)."""
    first = spot.start(1, [*TOY, "--steps", "5"], "--settings", '{"batch": 8}')
    assert first.wait() == 0
    spot.intend(2)
    refused = spot.start(2, [*TOY, "--steps", "5"], "--settings", '{"batch": 16}', "--strict")
    assert refused.wait() == ExitCode.CONFIG_CHANGED
    assert refused.said == []
    run = spot.start(2, [*TOY, "--steps", "5"], "--settings", '{"batch": 16}')
    assert run.wait() == 0
    assert "batch was 8, is 16" in run.log
    assert "batch was 8, is 16" in spot.attempt(2).started.why  # type: ignore[union-attr]


def test_another_number_of_processes_is_refused_before_any_byte_moves(spot: World) -> None:
    """A generic directory cannot be resharded; the author may say that it can (DeepSpeed#2921)."""
    assert spot.start(1, [*TOY, "--steps", "5"], "--world-size", "4").wait() == 0
    spot.intend(2)
    refused = spot.start(2, [*TOY, "--steps", "5"], "--world-size", "2")
    assert refused.wait() == ExitCode.CONFIG_CHANGED
    assert not (spot.root / "disk-2/work").exists()
    assert spot.start(2, [*TOY, "--steps", "5"], "--world-size", "2", "--elastic").wait() == 0
