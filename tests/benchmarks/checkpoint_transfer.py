"""Restoring and committing, pair by pair against what people use otherwise, verification on."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ABOUT = "restore and commit of one big-files and one many-small-files checkpoint, against other clients"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Shape:
    """One checkpoint's files."""

    name: str
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Target:
    """How many times faster than `client` this project has to be."""

    job: str
    shape: str
    client: str
    ratio: float
    repetitions: int = 3


TARGETS = (
    Target("restore", "big", "google-cloud-storage", 4.0),
    Target("restore", "big", "transfer_manager", 2.3),
    Target("restore", "big", "gcsfs", 2.0),
    Target("restore", "big", "cp", 0.8),
    Target("restore", "small", "google-cloud-storage", 12.0, repetitions=7),
    Target("restore", "small", "gcsfs", 3.0, repetitions=7),
    Target("commit", "big", "transfer_manager", 1.5),
    Target("commit", "small", "transfer_manager", 7.0, repetitions=5),
    # Verification may cost 7 %: 1 / 1.07.
    # A difference that small drowns in a few runs of a busy machine.
    Target("restore", "big", "unverified", 0.93, repetitions=9),
    Target("restore", "big", "sockets to disk", 0.0),
    Target("restore", "big", "loopback limit", 0.0),
    Target("commit", "big", "google-cloud-storage", 0.0),
    Target("commit", "big", "gcsfs", 0.0),
)
MEMORY_MIB = 300


