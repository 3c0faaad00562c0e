"""What the demo's command line says, and the one clear line for each thing that is in its way."""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import airflow_resume_provider
from airflow_resume_provider.errors import InvalidInput

# What the example DAGs run, unless Variables say otherwise.
TRAINER, RUNTIME = "trainer:latest", "resume-runtime:latest"
CHECKOUT = Path(airflow_resume_provider.__file__).resolve().parents[1]


class DemoError(Exception):
    """Something is in the demo's way; the text is one line for a person."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    folder: Path
    port: int
    steps: int
    step_seconds: float
    timeout: float
    hold: bool
    executor: str
    sidecar: bool

    @property
    def trainer(self) -> Path:
        """The trainer's source."""
        return CHECKOUT / "docker" / "trainer" / "train.py"

    @property
    def dag(self) -> Path:
        """The example DAG's source."""
        return CHECKOUT / "dags" / f"{self.dag_id}.py"

    @property
    def dag_id(self) -> str:
        """The example DAG."""
        return "train_unmodified_image" if self.sidecar else "train_digits"

    @property
    def images(self) -> tuple[str, ...]:
        """What runs in real containers; nothing where jobs are processes."""
        if self.executor == "process":
            return ()
        return (TRAINER, RUNTIME) if self.sidecar else (TRAINER,)


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_resume_provider.testing.demo",
        description="Start a real Airflow and a local Google Cloud Batch, run a training that is preempted "
        "twice, and prove that it ends with the same bytes as one that never was.",
    )
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where report.html goes")
    parser.add_argument("--port", type=int, default=0, help="port of Airflow's pages; 0 takes a free one")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps of the training")
    parser.add_argument("--step-seconds", type=float, default=0.1, help="pace of the training")
    parser.add_argument("--timeout", type=float, default=480, help="seconds until it gives up")
    parser.add_argument("--hold", action="store_true", help="keep Airflow open at the end, until Ctrl-C")
    parser.add_argument(
        "--executor",
        choices=("process", "podman", "docker"),
        default="process",
        help="what jobs are: processes, or real containers, whose images `make images` builds",
    )
    parser.add_argument(
        "--sidecar", action="store_true", help="restore and commit beside an image that knows nothing of it"
    )
    return Options(**vars(parser.parse_args(arguments)))


def check(options: Options) -> None:
    """Raise a `DemoError` for what can be known before anything is started."""
    for source in (options.trainer, options.dag):
        if not source.is_file():
            raise DemoError(f"{source} is missing: the demo runs from a checkout of the project.")
    if options.steps < 300:
        raise DemoError(f"--steps {options.steps} is too short to be preempted twice; use 300 or more.")
    if options.port:
        _check_port(options.port)
    if options.images:
        _check_images(options)


def _check_images(options: Options) -> None:
    from airflow_resume_provider.testing.executors.containers import ContainerExecutor

    try:
        executor = ContainerExecutor(options.executor)
    except InvalidInput as error:
        raise DemoError(str(error)) from error
    if missing := [image for image in options.images if executor.lacks(image)]:
        raise DemoError(
            f"{options.executor} has no image {' and '.join(missing)}; `make images` builds them."
        )


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise DemoError(
                f"Port {port} of 127.0.0.1 cannot be used ({error}); leave --port out to get a free one."
            ) from error


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold the folder, so that two demos beside each other never mix their reports."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise DemoError(
                f"Another demo (process {lock.read().strip() or 'unknown'}) writes to {folder}; "
                f"wait for it, or give this one its own with --folder {folder}-2."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
