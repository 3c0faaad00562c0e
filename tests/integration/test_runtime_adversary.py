"""Trainings, machines and people at their worst: no hang, no wrong code, no torn commit, no orphan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.testing.gcs.faults import Fault
from tests.integration.runtime_world import TOY, World, steps, until

PYTHON = [sys.executable, "-S", "-E", "-c"]
FOREVER = [*TOY, "--steps", "100000"]


def test_every_exit_code_of_the_training_passes_through_as_its_own(spot: World) -> None:
    """Codes of shells, and those that we use ourselves: the record says whose each one is."""
    codes = (1, 2, 77, 80, 85, 99, 126, 127, 137, 255)
    runs = {}
    for code in codes:
        spot.uri = f"file://{spot.root}/store/lineage-{code}"
        runs[code] = spot.start(1, ["sh", "-c", f"exit {code}"], directory=f"disk-{code}")
    assert {code: run.wait() for code, run in runs.items()} == {code: code for code in codes}
    for code in codes:
        end = json.loads((spot.root / f"store/lineage-{code}/attempts/0001/end.json").read_text())
        assert (end["state"], end["exit_code"], end["by"]) == ("failed", code, "training")


def test_a_command_that_cannot_start_is_said_before_anything_is_downloaded(spot: World) -> None:
    """Absent, not executable, or a directory: exit 93 with the reason, and not one byte restored."""
    assert spot.start(1, [*TOY, "--steps", "5"]).wait() == 0
    script = spot.root / "train.sh"
    script.write_text("#!/bin/sh\n")
    reasons = {"no-such-trainer": "PATH", str(script): "not executable", str(spot.root): "a directory"}
    spot.intend(2)
    for command, reason in reasons.items():
        run = spot.start(2, [command])
        assert run.wait() == ExitCode.COMMAND_NOT_FOUND
        assert command in run.log
        assert reason in run.log
    assert not (spot.root / "disk-2/work").exists()
    assert spot.end(2) == ("failed", ExitCode.COMMAND_NOT_FOUND)


def test_a_command_that_is_part_of_the_checkpoint_is_looked_for_after_the_restore(spot: World) -> None:
    """A script that travels in the checkpoint may be what is run."""
    make = "import os, pathlib; d = pathlib.Path(os.environ['RESUME_DIR'], 'c.tmp'); d.mkdir()\n"
    make += "(d / 'go').write_text('#!/bin/sh\\nexit 7\\n'); d.rename(d.with_name('c-1'))"
    assert spot.start(1, [*PYTHON, make]).wait() == 0
    spot.intend(2)
    # What is restored has no executable bit, so it is the attempt that counts.
    run = spot.start(2, [str(spot.root / "disk-2/work/c-1/go")])
    assert run.wait() == ExitCode.COMMAND_NOT_FOUND
    assert "Permission denied" in run.log
    assert (spot.root / "disk-2/work/c-1/go").exists()


def test_a_relative_directory_is_as_good_as_an_absolute_one(spot: World) -> None:
    """The training is told the absolute one, whatever directory it changes to."""
    relative = os.path.relpath(spot.root / "here")
    run = spot.start(1, [*TOY, "--steps", "10"], "--dir", relative)
    assert run.wait() == 0
    assert run.heard("environment")["RESUME_DIR"] == str(spot.root / "here")
    assert steps(spot)[-1] == 10


def test_two_checkpoints_between_two_looks_are_the_newer_one(spot: World) -> None:
    """Numbers are compared as numbers, and the last one is never missed."""
    script = """
import os, pathlib, time
work = pathlib.Path(os.environ["RESUME_DIR"])
for pair in ((9, 10), (99, 100)):
    for step in pair:
        new = work / "t.tmp"; new.mkdir(); (new / "w").write_text(str(step)); new.rename(work / f"c-{step}")
    time.sleep(1.2)
"""
    run = spot.start(1, [*PYTHON, script], "--poll", "0.8")
    assert run.wait() == 0
    assert steps(spot)[-1] == 100
    assert set(steps(spot)) <= {10, 100, 9, 99}
    assert steps(spot) == sorted(steps(spot))


def test_a_checkpoint_that_its_trainer_deletes_during_the_upload_is_whole(spot_gcs: World) -> None:
    """What is pinned survives; the training ends without any checkpoint on its disk."""
    slow = spot_gcs.disturb(Fault(latency=0.5), "w-")
    script = """
