"""Real `resume-run` processes on a machine that can be taken away, and what they leave in the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, StoreOptions
from airflow_resume_provider.checkpoints.history import AttemptHistory
from airflow_resume_provider.checkpoints.records import IntentRecord
from airflow_resume_provider.testing.gcs import GcsServer
from airflow_resume_provider.testing.gcs.faults import Fault, FaultPlan, Rule
from airflow_resume_provider.testing.gcs.hooks import Hooks
from airflow_resume_provider.testing.metadata.server import Identity, MetadataServer

TOY = [sys.executable, "-S", "-E", str(Path(__file__).with_name("toy_trainer.py"))]
_CLI = "airflow_resume_provider.runtime.cli"
_NOWHERE = "127.0.0.1:1"  # a metadata server that is not there


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for a condition and return what it said; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {condition}"
        time.sleep(0.01)
    return said


class Loop:
    """An event loop in a thread, for servers that synchronous tests talk to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def close(self) -> None:
        """Stop and forget."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Running:
    """One `resume-run`, its output in files, and all that it started."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], out: Path) -> None:
        self._out, self._log = out.with_suffix(".out"), out.with_suffix(".log")
        with self._out.open("wb") as stdout, self._log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, env=dict(environ), stdout=stdout, stderr=stderr, start_new_session=True
            )

    @property
    def log(self) -> str:
        """What `resume-run` said."""
        return self._log.read_text()

    @property
    def printed(self) -> str:
        """What the training wrote to its standard output."""
        return self._out.read_text()

    @property
    def said(self) -> list[dict[str, Any]]:
        """What the training said, one JSON object per whole line."""
        lines = self._out.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith('{"')]

    def heard(self, word: str) -> Any:
        """Return the last value that the training said for `word`, or None."""
        return next((line[word] for line in reversed(self.said) if word in line), None)

    def commits(self) -> int:
        """Return the number of commits so far."""
        return self.log.count(" committed step ")

    def wait(self, seconds: float = 40.0) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_machine()
            raise AssertionError(f"still running:\n{self.log}") from None

    def terminate(self) -> None:
        """Send SIGTERM to `resume-run` alone, as a container runtime does."""
        self.process.terminate()

    def kill_machine(self) -> None:
        """Take the power away: nothing of it gets to do anything any more."""
        family = descendants(self.process.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait(10)


def descendants(pid: int) -> list[int]:
    """Return the process and everything below it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family.extend(child for child, parent in parents.items() if parent == member)
    return family


class World:
    """A store, a metadata server, and attempts one after the other, as the operator would make them."""

    def __init__(self, root: Path, *, gcs: bool = False) -> None:
        self.root = root
        self.loop = Loop()
        self.faults = FaultPlan()
        self.gcs: GcsServer | None = None
        self.metadata: MetadataServer | None = None
        self.metadata_servers: list[MetadataServer | None] = []
        self.uri = f"file://{root}/store/lineage"
        if gcs:
            hooks = Hooks(before_request=self.faults)
            self.gcs = self.loop.run(GcsServer(root / "buckets", hooks=hooks).start())
            self.gcs.create_bucket("resume")
            self.uri = "gs://resume/lineage"
        self.runs: list[Running] = []

    @property
    def environ(self) -> dict[str, str]:
        """Environment of a job: none of the caller's own settings, the emulators' addresses."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("RESUME_", "BATCH_"))}
        own["GCE_METADATA_HOST"] = self.metadata.address if self.metadata else _NOWHERE
        own["RESUME_NICE"] = "0"  # beside other tests a niced uploader would have to wait for all of them
        own["PYTHONPATH"] = str(Path(__file__).parents[2])  # the same checkout as the test's own
        if self.gcs:
            own["STORAGE_EMULATOR_HOST"] = self.gcs.endpoint
        return own

    @property
    def lineage(self) -> Lineage:
        """The lineage, read by the test's own process."""
        return self.open(self.uri)

    def open(self, uri: str) -> Lineage:
        """Open a lineage of this world."""
        return Lineage.open(uri, options=self._options)

    def checkpoint(self, uri: str) -> Checkpoint:
        """Open a checkpoint of this world."""
        return Checkpoint.from_uri(uri, options=self._options)

    @property
    def _options(self) -> StoreOptions:
        return StoreOptions(emulator=self.gcs.endpoint if self.gcs else "")

    def with_metadata(self) -> MetadataServer:
        """Start a metadata server for the attempts to come."""
        identity = Identity("p", "1", "us-central1-a", "17", "vm")
        self.metadata = self.loop.run(MetadataServer(identity).start())
        return self.metadata

    def on_another_machine(self) -> None:
        """Attempts to come run where no notice has been given."""
        self.metadata_servers.append(self.metadata)
        self.metadata = None

    def disturb(self, fault: Fault, path: str, method: str = "PUT|POST") -> Rule:
        """Do something to the store's requests whose object name contains `path`."""
        encoded = "".join(f"%{ord(c):02X}" if c in "-./" else c for c in path)
        return self.faults.add(fault, method=method, path=encoded)

    def intend(self, attempt: int, reason: str = "preempted", uri: str = "") -> None:
        """Announce an attempt as the operator does before it submits."""
        self.open(uri or self.uri).write_intent(IntentRecord(attempt=attempt, reason=reason))

    def start(
        self,
        attempt: int,
        command: Sequence[str],
        *options: str,
        environ: Mapping[str, str] | None = None,
        directory: str = "",
        within: Sequence[str] = (),
        intent: str = "",
    ) -> Running:
        """Start an attempt; each has a disk of its own unless `directory` names one.

        `intent` is the lineage in which it is announced before, as the operator does.
        """
        if intent:
            self.intend(attempt, uri=intent)
        where = self.root / (directory or f"disk-{attempt}") / "work"
        where.parent.mkdir(parents=True, exist_ok=True)
        words = ["--lineage", self.uri, "--attempt", str(attempt), "--dir", str(where), "--poll", "0.05"]
        run = Running(
            [*within, sys.executable, "-m", _CLI, *words, *options, "--", *command],
            {**self.environ, **(environ or {})},
            self.root / f"run-{len(self.runs)}",
        )
        self.runs.append(run)
        return run

    def attempt(self, number: int) -> AttemptHistory:
        """Return what the store knows about an attempt."""
        return next(each for each in self.lineage.history().attempts if each.number == number)

    def end(self, number: int) -> tuple[str, int]:
        """Return an attempt's own account of its end."""
        end = self.attempt(number).end
        assert end is not None
        return end.state.value, end.exit_code

    def close(self) -> None:
        """End everything."""
        for run in self.runs:
            if run.process.poll() is None:
                run.kill_machine()
        for server in (*self.metadata_servers, self.metadata, self.gcs):
            if server is not None:
                self.loop.run(server.stop())
        self.loop.close()


@contextlib.contextmanager
def world(root: Path, *, gcs: bool = False) -> Iterator[World]:
    """A world that ends with the block."""
    made = World(root, gcs=gcs)
    try:
        yield made
    finally:
        made.close()


def steps(spot: World, attempt: int = 1) -> list[int]:
    """Return the steps that an attempt has committed."""
    return [each.step for each in spot.attempt(attempt).checkpoints]
