"""`resume-run -- COMMAND`: restore, run the training, commit while it runs, end well on any death."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from airflow_resume_provider.checkpoints.records import EndState
from airflow_resume_provider.runtime.beginning import begin
from airflow_resume_provider.runtime.child import Child, CommandNotFound, adopt_orphans, require_command
from airflow_resume_provider.runtime.commits import Commits, WorkerFailed
from airflow_resume_provider.runtime.events import Events
from airflow_resume_provider.runtime.formats import format_named
from airflow_resume_provider.runtime.machine import Machine, disk_full
from airflow_resume_provider.runtime.notice import METADATA_SERVER, Notice, NoticeWatch
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.outcome import Outcome, Seen, outcome
from airflow_resume_provider.runtime.pipeline import Pipeline
from airflow_resume_provider.runtime.state import State
from airflow_resume_provider.runtime.stop import Stop

log = logging.getLogger("resume-run")
_LEFTOVER_SECONDS = 2.0


class Run:
    """One attempt on one node. Everything that happens arrives as an event in one queue."""

    def __init__(self, options: Options, environ: Mapping[str, str] = os.environ) -> None:
        self._options, self._environ = options, environ
        self._events = Events()
        self._state = State(options.state_dir)
        self._format = format_named(options.format)
        self._stop = Stop(options, self._state)
        self._watch = NoticeWatch(lambda notice: self._events.put("notice", notice))
        self._machine = Machine()
        self._code: int | None = None
        self._seen = Seen(child=None)
        self._ask_peers: Callable[[], None] = lambda: None

    def run(self) -> int:
        """Return the exit code."""
        adopt_orphans()
        self._events.on("signal", self._stop.signalled)
        self._events.on("notice", self._stop.noticed)
        self._events.on("exit", self._exited)
        self._events.listen_to_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._watch.start()
        commits = Commits(self._options, self._events, self._stop)
        self._ask_peers = commits.ask_peers
        try:
            require_command(self._options.command, self._environ, self._options.directory)
            if (variables := self._begin(commits)) and not self._stop.asked:
                self._train(commits, variables)
                commits.drain(settled=self._code == 0)
            return commits.end(outcome(self._account(commits)))
        except CommandNotFound as error:
            return commits.end(Outcome(EndState.FAILED, error.exit_code, str(error)))
        except WorkerFailed as error:
            log.error("%s", error.seen)
            return int(error.code)
        finally:
            commits.close()

    def _begin(self, commits: Commits) -> Mapping[str, str]:
        """Restore; return the training's environment, or nothing when a notice came first."""
        beginning = begin(self._options, self._state, self._format, commits)
        if beginning is None:
            return {}
        self._options = beginning.options
        pipeline = Pipeline(self._options, self._state, self._format, commits.send)
        pipeline.remember_present()
        commits.train_with(pipeline)
        return {**self._environ, **beginning.variables}

    def _train(self, commits: Commits, variables: Mapping[str, str]) -> None:
        child = Child(self._options.command, variables)
        child.report_exit(lambda code: self._events.put("exit", code))
        self._stop.react = lambda: self._forward(child, commits)
        try:
            while self._code is None:
                self._until_next(commits, child)
            self._wait_for_the_rest(commits, child)
        finally:
            child.kill(commits.pids)
            self._stop.react = lambda: None

    def _forward(self, child: Child, commits: Commits) -> None:
        child.signal(self._options.stop_signal)
        commits.hurry()

    def _until_next(self, commits: Commits, child: Child) -> None:
        commits.tick(min(self._options.poll, max(0.0, self._stop.kill_at - time.monotonic())))
        child.reap(commits.pids)
        if self._stop.overdue and self._code is None:
            log.warning("the training did not end within its grace of %g s; killing it", self._options.grace)
            self._stop.kill_at = float("inf")
            child.kill(commits.pids)

    def _exited(self, code: int) -> None:
        self._code = code
        if code == 0 and self._stop.notice is None and self._watch.ask_now():
            # It saw the notice before we did, saved and left.
            self._stop.noticed(Notice(METADATA_SERVER))
        if code == 0 and self._stop.notice is None:
            self._ask_peers()
        self._seen = self._now_seen()

    def _wait_for_the_rest(self, commits: Commits, child: Child) -> None:
        """The shell may be gone while the trainer still saves: wait for the whole family."""
        until = self._stop.kill_at
        if not self._stop.asked and child.is_alive(commits.pids):
            child.signal(signal.SIGTERM)
            until = time.monotonic() + _LEFTOVER_SECONDS
        while child.is_alive(commits.pids) and time.monotonic() < until:
            commits.tick(0.05)

    def _now_seen(self) -> Seen:
        notice = self._stop.notice
        return Seen(
            child=self._code,
            notice=notice.source if notice else "",
            oom=self._machine.killed_for_memory(),
            disk_full=disk_full(self._options.directory),
        )

    def _account(self, commits: Commits) -> Seen:
        """What was seen when the training ended, and what its uploads came to since."""
        seen = self._seen if self._code is not None else self._now_seen()
        return replace(
            seen,
            finished=self._is_finished(),
            superseded=self._stop.superseded,
            unsaved=commits.pipeline.unsaved if commits.pipeline else "",
        )

    def _is_finished(self) -> bool:
        glob = self._options.finished_when
        return self._state.finished.exists() or bool(glob and any(self._options.directory.glob(glob)))
