"""Out of memory and out of disk, for real: a cgroup with a limit and a small file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.runtime.machine import disk_full, oom_kills
from tests.integration.runtime_world import TOY, World, until

CGROUPS = Path("/sys/fs/cgroup/memory")
PYTHON = [sys.executable, "-S", "-E", "-c"]


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup of 150 MiB."""
    group = CGROUPS / f"resume-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(150 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup of our own can be made here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    where = tmp_path / "disk-small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", where], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_the_kernel_kills_the_training_and_it_is_said_so(spot: World, small_memory: Path) -> None:
    """A training that takes all memory: 137, "want of memory" in the reason, its checkpoints kept."""
    hog = f"{' '.join(TOY)} --steps 20 && exec {sys.executable} -c 'x=bytearray(1<<30)'"
    enter = f'echo $$ > {small_memory}/cgroup.procs && exec "$@"'
    run = spot.start(1, ["sh", "-c", hog], within=["sh", "-c", enter, "sh"])
    assert run.wait() == 137
    assert spot.end(1) == ("failed", 137)
    assert "memory" in spot.attempt(1).end.reason  # type: ignore[union-attr]
    assert spot.lineage.choose(2).reference == spot.attempt(1).checkpoints[-1]
    assert spot.attempt(1).checkpoints[-1].step == 20


def test_a_full_disk_in_the_middle_of_a_save_costs_that_save_only(spot: World, small_disk: Path) -> None:
    """ENOSPC in the training: its own exit code, ENOSPC in the reason, the older commits untouched."""
    words = ["--steps", "1000", "--every", "5", "--bytes", "700000"]
    run = spot.start(1, [*TOY, *words], directory="disk-small")
    assert run.wait() == 1
    assert spot.end(1) == ("failed", 1)
    assert "ENOSPC" in spot.attempt(1).end.reason  # type: ignore[union-attr]
    committed = spot.attempt(1).checkpoints
    assert committed
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "40"])
    assert second.wait() == 0
    assert second.heard("start") == committed[-1].step


def test_a_disk_that_cannot_hold_the_checkpoint_is_known_before_the_download(
    spot: World, small_disk: Path
) -> None:
    """Exit 84 with what is needed and what is free, nothing downloaded (open_lm#154)."""
    assert spot.start(1, [*TOY, "--steps", "5", "--bytes", "4000000"]).wait() == 0
    spot.intend(2)
    run = spot.start(2, [*TOY, "--steps", "10"], directory="disk-small")
    assert run.wait() == ExitCode.NO_SPACE
    assert "bytes" in run.log
    assert run.said == []


def test_a_mount_point_is_a_directory_like_any_other(spot: World, small_disk: Path) -> None:
    """RESUME_DIR itself may be a mounted disk: restored into, pinned on, committed from."""
    first = spot.start(1, [*TOY, "--steps", "20"])
    assert first.wait() == 0
    spot.intend(2)
    command = [*TOY, "--steps", "40"]
    second = spot.start(2, command, "--dir", str(small_disk))
    assert second.wait() == 0, second.log
    assert second.heard("start") == 20
    assert spot.attempt(2).checkpoints[-1].step == 40


def test_a_fresh_start_on_a_mount_point_is_fresh(spot: World, small_disk: Path) -> None:
    """It cannot be renamed, so what was never committed moves aside in it and stays out of commits."""
    first = spot.start(1, [*TOY, "--steps", "10"], "--dir", str(small_disk), "--poll", "3600")
    until((small_disk / "checkpoint-5").exists)
    first.kill_machine()
    (small_disk / "notes.txt").write_text("mine")
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "20"], "--dir", str(small_disk))
    assert second.wait() == 0, second.log
    assert second.heard("start") == 0
    assert (small_disk / ".resume-uncommitted/checkpoint-5").is_dir()
    assert (small_disk / ".resume-uncommitted/notes.txt").read_text() == "mine"
    assert spot.attempt(2).checkpoints[-1].step == 20
    for reference in spot.attempt(2).checkpoints:
        names = [entry.path for entry in spot.checkpoint(reference.uri).manifest.files]
        assert not any("uncommitted" in name or "notes" in name for name in names)


def test_a_link_to_another_disk_stays_a_link_to_that_disk(spot: World, small_disk: Path) -> None:
    """RESUME_DIR is a link, its state on yet another file system: resumed, copied, committed, set aside."""
    target, link = small_disk / "real", spot.root / "link"
    target.mkdir()
    link.symlink_to(target)
    options = ["--dir", str(link), "--state-dir", str(spot.root / "elsewhere")]
    first = spot.start(1, [*TOY, "--steps", "10"], *options, "--poll", "3600")
    until((link / "checkpoint-5").exists)
    first.kill_machine()
    spot.intend(2)
    second = spot.start(2, [*TOY, "--steps", "20"], *options)
    assert second.wait() == 0, second.log
    assert (second.heard("start"), spot.attempt(2).checkpoints[-1].step) == (0, 20)
    assert second.heard("environment")["RESUME_DIR"] == str(link)
    assert (small_disk / "real.uncommitted/checkpoint-5").is_dir()
    spot.intend(3)
    third = spot.start(3, [*TOY, "--steps", "40"], *options)
    assert third.wait() == 0, third.log
    assert (third.heard("start"), spot.attempt(3).checkpoints[-1].step) == (20, 40)
    assert link.is_symlink()
    assert link.resolve() == target


def test_out_of_memory_counters_are_found_in_both_kinds_of_cgroup(tmp_path: Path) -> None:
    """Version 2 has memory.events, version 1 has memory.oom_control, seen from inside or outside."""
    two = tmp_path / "two/job/memory.events"
    one = tmp_path / "one/memory/memory.oom_control"
    for path in (one, two):
        path.parent.mkdir(parents=True)
        path.write_text("low 0\noom_kill 3\n")
    rows = tmp_path / "cgroup"
    rows.write_text("0::/job\n")
    assert oom_kills(rows, tmp_path / "two") == 3
    rows.write_text("4:memory:/elsewhere\n")
    assert oom_kills(rows, tmp_path / "one") == 3
    assert oom_kills(rows, tmp_path / "nowhere") == 0


def test_a_disk_with_space_is_not_full(tmp_path: Path) -> None:
    """Neither is one that cannot be asked."""
    assert not disk_full(tmp_path)
    assert not disk_full(tmp_path / "absent")
