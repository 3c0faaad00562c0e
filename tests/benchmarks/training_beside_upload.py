"""What a training loses while its checkpoints go up: steps per second, with and without the runtime.

Training, runtime and store run in CPU groups of their own where this machine lets us make some: the
first two together, as in a container, and the store apart with next to nothing, being another machine.
A pair counts only when hardly anything else ran meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_resume_provider.runtime.politeness import be_polite

ABOUT = "training steps per second while checkpoints go up, against training alone"
TRAINER = Path(__file__).with_name("steady_trainer.py")
SLOW, FAST = "store at 1 MB/s", "store at full speed"
BUCKETS = {SLOW: "slow", FAST: "fast"}
TARGETS = {SLOW: 0.98, FAST: 0.95}
# A pair beside which somebody else used more than this share of the machine says nothing, and is repeated.
FOREIGN = 0.04
PAIRS_AT_MOST = 5
QUIET_SECONDS = 20.0


@dataclass(frozen=True)
class Measured:
    """One training: steps per second, and the CPU seconds of whoever ran beside it, by whom."""

    rate: float
    commits: int
    runtime: float
    server: float
    foreign: float


@dataclass(frozen=True)
class Bench:
    """How long each training is, what it writes how often, and where the store is."""

    scratch: Path
    server: int
    endpoint: str
    group: Path | None
    seconds: float
    megabytes: int
    every: float

    def pair(self, name: str, number: int) -> tuple[Measured, Measured]:
        """Train alone and beside an upload, right after each other, in an order that changes."""
        buckets = ["", BUCKETS[name]] if number % 2 else [BUCKETS[name], ""]
        measured = {}
        for bucket in buckets:
            _await_quiet()
            measured[bucket] = self._measure(
                self.scratch / f"{BUCKETS[name]}-{number}-{bucket or 'alone'}", bucket
            )
        return measured[""], measured[BUCKETS[name]]

    def is_quiet(self, pair: tuple[Measured, Measured]) -> bool:
        """Whether nobody else has used the machine."""
        limit = FOREIGN * (os.cpu_count() or 1) * self.seconds
        return all(each.foreign < limit for each in pair)

    def _measure(self, where: Path, bucket: str) -> Measured:
        work = [str(self.seconds), str(self.megabytes), str(self.every)]
        result = where.with_suffix(".json")
        environ = {**os.environ, "RESULT": str(result), "RESUME_DIR": str(where / "work")}
        command = [sys.executable, str(TRAINER), *work]
        where.mkdir()
        if bucket:
            environ |= {"STORAGE_EMULATOR_HOST": self.endpoint, "GCE_METADATA_HOST": "127.0.0.1:1"}
            ours = [
                "--lineage",
                f"gs://{bucket}/{where.name}",
                "--attempt",
                "1",
                "--dir",
                str(where / "work"),
            ]
            command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", *ours, "--", *command]
        busy, served = _busy(), _cpu(self.server)
        with where.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                command, env=environ, stderr=log, start_new_session=True, preexec_fn=_into(self.group, "job")
            )
            # At 1 MB/s the last upload would take minutes: what counts is over when the training is.
            _await(result)
            family = [process.pid, *_below(process.pid)]
            own, served, busy = sum(map(_cpu, family)), _cpu(self.server) - served, _busy() - busy
            process.kill()
            process.wait()
        said = json.loads(result.read_text())
        commits = where.with_suffix(".log").read_text().count(" committed step ")
        return Measured(said["rate"], commits, own - said["cpu"], served, busy - own - served)


def run(quick: bool = False) -> list[str]:
    """Measure in pairs, so that drift hits both alike; print pairs, medians and ratios."""
    seconds, wanted, megabytes = (6.0, 1, 32) if quick else (9.0, 5, 192)
    pairs: dict[str, list[tuple[Measured, Measured]]] = {name: [] for name in BUCKETS}
    with (
        tempfile.TemporaryDirectory(dir=_fast_disk()) as scratch,
        _groups() as group,
        _server(Path(scratch), group) as (pid, endpoint),
    ):
        print("in CPU groups of its own" if group else "in no CPU group of its own", flush=True)
        bench = Bench(Path(scratch), pid, endpoint, group, seconds, megabytes, 3.0)
        for number, name in itertools.product(range(wanted * PAIRS_AT_MOST), BUCKETS):
            if len(pairs[name]) == wanted:
                continue
            pair = bench.pair(name, number)
            quiet = bench.is_quiet(pair)
            print(_line(name, *pair), "" if quiet else " (others used the machine: repeated)", flush=True)
            if quiet or quick:
                pairs[name].append(pair)
    return [missed for name in BUCKETS for missed in _report(name, pairs[name])]


def _await(result: Path) -> None:
    until = time.monotonic() + 120
    while not result.exists():
        if time.monotonic() > until:
            raise RuntimeError("the training did not end")
        time.sleep(0.1)


def _await_quiet() -> None:
    """Wait until nobody uses the machine, for a while at most."""
    until = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < until:
        busy = _busy()
        time.sleep(1.0)
        if _busy() - busy < 0.1:
            return


def _line(name: str, alone: Measured, beside: Measured) -> str:
    """One pair: the rates, and what ran beside them in CPU seconds."""
    rates = f"alone {alone.rate:7.1f}/s, {name} {beside.rate:7.1f}/s: {beside.rate / alone.rate:5.3f}"
    spent = f"{beside.commits} commits; CPU s: runtime {beside.runtime:4.2f}, server {beside.server:4.2f}"
    return f"{rates} ({spent}, others {alone.foreign:4.2f} and {beside.foreign:4.2f})"


def _report(name: str, pairs: list[tuple[Measured, Measured]]) -> list[str]:
    if not pairs:
        print(f"{name}: not measured, others used the machine all the time")
        return [f"training beside an upload, {name}: not measured"]
    ratio, target = statistics.median(beside.rate / alone.rate for alone, beside in pairs), TARGETS[name]
    said = "met" if ratio >= target else "MISSED"
    print(f"{name}: median of {len(pairs)} pairs {ratio:.3f}, target ≥ {target}: {said}")
    return [] if ratio >= target else [f"training beside an upload, {name}: {ratio:.3f} < {target}"]


def _busy() -> float:
    """CPU seconds that the machine has spent on anything since it was started."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _cpu(pid: int) -> float:
    """CPU seconds of a process and of those that it has waited for."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from _below(child)


def _fast_disk() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def _groups() -> Iterator[Path | None]:
    """CPU groups that weigh far more than all else here; None where they cannot be made."""
    root = Path("/sys/fs/cgroup/cpu") / f"resume-bench-{os.getpid()}"
    places = {root: 1 << 18, root / "job": 1024, root / "store": 15}
    try:
        for place, shares in places.items():
            place.mkdir()
            (place / "cpu.shares").write_text(str(shares))
    except OSError:
        yield None
        return
    try:
        yield root
    finally:
        for place in reversed(places):
            _remove(place)


def _remove(group: Path) -> None:
    """Remove a group, which its last process may not have left yet."""
    for _ in range(100):
        with suppress(OSError):
            return group.rmdir()
        time.sleep(0.1)
    return None


def _into(group: Path | None, name: str) -> Callable[[], None] | None:
    """Return what puts a new process into one of the groups."""
    return (lambda: (group / name / "cgroup.procs").write_text("0") and None) if group else None


@contextmanager
def _server(scratch: Path, group: Path | None) -> Iterator[tuple[int, str]]:
    """A store in a process of its own. Niced, since the real one is another machine."""
    command = [sys.executable, "-m", "tests.benchmarks.training_beside_upload", str(scratch / "buckets")]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_into(group, "store")
    )
    try:
        assert server.stdout is not None
        yield server.pid, server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()
        if server.stdout:
            server.stdout.close()


async def _serve(root: Path) -> None:
    from airflow_resume_provider.testing.gcs import GcsServer
    from airflow_resume_provider.testing.gcs.faults import Fault, FaultPlan
    from airflow_resume_provider.testing.gcs.hooks import Hooks

    plan = FaultPlan()
    plan.add(Fault(bandwidth=1_000_000), method="PUT|POST", path="^/(upload/storage/v1/b/)?slow")
    server = await GcsServer(root, hooks=Hooks(before_request=plan)).start()
    for bucket in ("slow", "fast"):
        server.create_bucket(bucket)
    print(server.endpoint, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    be_polite(19)
    asyncio.run(_serve(Path(sys.argv[1])))
