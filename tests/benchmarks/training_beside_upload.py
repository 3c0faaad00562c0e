"""What a training loses while its checkpoints go up: steps per second, with and without an upload.

Training, runtime and store run in CPU groups of their own where this machine lets us make some: the
first two together, as in a container, and the store apart. The store is another machine in truth, so the
CPU time that it takes here, at full weight so that nothing holds up the upload, is given back to the
training, at the price that this training pays for such time: its threads wait for each other, so it pays
for more than is taken. A process that takes a known share is measured first for that.
A training counts only when hardly anything else ran meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import below, cpu_seconds

ABOUT = "training steps per second while a checkpoint goes up, against slices without that in between"
TRAINER = "tests.benchmarks.steady_trainer"
SLOW, FAST = "store at 1 MB/s", "store at full speed"
BUCKETS = {SLOW: "slow", FAST: "fast"}
TARGETS = {SLOW: 0.98, FAST: 0.95}
MEGABYTES = {SLOW: 8, FAST: 256}
THIEF = """
import time
while True:
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    time.sleep(0.01)
"""
# A training beside which others used more than this share of the machine says nothing, and is repeated.
FOREIGN = 0.04
ENOUGH = 16  # turns, of which one differs from the next by a hundredth or two
QUIET_SECONDS = 20.0


@dataclass(frozen=True)
class Measured:
    """One training: its turns, and the CPU seconds of whoever ran beside it."""

    turns: tuple[Mapping[str, Any], ...]
    runtime: float
    foreign: float

    def ratios(self, price: float) -> list[float]:
        """Steps per second with an upload against those without, the store's CPU time given back."""
        return [_ratio(turn) / (1 - price * turn["store"] / turn["with"][1]) for turn in self.turns]


def run(quick: bool = False) -> list[str]:
    """Measure turns within one process, since two processes differ by more than what is looked for."""
    seconds, tries = (6.0, 1) if quick else (40.0, 12)
    missed = []
    with (
        tempfile.TemporaryDirectory(dir=_fast_disk()) as scratch,
        _groups() as group,
        _server(Path(scratch), group) as (pid, endpoint),
    ):
        print("in CPU groups of its own" if group else "in no CPU group of its own", flush=True)
        price = _price(Path(scratch), group, 12.0 if quick else 80.0)
        for name, bucket in BUCKETS.items():
            ratios: list[float] = []
            for number in range(tries):
                _await_quiet()
                where = Path(scratch) / f"{bucket}-{number}"
                measured = _measure(where, [str(seconds), str(MEGABYTES[name])], endpoint, bucket, pid, group)
                quiet = measured.foreign < FOREIGN * (os.cpu_count() or 1) * seconds
                print(_line(name, measured, price), "" if quiet else "(others used the machine)", flush=True)
                ratios += measured.ratios(price) if quiet or quick else []
                if len(ratios) >= ENOUGH:
                    break
            missed += _report(name, ratios)
    return missed


def _price(scratch: Path, group: Path | None, seconds: float) -> float:
    """Return which share of its steps the training loses per core that others take from it."""
    result = scratch / "thief.json"
    places = {"RESUME_DIR": str(scratch / "nothing"), "RESUME_STATE_DIR": str(scratch / "no-state")}
    thief = subprocess.Popen([sys.executable, "-c", THIEF], preexec_fn=_into(group, "store"))
    try:
        subprocess.run(
            [sys.executable, "-m", TRAINER, str(seconds), "thief"],
            env={**os.environ, "RESULT": str(result), "BESIDE": str(thief.pid), **places},
            check=True,
            preexec_fn=_into(group, "job"),
        )
    finally:
        thief.kill()
        thief.wait()
    turns = json.loads(result.read_text())["turns"]
    share = statistics.median(turn["store"] / turn["with"][1] for turn in turns)
    lost = 1 - statistics.median(map(_ratio, turns))
    # No less than what perfectly independent threads lose, no more than all of them at once.
    price = min(1.0, max(1 / (os.cpu_count() or 1), lost / share))
    print(f"a process that takes {share:.3f} of a core costs {lost:.3f} of the steps: {price:.2f} per core")
    return price


def _measure(
    where: Path, work: list[str], endpoint: str, bucket: str, server: int, group: Path | None
) -> Measured:
    where.mkdir()
    result = where / "result.json"
    environ = {**os.environ, "RESULT": str(result), "STORAGE_EMULATOR_HOST": endpoint}
    environ |= {"GCE_METADATA_HOST": "127.0.0.1:1", "BESIDE": str(server)}
    ours = ["--lineage", f"gs://{bucket}/{where.name}", "--attempt", "1", "--dir", str(where / "work")]
    command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", *ours]
    busy, served = _busy(), cpu_seconds(server)
    process = subprocess.Popen(
        [*command, "--", sys.executable, "-m", TRAINER, *work],
        env=environ,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_into(group, "job"),
    )
    _await(result)
    family = [process.pid, *below(process.pid)]
    own, served, busy = sum(map(cpu_seconds, family)), cpu_seconds(server) - served, _busy() - busy
    process.kill()
    process.wait()
    said = json.loads(result.read_text())
    return Measured(tuple(said["turns"]), own - said["cpu"], busy - own - served)


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


def _ratio(turn: Mapping[str, Any]) -> float:
    (with_it, seconds), (without, as_well) = turn["with"], turn["without"]
    return float(with_it / seconds / (without / as_well))


def _line(name: str, measured: Measured, price: float) -> str:
    """The turns' ratios, and what ran beside them in CPU seconds."""
    ratios = ", ".join(f"{ratio:.3f}" for ratio in measured.ratios(price))
    seconds = sum(turn["with"][1] for turn in measured.turns)
    store = sum(turn["store"] for turn in measured.turns)
    beside = f"runtime {measured.runtime:.2f}, store {store:.2f}, others {measured.foreign:.2f}"
    return f"{name}: {ratios} ({seconds:.1f} s of uploads; CPU s: {beside})"


def _report(name: str, ratios: list[float]) -> list[str]:
    if not ratios:
        print(f"{name}: not measured, others used the machine all the time")
        return [f"training beside an upload, {name}: not measured"]
    ratio, target = statistics.median(ratios), TARGETS[name]
    said = "met" if ratio >= target else "MISSED"
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratio,) * 3
    spread = f"the middle half from {low:.3f} to {high:.3f}"
    print(f"{name}: median of {len(ratios)} turns {ratio:.3f} ({spread}), target ≥ {target}: {said}")
    return [] if ratio >= target else [f"training beside an upload, {name}: {ratio:.3f} < {target}"]


def _busy() -> float:
    """CPU seconds that the machine has spent on anything since it was started."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _fast_disk() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def _groups() -> Iterator[Path | None]:
    """CPU groups that weigh far more than all else here; None where they cannot be made."""
    root = Path("/sys/fs/cgroup/cpu") / f"resume-bench-{os.getpid()}"
    places = {root: 1 << 18, root / "job": 1024, root / "store": 1024}
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
    """A store in a process of its own."""
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
    asyncio.run(_serve(Path(sys.argv[1])))
