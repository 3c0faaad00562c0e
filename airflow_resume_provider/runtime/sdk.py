"""What a training script may ask and say. The standard library only, and harmless outside `resume-run`.

::

    import airflow_resume_provider.runtime as resume

    training = resume.current()
    if training.checkpoint:
        load(training.checkpoint.to_directory(), training.checkpoint.step)
    for step in ...:
        if training.should_stop or step % 100 == 0:
            save(directory)
            training.commit(directory, step=step, metrics={"loss": loss})
        if training.should_stop:
            break
    else:
        training.finish()
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.formats.evidence import read_json
from airflow_resume_provider.runtime.formats.names import files_below
from airflow_resume_provider.runtime.options import signal_number
from airflow_resume_provider.runtime.pin import pin_files
from airflow_resume_provider.runtime.state import State, write_whole

PathLike = str | os.PathLike[str]
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class ResumedCheckpoint:
    """The checkpoint that this attempt resumes from. Asking for its words moves no bytes.

    With `--lazy` nothing has been restored yet, and its bytes come from the store when
    `to_directory` or `as_directory` is called: one download per node for all processes.
    """

    uri: str
    step: int
    index: int
    path: Path
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    lazy: bool = False

    def to_directory(self, path: PathLike | None = None) -> Path:
        """Return where its files lie; with `path`, put a copy of them exactly there."""
        if self.lazy:
            from airflow_resume_provider.checkpoints import Checkpoint

            return Checkpoint.from_uri(self.uri).to_directory(path)
        if path is None:
            return self.path
        target = Path(path)
        if self.path.is_dir():
            shutil.copytree(self.path, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.path, target)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[Path]:
        """Yield where its files lie; what was only fetched for this is removed afterwards."""
        if self.lazy:
            from airflow_resume_provider.checkpoints import Checkpoint

            with Checkpoint.from_uri(self.uri).as_directory() as directory:
                yield directory
        else:
            yield self.path


class Training:
    """The training as its own script sees it; get it with `current()`."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        directory = environ.get(env.STATE_DIR, "")
        self._state = State(Path(directory)) if directory else None
        self.directory = Path(environ.get(env.DIR) or ".")
        self.attempt = int(environ.get(env.ATTEMPT) or 1)
        self.id = environ.get(env.TRAINING_ID, "")
        self._notice = Path(environ[env.NOTICE_FILE]) if environ.get(env.NOTICE_FILE) else None
        self._numbers = itertools.count()
        self._told = False

    def __repr__(self) -> str:
        return f"Training(id={self.id!r}, attempt={self.attempt}, directory={str(self.directory)!r})"

    @property
    def managed(self) -> bool:
        """Whether a runtime is there that commits; without one every call below does nothing."""
        return self._state is not None and self._state.directory.is_dir()

    @property
    def checkpoint(self) -> ResumedCheckpoint | None:
        """What was restored, or None on a fresh start."""
        said = read_json(self._state.checkpoint) if self._state else None
        if not isinstance(said, dict) or not said.get("uri"):
            return None
        metadata = {name: value for name, value in said["metadata"].items() if name != "resume"}
        lazy = bool(said.get("lazy"))
        path = self.directory / said["path"]
        return ResumedCheckpoint(
            said["uri"], said["step"], said["index"], path, said["metrics"], metadata, lazy
        )

    @property
    def should_stop(self) -> bool:
        """Whether a preemption notice came: save, commit and leave. Costs one look at a path."""
        return self._told or (self._notice is not None and self._notice.exists())

    @property
    def deadline(self) -> float | None:
        """When this process will be killed, in seconds since the epoch, or None without a notice."""
        said = read_json(self._notice) if self._notice else None
        return float(said["deadline"]) if isinstance(said, dict) else None

    def commit(
        self,
        directory: PathLike,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: float = 0.0,
    ) -> dict[str, Any] | None:
        """Hand over a finished checkpoint. It is held by hard links at once and sent in the background.

        From the first call on only what is handed over is committed. `directory` may be changed or
        removed as soon as this returns, except for writing into the same files.

        Args:
            directory: all files below it make the checkpoint.
            step: the trainer's own counter.
            metrics: JSON values for the manifest.
            metadata: more JSON for the manifest, read back through `checkpoint.metadata`.
            wait: seconds to wait for the store; 0 returns at once.

        Returns:
            The reference (uri, index, step …) if it was committed within `wait`, else None.

        Raises:
            FileNotFoundError: there is no file in `directory`.
            TypeError: metrics or metadata are no JSON.
        """
        if not self.managed or self._state is None:
            return None
        said = {"step": int(step), "metrics": dict(metrics or {}), "metadata": dict(metadata or {})}
        json.dumps(said)  # before anything is held
        self._state.explicit.touch()
        # In the order of a clock that never jumps and that all processes of this machine share.
        request = (
            self._state.requests / f"{time.monotonic_ns():020d}-{os.getpid()}-{next(self._numbers)}.json"
        )
        held = self._hold(Path(directory), request.stem)
        write_whole(request, json.dumps({**said, "answered": wait > 0, **held}))
        return self._answer(request.with_suffix(".answer"), wait)

    def finish(self) -> None:
        """Say that the training has reached its end, whatever notice came meanwhile."""
        if self.managed and self._state is not None:
            self._state.finished.touch()

    def report(self, **metrics: Any) -> None:
        """Keep metrics for the checkpoints to come; the same as writing RESUME_METRICS_FILE."""
        if self.managed and self._state is not None:
            write_whole(self._state.metrics, json.dumps({**self._state.read_metrics(), **metrics}))

    def heed(self, number: signal.Signals) -> None:
        """Let the stop signal mean `should_stop` in this process, unless the script handles it itself."""
        if not self.managed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, self._tell)
            # A forked helper, such as a data loader's worker, must die of it as before.
            os.register_at_fork(after_in_child=lambda: _reset(number))

    def _tell(self, _number: int, _frame: object) -> None:
        self._told = True

    def _hold(self, directory: Path, name: str) -> dict[str, Any]:
        assert self._state is not None
        directory, home = directory.resolve(), self.directory.resolve()
        top = home if directory.is_relative_to(home) else directory.parent
        path = directory.relative_to(top).as_posix()
        files = files_below(directory, "" if path == "." else f"{path}/")
        if not files:
            raise FileNotFoundError(f"{directory} holds no file to commit")
        pin = pin_files(top, files, self._state.pins / name)
        return {"path": path, "directory": str(pin.directory), "stamps": dict(pin.stamps)}

    def _answer(self, path: Path, wait: float) -> dict[str, Any] | None:
        until = time.monotonic() + wait
        while not path.exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        said = read_json(path)
        path.unlink(missing_ok=True)
        return said.get("reference") if isinstance(said, dict) else None


def _reset(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)


def current() -> Training:
    """Return this process's training.

    In the main thread, and where the script has no handler of its own, the stop signal
    (SIGTERM, or what the author chose) then no longer ends the process but sets `should_stop`.
    """
    training = Training()
    training.heed(signal_number(os.environ.get(env.STOP_SIGNAL) or "TERM"))
    return training
