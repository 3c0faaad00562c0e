"""Random histories with kills, faults and two nodes: what was committed and not pruned stays restorable.

`RESUME_CHAOS` sets the number of histories; each is reproduced by its seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import BUCKET, DisturbedServer, Raw, read_tree, write_tree

from airflow_resume_provider.checkpoints import AttemptRecord, Checkpoint, Lineage, StoreOptions, claims
from airflow_resume_provider.checkpoints.retrying import Patience
from airflow_resume_provider.checkpoints.store import Store, open_store
from airflow_resume_provider.checkpoints.writer import Writer
from airflow_resume_provider.errors import ResumeError
from airflow_resume_provider.testing.gcs import Fault

HISTORIES = int(os.environ.get("RESUME_CHAOS", "200"))
# Every so many histories real processes are started and killed; that takes half a second each.
REAL_KILLS_EVERY = 20
GROUPS = 8
FAULTS = [
    Fault(status=429),
    Fault(status=500),
    Fault(status=503),
    Fault(status=504),
    Fault(reset=True),
    Fault(after=0, reset=True),
    Fault(after=7, reset=True),
    Fault(after=3, stall=0.2),
    Fault(corrupt=2),
]


class Killed(BaseException):
    """The process has died; nothing of it runs any more."""


class Mortal:
    """A store as seen by a process that dies at its `calls`-th request, and makes none after that."""

    def __init__(self, store: Store, calls: int) -> None:
        self._store, self._left = store, calls
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value) or name == "local_path":
            return value

        def call(*args: Any) -> Any:
            with self._lock:
                self._left -= 1
                if self._left < 0:
                    raise Killed
            return value(*args)

        return call


@dataclass
class History:
    """One training's life on two nodes. `committed` is what must stay, by URI."""

    seed: int
    uri: str
    scratch: Path
    server: DisturbedServer
    committed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    written: dict[str, dict[str, bytes]] = field(default_factory=dict)
    attempt: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.raw = Raw(self.uri, self.server.endpoint)

    def live(self) -> None:
        """Let things happen, some of them while the store misbehaves."""
        for _ in range(self.random.randint(4, 8)):
            event = self.random.choice(
                [self.begin, self.commit, self.commit, self.commit, self.zombie, self.prune]
            )
            self.server.plan.clear()
            if self.uri.startswith("gs://") and self.random.random() < 0.7:
                self._disturb()
            with self._node(self.random.choice("AB")), suppress(ResumeError, Killed):
                event()
            self.server.plan.clear()
            self._account()

    def check(self) -> None:
        """The invariant, with a store that behaves: every commit is there, and the right one is chosen."""
        for uri, files in self.committed.items():
            out = self.scratch / "check"
            Checkpoint.from_uri(uri).to_directory(out)
            assert read_tree(out) == files, f"seed {self.seed}: {uri}"
        choices = []
        for node in "AB":
            with self._node(node):
                choices.append(Lineage.open(self.uri).choose(self.attempt + 1, contents=True))
        assert choices[0] == choices[1]
        chosen = choices[0].reference
        assert (chosen is None) == (not self.committed), f"seed {self.seed}"
        own = [uri for uri in self.committed if f"/attempts/{self.attempt:04d}/" in uri]
        if own and chosen:
            assert chosen.uri == max(own), f"seed {self.seed}"

    def begin(self) -> None:
        """The next attempt restores, on whichever node, and says so."""
        number = self.attempt + 1
        lineage = self._lineage()
        restored = lineage.restore(number, self.scratch / f"node-{self.random.choice('AB')}")
        if restored.reference:
            assert read_tree(restored.directory) == self.written[restored.reference.uri], f"seed {self.seed}"
            assert restored.reference.uri in self.committed
        else:
            assert not self.committed, f"seed {self.seed}: a fresh start although something was there"
        source = restored.reference.uri if restored.reference else ""
        lineage.begin_attempt(AttemptRecord(attempt=number, resumed_from=source))
        self.attempt = number

    def commit(self) -> None:
        """The running attempt commits, and may die on the way."""
        self._commit(self.attempt)

    def zombie(self) -> None:
        """An attempt that is long replaced tries to commit."""
        if self.attempt > 1:
            self._commit(self.random.randint(1, self.attempt - 1))

    def prune(self) -> None:
        """Retention runs, and may die on the way. What it was about to delete no longer has to be there."""
        doomed = Lineage.open(self.uri).prune(keep_last=2, dry_run=True).deleted
        for uri in doomed:
            self.committed.pop(uri, None)
        self._lineage().prune(keep_last=2)

    def _commit(self, attempt: int) -> None:
        self.step += 1
        files = {
            f"{n}/shard {self.random.choice('abc')}.bin": self.random.randbytes(self.random.randint(0, 3000))
            for n in range(self.random.randint(1, 4))
        }
        source = self.scratch / f"source-{self.step}"
        write_tree(source, files)
        self.written[str(self.step)] = files
        self._send(attempt, source)

    def _send(self, attempt: int, source: Path) -> None:
        self._lineage().commit(source, attempt=attempt, step=self.step)

    def _lineage(self) -> Lineage:
        """Return the lineage as a process sees it that may die at any request."""
        options = StoreOptions(max_total_seconds=0.3, read_seconds=0.1)
        store = open_store(self.uri, options)
        if self.random.random() < 0.4:
            return Lineage(Mortal(store, self.random.randint(0, 25)))  # type: ignore[arg-type]
        return Lineage(store)

    def _disturb(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            fault, probability = self.random.choice(FAULTS), self.random.choice([0.05, 0.2, 0.2, 1.0])
            method = "GET" if fault.corrupt is not None else ".*"
            # A manifest with a wrong bit is a broken manifest; what is asked here is about data.
            path = "shard" if fault.corrupt is not None else ""
            # Bytes that stay wrong make a checkpoint broken; a passing error must not.
            times = 1 if fault.corrupt is not None else 40
            self.server.plan.add(fault, method=method, path=path, probability=probability, times=times)

    def _account(self) -> None:
        """Whatever has a manifest in the store is committed, whether or not its writer lived to know."""
        for name in self.raw.names():
            uri = f"{self.uri}/{name.removesuffix('/manifest.json')}"
            if name.endswith("/manifest.json") and uri not in self.written:
                step = str(json.loads(self.raw.get(name)).get("step"))
                if step in self.written:
                    self.written[uri] = self.committed[uri] = self.written[step]

    @contextmanager
    def _node(self, name: str) -> Iterator[None]:
        """Be another machine: with other processes, that know nothing of this one's claims."""
        with pytest.MonkeyPatch.context() as patch:
            host = f"machine {name}"
            patch.setattr(Writer, "current", classmethod(lambda cls: Writer(host, os.getpid(), "1")))
            patch.setattr("airflow_resume_provider.checkpoints.writer._host", lambda: host)
            patch.setattr(claims, "_settled", set())
            patch.setattr(claims, "_ours", set())
            yield


class KilledHistory(History):
    """The same, with commits in processes of their own that are killed at a random moment."""

    def _send(self, attempt: int, source: Path) -> None:
        command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", "commit", str(source)]
        command += ["--lineage", self.uri, "--attempt", str(attempt), "--step", str(self.step)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2 + self.random.random() * 0.5)
        process.kill()
        process.wait()


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_histories(group: int, server: DisturbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever dies and whatever fails, each commit that was not pruned is restored byte for byte."""
    monkeypatch.setattr(Patience, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Patience, "LONGEST_PAUSE", 0.05)
    monkeypatch.setenv("RESUME_STORE_SECONDS", "20")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="chaos-") as directory:
        _live_and_check(group, Path(directory), server)


def _live_and_check(group: int, top: Path, server: DisturbedServer) -> None:
    """Run a group's histories in memory: a commit is several fsyncs, which a disk makes slow."""
    commits = 0
    for seed in range(group, HISTORIES, GROUPS):
        scratch = top / str(seed)
        scratch.mkdir()
        # A faulty network costs time, a file system none, so one in four is in a bucket.
        bucket = seed // GROUPS % 4 == 3
        uri = f"gs://{BUCKET}/chaos-{seed}" if bucket else f"file://{scratch}/lineage"
        kind = KilledHistory if seed % REAL_KILLS_EVERY == 0 else History
        history = kind(seed, uri, scratch, server)
        history.live()
        history.check()
        commits += len(history.committed)
        shutil.rmtree(scratch)
    assert commits