import os, pathlib, shutil, time
work = pathlib.Path(os.environ["RESUME_DIR"])
new = work / "t.tmp"; new.mkdir()
for number in range(6):
    (new / f"w-{number}").write_text(str(number))
new.rename(work / "c-5")
while not list(pathlib.Path(os.environ["RESUME_STATE_DIR"], "pins").glob("*/c-5/w-5")):
    time.sleep(0.01)
shutil.rmtree(work / "c-5")
"""
    run = spot_gcs.start(1, [*PYTHON, script])
    assert run.wait() == 0
    assert slow.hits
    assert steps(spot_gcs) == [5]
    spot_gcs.checkpoint(spot_gcs.attempt(1).checkpoints[0].uri).verify()


REWRITES = """
import os, pathlib, sys, time
work = pathlib.Path(os.environ["RESUME_DIR"])
new = work / "t.tmp"; new.mkdir(); (new / "w.bin").write_bytes(b"A" * 4096); new.rename(work / "c-1")
time.sleep(0.5)
for letter in b"BC":
    with open(work / "c-1" / "w.bin", "r+b", buffering=0) as file:
        for _ in range(4):
            file.write(bytes([letter]) * 1024)
            time.sleep(0.3)
    time.sleep(2.6)
"""


def test_writing_again_into_a_finished_directory_is_never_committed_torn(spot: World) -> None:
    """Its rename says nothing about what is written into it later, slowly and in place."""
    run = spot.start(1, [*PYTHON, REWRITES])
    assert run.wait() == 0
    contents = []
    for reference in spot.attempt(1).checkpoints:
        with spot.checkpoint(reference.uri).as_directory() as directory:
            contents.append((directory / "c-1/w.bin").read_bytes())
    assert all(len(set(data)) == 1 and len(data) == 4096 for data in contents)
    assert [data[:1] for data in contents] == [b"A", b"B", b"C"]


def test_ten_thousand_small_files_are_one_checkpoint(spot: World) -> None:
    """All of them arrive, and looking at them again and again leaves the cores to the training."""
    script = """
import os, pathlib, time
work = pathlib.Path(os.environ["RESUME_DIR"])
new = work / "t.tmp"; new.mkdir()
for number in range(10_000):
    (new / f"part-{number:05}.txt").write_text("x")
new.rename(work / "c-7")
while not (work.parent / "go").exists():
    time.sleep(0.05)
"""
    run = spot.start(1, [*PYTHON, script])
    until(run.commits, 60)
    before, begun = _cpu_seconds(run.process.pid), os.times().elapsed
    until(lambda: os.times().elapsed - begun > 2)
    share = (_cpu_seconds(run.process.pid) - before) / (os.times().elapsed - begun)
    (spot.root / "disk-1/go").touch()
    assert run.wait() == 0
    reference = spot.attempt(1).checkpoints[-1]
    assert len(spot.checkpoint(reference.uri).manifest.files) == 10_000
    assert share < 0.15


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


DAEMON = """
import os, pathlib, signal, sys, time
work = pathlib.Path(os.environ["RESUME_DIR"])
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (work.parent / "daemon").write_text(str(os.getpid()))
    step = 0
    while True:
        step += 1
        new = work / "t.tmp"; new.mkdir(exist_ok=True); (new / "w").write_text("w" * 1000)
        new.rename(work / f"c-{step}"); os.write(write, b"x") if step == 5 else None; time.sleep(0.02)
os.read(read, 1)
if sys.argv[1] == "stay":
    time.sleep(1000)