def shapes(quick: bool) -> dict[str, Shape]:
    """Return 4 GiB in 8 files, two of them of 1.5 GiB, and 2,000 files of 64 KiB."""
    scale = 64 if quick else 1
    rest = (4096 - 2 * 1536) // 6
    sizes = (1536, 1536, *(rest,) * 6)
    return {
        "big": Shape("big", tuple(size * MIB // scale for size in sizes)),
        "small": Shape("small", (64 * 1024,) * (2000 // scale)),
    }


def run(quick: bool = False) -> list[str]:
    """Measure all pairs, print them, and return the targets that were missed."""
    with (
        tempfile.TemporaryDirectory(dir=_fast_disk(), prefix="bench-") as scratch,
        server(scratch, drop="commit-") as endpoint,
    ):
        bench = Bench(Path(scratch), endpoint, quick)
        return [line for target in TARGETS for line in bench.pair(target)]


class Bench:
    """The data and the server of one run."""

    def __init__(self, scratch: Path, endpoint: str, quick: bool) -> None:
        self._scratch, self._quick = scratch, quick
        self._environment = {**os.environ, "STORAGE_EMULATOR_HOST": endpoint}
        self._shapes = shapes(quick)
        self._prepared: set[str] = set()

    def pair(self, target: Target) -> list[str]:
        """Run both sides alternately and compare the medians."""
        shape = self._prepare(target.shape)
        rows: dict[str, list[dict[str, float]]] = {"airflow-resume": [], target.client: []}
        for turn in range(1 if self._quick else target.repetitions):
            # Who comes first changes: machines get faster and slower in the meantime.
            for client in list(rows)[:: -1 if turn % 2 else 1]:
                rows[client].append(self._measure(client, target.job, shape))
        middle = {client: _medians(measured) for client, measured in rows.items()}
        ours, theirs = middle["airflow-resume"], middle[target.client]
        ratio = theirs["seconds"] / ours["seconds"]
        for client, row in middle.items():
            print(f"  {target.job:8}{shape.name:6} {client:22}{_describe(row, shape)}")
        wanted = f", target {target.ratio:g}" if target.ratio else ""
        print(f"  -> {ratio:.2f} times {target.client}{wanted}", flush=True)
        missed = [f"{target.job} {shape.name}: {ratio:.2f} times {target.client}, target {target.ratio:g}"]
        memory = [f"{target.job} {shape.name}: {ours['peak_mib']:.0f} MiB, target {MEMORY_MIB}"]
        return missed * (ratio < target.ratio) + memory * (ours["peak_mib"] > MEMORY_MIB)

    def _measure(self, client: str, job: str, shape: Shape) -> dict[str, float]:
        source, out = self._scratch / f"source-{shape.name}", self._scratch / "out"
        prefix = {"cp": str(source)}.get(client, f"{job}-{shape.name}")
        if job == "restore" and client not in ("airflow-resume", "unverified", "cp"):
            prefix = f"plain-{shape.name}"
        if job == "commit":
            prefix += f"-{client}"
        command = [sys.executable, "-m", "tests.benchmarks.transfer_client", client, job, "bench", prefix]
        command.append(str(source if job == "commit" else out))
        environment = dict(self._environment)
        if shape.name == "small":
            environment["BENCH_SMALL_FILES"] = "1"
        _warm_memory(2 * shape.total)
        try:
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment, timeout=600
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{client} could not {job}: {error.stderr[-2000:]}") from error
        finally:
            self._clean(job, prefix, out)
        return json.loads(done.stdout.splitlines()[-1])

    def _clean(self, job: str, prefix: str, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        (out.parent / f".{out.name}.ready.json").unlink(missing_ok=True)
        if job == "commit":
            self._delete(prefix)

    def _delete(self, prefix: str) -> None:
        import obstore

        store = self._store()
        for page in obstore.list(store, prefix):
            obstore.delete(store, [row["path"] for row in page])

    def _store(self):  # type: ignore[no-untyped-def]
        from obstore.store import GCSStore

        config = {"base_url": self._environment["STORAGE_EMULATOR_HOST"], "bearer_token": "x"}
        return GCSStore("bench", config=config, client_options={"allow_http": True})

    def _prepare(self, name: str) -> Shape:
        """Write the files, and put them into the store both as a checkpoint and plainly."""
        shape = self._shapes[name]
        if name not in self._prepared:
            self._prepared.add(name)
            source = self._scratch / f"source-{name}"
            source.mkdir()
            block = os.urandom(4 * MIB)
            for number, size in enumerate(shape.sizes):
                _fill(source / f"shard-{number:05d}.bin", size, block)
            self._upload(source, name)
        return shape

    def _upload(self, source: Path, name: str) -> None:
        import obstore

        from airflow_resume_provider.checkpoints import Lineage, StoreOptions

        endpoint = self._environment["STORAGE_EMULATOR_HOST"]
        lineage = Lineage.open(f"gs://bench/restore-{name}", options=StoreOptions(emulator=endpoint))
        lineage.commit(source, attempt=1, step=1)
        for path in source.iterdir():
            obstore.put(self._store(), f"plain-{name}/{path.name}", path)


def _fill(path: Path, size: int, block: bytes) -> None:
    with path.open("wb") as file:
        while size > 0:
            size -= file.write(block[: min(size, len(block))])


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _describe(row: dict[str, float], shape: Shape) -> str:
    gib = shape.total / 1024**3
    return (
        f"{gib / row['seconds']:6.2f} GiB/s {len(shape.sizes) / row['seconds']:8.0f} files/s"
        f" {row['cpu'] / gib:6.2f} CPU s/GiB {row['peak_mib']:6.0f} MiB"
    )


def _warm_memory(size: int) -> None:
    """Touch free memory and let go of it.

    A virtual machine may have given it back to its host, which takes up to six times as long to give
    it out again as writing to it does: who came first would be measured, and not who is faster.
    """
    if not Path("/proc/meminfo").exists():
        return
    available = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    size = min(size, available - 1024 * MIB)
    if size > 0:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def _fast_disk() -> str | None:
    """Return the directory of a memory disk, so that the clients and not the disk are measured."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def server(scratch: str, drop: str = "") -> Iterator[str]:
    """A store that does next to nothing: like the real one, it is not what clients wait for."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.lean_store", f"{scratch}/store", drop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition("=")[2]
    finally:
        process.communicate()
