"""One attempt's traffic with the store: begins it, commits while it runs, drains, ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_resume_provider.errors import ContainerError, ExitCode
from airflow_resume_provider.runtime.events import Events
from airflow_resume_provider.runtime.notice import Notice
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.outcome import Outcome
from airflow_resume_provider.runtime.pipeline import Pipeline, Upload
from airflow_resume_provider.runtime.stop import Stop
from airflow_resume_provider.runtime.worker import Worker

log = logging.getLogger("resume-run")
_WORKERS = 5
_WORTH_ANOTHER_TRY = ("StoreUnavailable", "UploadFailed")
_END_SECONDS = 120.0
_LOOK_SECONDS_AT_MOST = 60.0
_FOLLOW_SECONDS = 0.5
_TELL_SECONDS, _ASK_SECONDS = 1.0, 10.0


class PeersNotice(Notice):
    """Another node of the training is about to lose its machine; this one's training ends with it."""


class WorkerFailed(ContainerError):
    """The store worker answered with an error: `code` is the exit code that belongs to it."""

    code: int
    kind: str


class Commits:
    """Owns the store worker and routes its answers.

    A worker that dies (out of memory, killed) is replaced, and what it was doing is done again.
    """

    def __init__(self, options: Options, events: Events, stop: Stop) -> None:
        self._options, self._events, self._stop = options, events, stop
        self._answer: dict[str, Any] | None = None
        self._asked: tuple[str, Mapping[str, Any]] = ("", {})
        self._workers = 0
        self._gentle = False
        self._following = self._leader_ended = False
        self._next_look = 0.0
        self._worker = self._new_worker()
        self.pipeline: Pipeline | None = None
        self.last: Mapping[str, Any] = {}
        self.resumed_from = ""
        self.session = ""
        self._peers_answered = False
        self._why = ""
        stop.spread = self._spread
        events.on("worker", self._answered)

    @property
    def pids(self) -> set[int]:
        """Processes that are ours and not the training's."""
        return {self._worker.pid}

    def begin(self) -> dict[str, Any] | None:
        """Restore; return what was restored, or None when the attempt must stop before it starts.

        Raises:
            WorkerFailed: what the store said, with its exit code.
        """
        self._ask("begin" if self._options.leads else "join")
        answer = self._wait(lambda: self._stop.asked)
        if answer is None:
            self._replace_worker()
        else:
            self.resumed_from = (answer["reference"] or {}).get("uri", "")
            self._why = answer["why"]
            self.meet(answer.get("session", ""))
        return answer

    def meet(self, session: str) -> None:
        """From now on hear the other nodes of this session, if there are any."""
        self.session = session
        if session:
            self._worker.ask("meet", session=session, resumed_from=self.resumed_from, why=self._why)

    def _spread(self, notice: Notice) -> None:
        if self.session and not isinstance(notice, PeersNotice):
            # Before our training hears of it: when it makes the others leave, they must know why.
            self._wait_for_peers("tell_peers", _TELL_SECONDS, source=notice.source)

    def ask_peers(self) -> None:
        """Look once more for a notice of another node: with it, exit 0 is no success."""
        if self.session:
            self._wait_for_peers("ask_peers", _ASK_SECONDS)

    def _wait_for_peers(self, op: str, seconds: float, **what: Any) -> None:
        self._peers_answered = False
        self._worker.ask(op, **what)
        until = time.monotonic() + seconds
        while not self._peers_answered and time.monotonic() < until:
            self._events.handle(min(0.2, seconds))

    def train_with(self, pipeline: Pipeline) -> None:
        """From now on look for checkpoints, and leave the machine to the training."""
        self.pipeline = pipeline
        self._gentle = True
        self._worker.ask("be_gentle")

    def hurry(self) -> None:
        """Nobody trains any more, or not for long."""
        self._gentle = False
        self._worker.full_speed()
        if self.pipeline:
            self.pipeline.hurry()

    def tick(self, patience: float) -> None:
        """Let `patience` seconds pass or something happen, then look and start what waits."""
        self._events.handle(min(patience, max(0.0, self._next_look - time.monotonic())))
        if self.pipeline is None:
            return
        if time.monotonic() >= self._next_look:
            self._look()
        self.pipeline.pump(self._may_begin)

    def _look(self, *, final: bool = False) -> None:
        if not self._options.leads:
            return self._follow()
        assert self.pipeline is not None
        started = time.monotonic()
        try:
            self.pipeline.look(final=final)
        except Exception as error:  # whatever lies there, or looks: the training goes on
            log.warning("looking for checkpoints failed: %s: %s", type(error).__name__, error)
            if final:
                self.pipeline.lose(f"the last checkpoint could not be looked for: {error}")
        took = time.monotonic() - started
        # A directory with very many files must not keep a core busy.
        self._next_look = started + max(self._options.poll, min(20 * took, _LOOK_SECONDS_AT_MOST))
        return None

    def _follow(self) -> None:
        """Add this node's files to what the first node commits; it decides when."""
        self._next_look = time.monotonic() + max(self._options.poll, _FOLLOW_SECONDS)
        if not self._following and self._options.gathers and self._options.node.local_rank == 0:
            self._following = True
            self._worker.ask("follow")

    def _followed(self, answer: Mapping[str, Any]) -> None:
        self._following = False
        self._leader_ended = bool(answer.get("ended"))
        if said := answer.get("answered"):
            log.info(
                "this node's part of step %s: %s", said["step"], said["error"] or f"{said['files']} files"
            )

    def _follow_to_the_end(self) -> None:
        """The first node may still commit what the training saved last."""
        until = min(self._stop.window_ends, time.monotonic() + _END_SECONDS)
        while self._options.gathers and not self._leader_ended and time.monotonic() < until:
            self._follow()
            self._events.handle(_FOLLOW_SECONDS)

    def drain(self, *, settled: bool) -> None:
        """Bring the last checkpoint up; `settled` says that the training ended well.

        One that did not may have been in the middle of writing a file in place.
        """
        if self.pipeline is None or self._stop.superseded:
            return None
        self.hurry()
        if not self._options.leads:
            return self._follow_to_the_end()
        self._look(final=settled)
        while not self.pipeline.idle and not self._stop.superseded:
            self.pipeline.pump(self._may_begin)
            self._events.handle(0.2)
        return None

    def let_finish(self) -> None:
        """Wait for the upload that is under way, and begin no other."""
        while self.pipeline and self.pipeline.under_way and not self._stop.superseded:
            self._events.handle(0.2)

    def end(self, result: Outcome) -> int:
        """Record how the attempt ended, and return the exit code."""
        log.info("%s: %s; exit code %d", result.state.value, result.reason, result.exit_code)
        if not self._options.leads:
            return result.exit_code  # the record is the first node's
        record = {"state": result.state.value, "exit_code": result.exit_code, "reason": result.reason}
        record["by"] = "training" if result.by_training else "runtime"
        last = {"last_index": self.last.get("index", -1), "last_step": self.last.get("step", 0)}
        self._ask("end", record={"attempt": self._options.attempt, **record, **last})
        until = time.monotonic() + _END_SECONDS
        try:
            recorded = self._wait(lambda: time.monotonic() > until) is not None
        except WorkerFailed as error:
            log.error("the end of this attempt could not be recorded: %s", error)
            recorded = False
        return result.exit_code if recorded or result.exit_code else ExitCode.STORE_UNAVAILABLE

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._worker.close()

    def _ask(self, op: str, **arguments: Any) -> None:
        self._asked, self._answer = (op, arguments), None
        self._worker.ask(op, **arguments)

    def _wait(self, enough: Callable[[], bool]) -> dict[str, Any] | None:
        while self._answer is None and not enough():
            self._events.handle(0.2)
        if self._answer is not None and self._answer["event"] == "failed":
            answer = self._answer
            raise WorkerFailed(answer["message"], code=answer["exit_code"], kind=answer["kind"])
        return self._answer

    def send(self, upload: Upload) -> None:
        """Start an upload."""
        log.info("committing step %d, %.1f MB", upload.step, upload.pin.total_bytes / 1e6)
        where = {"resumed_from": self.resumed_from, "spec_digest": self._options.spec_digest}
        self._worker.ask("commit", pin=upload.pin.to_json(), **upload.manifest_fields(), **where)

    def _may_begin(self, upload: Upload) -> bool:
        """After a notice an upload is begun only when it can be done in what is left of the window."""
        assert self.pipeline is not None
        left = self._stop.window_ends - time.monotonic()
        speed = self.pipeline.throughput
        return left == float("inf") or not speed or upload.pin.total_bytes / speed <= left

    def _answered(self, answer: dict[str, Any]) -> None:
        event, op = answer["event"], answer.get("op")
        if event == "progress":
            return
        if event == "notice":
            self._events.put("notice", PeersNotice(answer["source"]))
        elif op in ("tell_peers", "ask_peers"):
            self._peers_answered = True
            if answer.get("source"):
                self._stop.noticed(PeersNotice(answer["source"]))
        elif event == "gone":
            self._worker_gone(answer["pid"])
        elif answer.get("kind") == "Superseded":
            self._overtaken(answer)
        elif op == "commit":
            self._committed(answer)
        elif op == "follow":
            self._followed(answer)
        elif op == self._asked[0]:
            self._answer = answer

    def _overtaken(self, answer: Mapping[str, Any]) -> None:
        self._stop.overtaken(answer["message"])
        if answer["op"] == "commit" and self.pipeline:
            self.pipeline.failed(answer["message"], again=False)
        else:
            self._answer = dict(answer)

    def _committed(self, answer: Mapping[str, Any]) -> None:
        assert self.pipeline is not None
        if answer["event"] == "done":
            self.last = answer["reference"]
            log.info("committed step %d as %s", self.last["step"], self.last["uri"])
            self.pipeline.committed(answer["reference"], answer["seconds"])
            if self._options.keep_last:
                self._worker.ask("prune")
        elif answer["event"] == "changed":
            self.pipeline.changed(answer["file"])
        else:
            self.pipeline.failed(answer["message"], again=answer["kind"] in _WORTH_ANOTHER_TRY)

    def _worker_gone(self, pid: int) -> None:
        if pid != self._worker.pid:
            return
        if self._workers >= _WORKERS:
            message = "the process that talks to the store keeps dying"
            raise WorkerFailed(message, code=ExitCode.UPLOAD_FAILED, kind="gone")
        log.warning("the process that talks to the store has died; starting another")
        self._replace_worker()
        if self.pipeline and self.pipeline.under_way:
            self.send(self.pipeline.under_way)
        elif self._asked[0] and self._answer is None:
            self._worker.ask(self._asked[0], **self._asked[1])

    def _replace_worker(self) -> None:
        self._worker.close()
        self._worker = self._new_worker()
        self.meet(self.session)
        if self._gentle:
            self._worker.ask("be_gentle")

    def _new_worker(self) -> Worker:
        self._workers += 1
        return Worker(self._options, lambda answer: self._events.put("worker", answer))
