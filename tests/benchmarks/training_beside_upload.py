"""What a training loses while its checkpoints go up: steps per second, with and without the runtime."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_resume_provider.runtime.politeness import be_polite

ABOUT = "training steps per second while checkpoints go up, against training alone"
TRAINER = Path(__file__).with_name("steady_trainer.py")
TARGETS = {"store at 1 MB/s": 0.98, "store at full speed": 0.95}


def run(quick: bool = False) -> list[str]:
    """Measure in turns, so that drift hits all alike; print medians and ratios."""
    seconds, rounds, megabytes = (6.0, 1, 32) if quick else (12.0, 5, 256)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=_fast_disk()) as scratch, _server(Path(scratch)) as endpoint:
        for turn in range(rounds):
            work = [str(seconds), str(megabytes), "4"]
            for name, options in (
                ("alone", None),
                ("store at 1 MB/s", "slow"),
                ("store at full speed", "fast"),
            ):
                where = Path(scratch) / f"{turn}-{name.replace(' ', '-').replace('/', '-')}"
                rates.setdefault(name, []).append(_measure(where, work, endpoint, options))
    return _report(rates)


def _measure(where: Path, work: list[str], endpoint: str, bucket: str | None) -> float:
    environ = {**os.environ, "RESULT": str(where) + ".json", "RESUME_DIR": str(where / "work")}
    command = [sys.executable, str(TRAINER), *work]
    where.mkdir()
    if bucket:
        environ |= {"STORAGE_EMULATOR_HOST": endpoint, "GCE_METADATA_HOST": "127.0.0.1:1"}
        ours = ["--lineage", f"gs://{bucket}/{where.name}", "--attempt", "1", "--dir", str(where / "work")]
        # At 1 MB/s the last upload would take minutes: what counts is over when the training is.
        command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", *ours, "--", *command]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, start_new_session=True)
    result = Path(environ["RESULT"])
    while process.poll() is None and not result.exists():
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    return float(json.loads(result.read_text())["rate"])


def _report(rates: dict[str, list[float]]) -> list[str]:
    missed = []
    print(f"{'':>24} {'steps/s':>9} {'ratio':>7} {'target':>7}")
    for name, measured in rates.items():
        # Each is compared with its own turn's: what else the machine did then hits both.
        ratio = statistics.median(one / alone for one, alone in zip(measured, rates["alone"], strict=True))
        target = TARGETS.get(name)
        wanted = f"≥ {target}" if target else ""
        print(f"{name:>24} {statistics.median(measured):9.1f} {ratio:7.3f} {wanted:>7}")
        if target and ratio < target:
            missed.append(f"training beside an upload, {name}: {ratio:.3f} < {target}")
    return missed


def _fast_disk() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def _server(scratch: Path) -> Iterator[str]:
    """A store in a process of its own. Niced, since the real one is another machine."""
    command = [sys.executable, "-m", "tests.benchmarks.training_beside_upload", str(scratch / "buckets")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
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