"""


@pytest.mark.parametrize("noticed", [False, True], ids=["left-alone", "noticed"])
def test_a_daemon_that_goes_on_writing_is_ended_with_the_training(spot: World, noticed: bool) -> None:
    """Two forks and a session of its own, deaf to SIGTERM: it is gone before the last commit is made."""
    words = ["stay"] if noticed else ["leave"]
    run = spot.start(1, [*PYTHON, DAEMON, *words], "--grace", "1")
    if noticed:
        until(run.commits)
        run.terminate()
    assert run.wait(15) == (143 if noticed else 0)
    pid = int((spot.root / "disk-1/daemon").read_text())
    assert not Path(f"/proc/{pid}").exists()
    for reference in spot.attempt(1).checkpoints:
        spot.checkpoint(reference.uri).verify()
    assert spot.end(1)[0] == ("preempted" if noticed else "finished")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(spot: World, closed: str) -> None:
    """Started by something that has closed them, as daemons do."""
    command = ["sh", "-c", f'"$@" {closed}; echo $? > "{spot.root}/code"', "sh"]
    quiet = "import os, pathlib; d = pathlib.Path(os.environ['RESUME_DIR'], 'c.tmp'); d.mkdir()\n"
    quiet += "(d / 'w').write_text('w'); d.rename(d.with_name('c-1'))"
    run = spot.start(1, [*PYTHON, quiet], within=command)
    run.wait()
    assert (spot.root / "code").read_text() == "0\n"
    assert steps(spot) == [1]
    assert spot.end(1) == ("finished", 0)


def test_output_that_nobody_reads_does_not_change_the_exit_code(spot: World) -> None:
    """The reader of both streams is gone, as after `| head -1`."""
    read, write = os.pipe()
    os.close(read)
    options = ["--lineage", spot.uri, "--attempt", "1", "--dir", str(spot.root / "disk/work")]
    command = [
        sys.executable,
        "-m",
        "airflow_resume_provider.runtime.cli",
        *options,
        "--",
        "sh",
        "-c",
        "exit 3",
    ]
    command += ["--", "sh", "-c", "exit 3"]
    done = subprocess.run(command, env=spot.environ, stdout=write, stderr=write, timeout=30)
    os.close(write)
    assert done.returncode == 3
    assert spot.end(1) == ("failed", 3)


ORPHANS = """
import os, pathlib, time
for _ in range(100):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
def zombies():
    stats = [p.read_text().rpartition(")")[2].split() for p in pathlib.Path("/proc").glob("[0-9]*/stat")]
    return sum(state == "Z" and parent == "1" for state, parent, *_ in stats)
end = time.monotonic() + 10
while (left := zombies()) > 3 and time.monotonic() < end:
    time.sleep(0.05)
print('{"me": %d, "zombies": %d}' % (os.getppid(), left), flush=True)
"""


def test_the_first_process_of_a_container_buries_the_dead(spot: World) -> None:
    """A hundred orphans of a running training: their zombies do not fill the table of processes."""
    within = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    run = spot.start(1, [*PYTHON, ORPHANS], within=within)
    assert run.wait() == 0, run.log
    assert run.heard("me") == 1
    assert run.heard("zombies") <= 3


def test_a_notice_while_the_last_upload_runs_is_still_a_finish(spot_gcs: World) -> None:
    """The training had ended by itself; what comes meanwhile changes nothing but the speed."""
    slow = spot_gcs.disturb(Fault(latency=1.5), "checkpoint-10/state")
    run = spot_gcs.start(1, [*TOY, "--steps", "10", "--every", "10"])
    until(lambda: run.heard("end") and slow.hits)
    for _ in range(2):
        run.terminate()
    assert run.wait() == 0
    assert spot_gcs.end(1) == ("finished", 0)
    assert steps(spot_gcs) == [10]


SAVES_SLOWLY = """
import os, pathlib, time
work = pathlib.Path(os.environ["RESUME_DIR"])
for step in range(1, 100):
    new = work / f"c-{step}"; new.mkdir()
    for part in range(10):
        with open(new / "weights.txt", "a") as file:
            file.write("w" * 100)
        time.sleep(0 if step == 1 else 0.3)
    time.sleep(3 if step == 1 else 0)
"""


@pytest.mark.parametrize("grace", ["0", "2"])
@pytest.mark.parametrize("shell", [[], ["sh", "-c", '"$@"; true', "sh"]], ids=["alone", "in-a-shell"])
def test_a_death_in_the_middle_of_a_save_commits_nothing_torn(
    spot: World, grace: str, shell: list[str]
) -> None:
    """Written in place under its final name, cut off by the signal: only the one before is there."""
    run = spot.start(1, [*shell, *PYTHON, SAVES_SLOWLY], "--grace", grace, "--format", "directory")
    until((spot.root / "disk-1/work/c-2/weights.txt").exists)
    run.terminate()
    assert run.wait(10) in (143, 137)
    assert steps(spot) == [1]
    assert spot.attempt(1).checkpoints[0].total_bytes == 1000
    assert spot.end(1)[0] == "preempted"


def test_no_grace_at_all_still_ends_everything(spot: World) -> None:
    """`--grace 0`: the signal and the KILL come at once, and the record is written."""
    run = spot.start(1, ["sh", "-c", " ".join([*FOREVER, "--on-signal", "ignore; true"])], "--grace", "0")
    until(run.commits)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(10) in (137, 143)
    assert spot.end(1)[0] == "preempted"
