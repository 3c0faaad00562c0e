"""The second way in: `restore`, `sync` and `finish` beside a container that knows nothing of us.

They share the state directory. The training is not our child here, so it cannot be signalled;
it is told of a notice by RESUME_NOTICE_FILE and by whatever the platform does. That its container
exited 0 is known from the fact that `finish --succeeded`, which comes next and does not run after
a failure, has run.
"""

from __future__ import annotations

import fcntl
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints.records import EndState
from airflow_resume_provider.errors import ExitCode, InvalidInput
from airflow_resume_provider.runtime.beginning import begin
from airflow_resume_provider.runtime.commits import Commits
from airflow_resume_provider.runtime.events import Events
from airflow_resume_provider.runtime.formats import format_named
from airflow_resume_provider.runtime.formats.evidence import read_json
from airflow_resume_provider.runtime.notice import METADATA_SERVER, Notice, NoticeWatch, is_preempted_now
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.outcome import Outcome, Seen, outcome
from airflow_resume_provider.runtime.pipeline import Pipeline
from airflow_resume_provider.runtime.state import State
from airflow_resume_provider.runtime.stop import Stop

log = logging.getLogger("resume-run")
#: An exit code that we cannot know: Batch's own event has it.
UNKNOWN = -1


class Sidecar:
    """One of the three runnables: events, the store worker, the state directory."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state = State(options.state_dir)
        self.format = format_named(options.format)
        self.events = Events()
        self.stop = Stop(options, self.state)
        self.events.on("signal", self.stop.signalled)
        self.events.on("notice", self.stop.noticed)

    def restore(self) -> int:
        """Restore and write down what the later runnables and the training need."""
        self._watch()
        with self._commits() as commits:
            beginning = begin(self.options, self.state, self.format, commits)
            if beginning is None:
                return commits.end(outcome(Seen(child=None, notice=self._notice())))
            pipeline = self._pipeline(commits)
            pipeline.remember_present()
            self._save(commits, pipeline)
        for directory in (self.options.directory, self.state.directory):
            open_to_all(directory)
        return ExitCode.FINISHED

    def sync(self) -> int:
        """Commit until `finish` takes over, or Batch ends the background."""
        ends: list[int] = []
        self.events.on("signal", ends.append)
        self._watch()
        with self._lock(), self._commits() as commits:
            pipeline = self._continue(commits)
            commits.train_with(pipeline)
            self.stop.react = commits.hurry
            committed = commits.last
            while not (ends or self.stop.superseded or self.state.finishing.exists()):
                commits.tick(self.options.poll)
                if commits.last != committed:
                    committed = commits.last
                    self._save(commits, pipeline)
            commits.let_finish()
            self._save(commits, pipeline)
        return ExitCode.FINISHED

    def succeeded(self) -> int:
        """Leave the evidence that the training's container exited 0."""
        self._ledger()
        if not self.state.notice.exists() and is_preempted_now():
            # The training saw it before `sync` did, saved and left.
            Notice(METADATA_SERVER).write(self.state.notice, self.options.grace)
        # Said here and now, since times of files are no evidence: a clock may jump.
        self.state.write(self.state.succeeded, {"noticed": self.state.notice.exists()})
        return ExitCode.FINISHED

    def finish(self) -> int:
        """Take over from `sync`, bring up the last checkpoint, say how the attempt ended."""
        self._ledger()
        self.state.finishing.touch()
        self.events.on("signal", lambda number: log.info("%s: still finishing", number.name))
        self.events.listen_to_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with self._lock(), self._commits() as commits:
            self._continue(commits)
            commits.drain(settled=self.state.succeeded.exists())
            commits.ask_peers()
            unsaved = commits.pipeline.unsaved if commits.pipeline else ""
            result = self._outcome(unsaved, alone=not commits.session)
            code = commits.end(result)
        # The training's own failure is what people must see, so ours is silent about it.
        return ExitCode.FINISHED if code == UNKNOWN else code

    def _outcome(self, unsaved: str, *, alone: bool) -> Outcome:
        notice, finished = self._notice(), self._is_finished()
        succeeded = self.state.succeeded.exists()
        if not (succeeded or notice or finished or self.stop.superseded):
            reason = "the training's container failed; its exit code is in the job's own events"
            words = "; ".join(filter(None, [reason, unsaved]))
            return Outcome(EndState.FAILED, UNKNOWN, words, by_training=True)
        seen = Seen(0, finished=finished, superseded=self.stop.superseded, unsaved=unsaved)
        # With several nodes another one's notice may have made this training leave before we heard of it.
        late = alone and self._ended_before_the_notice()
        return outcome(replace(seen, notice="" if late else notice))

    def _ended_before_the_notice(self) -> bool:
        said = read_json(self.state.succeeded)
        return isinstance(said, dict) and not said["noticed"]

    def _is_finished(self) -> bool:
        glob = self.options.finished_when
        return self.state.finished.exists() or bool(glob and any(self.options.directory.glob(glob)))

    def _notice(self) -> str:
        said = read_json(self.state.notice)
        return str(said.get("source")) if isinstance(said, dict) else ""

    def _watch(self) -> None:
        self.events.listen_to_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        NoticeWatch(lambda notice: self.events.put("notice", notice)).start()

    @contextmanager
    def _commits(self) -> Iterator[Commits]:
        commits = Commits(self.options, self.events, self.stop)
        try:
            yield commits
        finally:
            commits.close()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One of `sync` and `finish` at a time; the kernel lets go when its holder dies."""
        with self.state.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _pipeline(self, commits: Commits) -> Pipeline:
        return Pipeline(self.options, self.state, self.format, commits.send)

    def _continue(self, commits: Commits) -> Pipeline:
        """Go on where the runnable before stopped."""
        said = self._ledger()
        pipeline = self._pipeline(commits)
        pipeline.know(said)
        commits.pipeline, commits.last, commits.resumed_from = pipeline, said["last"], said["resumed_from"]
        commits.meet(said["session"])
        return pipeline

    def _ledger(self) -> dict[str, Any]:
        """Return what the runnable before left; without it nothing was restored here."""
        said = read_json(self.state.ledger)
        if isinstance(said, dict):
            return said
        raise InvalidInput(
            f"{self.state.ledger} is not there.",
            can="Run `resume-run restore --for-training` before, with the same RESUME_STATE_DIR and volume.",
            parameter="state-dir",
            value=str(self.state.directory),
        )

    def _save(self, commits: Commits, pipeline: Pipeline) -> None:
        self.state.write(
            self.state.ledger,
            {
                **pipeline.ledger(),
                "last": dict(commits.last),
                "resumed_from": commits.resumed_from,
                "session": commits.session,
            },
        )


def open_to_all(directory: Path) -> None:
    """Let a training that runs as another user write here."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)
