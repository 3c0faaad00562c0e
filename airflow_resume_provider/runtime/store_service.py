"""What the worker does with the lineage: begin an attempt, commit, end it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints.commit import check_superseded
from airflow_resume_provider.checkpoints.directory import Checkpoint
from airflow_resume_provider.checkpoints.lineage import Lineage
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.records import AttemptRecord, EndRecord, EndState, TrainingRecord
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.select import Choice
from airflow_resume_provider.checkpoints.store import StoreOptions
from airflow_resume_provider.errors import StoreUnavailable, UploadFailed
from airflow_resume_provider.runtime.configuration import Configuration, check_configuration
from airflow_resume_provider.runtime.credentials import held_token
from airflow_resume_provider.runtime.formats.dcp import shards_named
from airflow_resume_provider.runtime.formats.registry import is_elastic
from airflow_resume_provider.runtime.gather import Following, Gathering
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.peers import Peers, say_hello
from airflow_resume_provider.runtime.pin import Pin
from airflow_resume_provider.runtime.politeness import be_polite, be_quick

# Uploads beside a training: one large file at a time in one stream, or two small ones.
_GENTLE = {"small_streams": 2, "big_files": 1, "upload_streams": 1}

# A container that starts again and again in one directory must not fill its disk with what was there.
_MOST_ASIDES = 1

_LEADER_SECONDS = 1800.0
_POLL_SECONDS = 1.0


class StoreService:
    """One attempt's dealings with its lineage."""

    def __init__(self, options: Options, report: Callable[[dict[str, Any]], None]) -> None:
        self._options = options
        self._report = report
        gs = options.lineage.startswith("gs://")
        self._store_options = StoreOptions(credential_provider=held_token() if gs else None)
        self._lineage = Lineage.open(options.lineage, options=self._store_options)
        self._following: Following | None = None
        self._peers: Peers | None = None
        self._session = ""
        self._full = {name: getattr(self._store_options, name) for name in (*_GENTLE, "bandwidth")}

    def full_speed(self) -> None:
        """Use the whole machine from now on."""
        be_quick()
        self._lineage.tune(**self._full)

    def be_gentle(self) -> dict[str, Any]:
        """Leave the machine to the training from now on."""
        be_polite(self._options.nice)
        self._lineage.tune(**_GENTLE, bandwidth=self._options.bandwidth)
        return {}

    def begin(self) -> dict[str, Any]:
        """Restore what this attempt starts from, and only then say that it has started."""
        options = self._options
        named = (
            TrainingRecord(training_id=options.training_id, created=_now()) if options.training_id else None
        )
        training = self._lineage.ensure_training(named)
        choice = self._lineage.choose(options.attempt, fallback=options.offered, restarted=True)
        changes = self._changes(choice)
        if not options.lazy:
            choice = self._restore()
        self._say_started(choice.reference, "; ".join([choice.why, *changes]))
        said = {"training_id": training.training_id, "changes": changes, **self._described(choice)}
        return said if options.node.alone else {**said, "session": uuid.uuid4().hex}

    def _restore(self) -> Choice:
        options = self._options
        return self._lineage.restore(
            options.attempt,
            options.directory,
            fallback=options.offered,
            explicit=options.explicit,
            restarted=True,
            most_asides=_MOST_ASIDES,
            progress=self._progress,
        ).choice

    def join(self) -> dict[str, Any]:
        """Restore exactly what the first node has restored: one reference for all."""
        said = self._welcome()
        source, why = str(said["resumed_from"]), str(said["why"])
        training = self._lineage.ensure_training()
        choice = Choice(self._reference(source), (), why)
        if source and not (self._options.sees_the_leaders_files or self._options.lazy):
            checkpoint = Checkpoint.from_uri(source, options=self._store_options)
            checkpoint.to_directory(
                self._options.directory, exactly=True, most_asides=_MOST_ASIDES, progress=self._progress
            )
        described = {**self._described(choice), "session": said["session"]}
        return {"training_id": training.training_id, "changes": [], **described}

    def _welcome(self) -> dict[str, Any]:
        """Wait until the first node, which must be running now, says what all start from."""
        store, attempt, until = self._lineage.store, self._options.attempt, time.monotonic() + _LEADER_SECONDS
        who = {"node": self._options.node.index, "local_rank": self._options.node.local_rank}
        answer = say_hello(store, attempt, uuid.uuid4().hex, who)
        while time.monotonic() < until:
            if said := answer() or self._finished_before():
                return said
            check_superseded(store, attempt)
            time.sleep(_POLL_SECONDS)
        raise StoreUnavailable(
            f"The first node has not started attempt {self._options.attempt} within {_LEADER_SECONDS:g} s.",
            can="Look at the first node's log.",
            uri=self._options.lineage,
        )

    def _finished_before(self) -> dict[str, Any]:
        """Return what a first process has started from that needed nobody else to finish."""
        past = [each for each in self._lineage.history().attempts if each.number == self._options.attempt]
        if not past or not past[0].started or not past[0].end or past[0].end.state is not EndState.FINISHED:
            return {}
        return {"session": "", "resumed_from": past[0].started.resumed_from, "why": past[0].started.why}

    def meet(self, session: str, resumed_from: str, why: str) -> dict[str, Any]:
        """From now on hear the other nodes' notices; the first node also says to each what all start from."""
        options, self._session = self._options, session
        self._peers = Peers(self._lineage.store, options.attempt, session, options.node.count - 1)
        self._peers.watch(
            lambda source: self._report({"event": "notice", "source": source}),
            {"resumed_from": resumed_from, "why": why} if options.leads else None,
        )
        return {}

    def tell_peers(self, source: str) -> dict[str, Any]:
        """Pass a preemption notice on; may be asked for in the middle of something else."""
        if self._peers:
            self._peers.tell(f"node {self._options.node.index} ({source})")
        return {}

    def ask_peers(self) -> dict[str, Any]:
        """Look whether any node has got a notice; may be asked for in the middle of something else."""
        return {"source": self._peers.notice if self._peers else ""}

    def _reference(self, uri: str) -> Reference | None:
        return Checkpoint.from_uri(uri, options=self._store_options).reference if uri else None

    def follow(self) -> dict[str, Any]:
        """Add this node's files to the checkpoint that the first node is committing, if it is one."""
        options = self._options
        if self._following is None:
            store, node = self._lineage.store, options.node.index
            self._following = Following(store, options.attempt, node, options.directory, self._session)
        check_superseded(self._lineage.store, options.attempt)
        answered = self._following.answer()
        return {"answered": answered, "ended": self._peers is None or self._peers.ended}

    def _changes(self, choice: Choice) -> list[str]:
        """Compare configurations before any byte moves."""
        if choice.reference is None:
            return []
        manifest = self._manifest(choice.reference)
        then = manifest.metadata.get("resume", {}).get("configuration")
        if not then:
            return []
        return check_configuration(
            Configuration.from_dict(then),
            Configuration.of(self._options),
            elastic=self._options.elastic or is_elastic(manifest.format),
            strict=self._options.strict,
        )

    def _described(self, choice: Choice) -> dict[str, Any]:
        """Return what the supervisor tells the training and the log."""
        passed_over = [f"{each.uri}: {each.reason}" for each in choice.passed_over]
        said = {"reference": None, "why": choice.why, "passed_over": passed_over}
        if choice.reference is None:
            return said
        manifest = self._manifest(choice.reference)
        found = {"format": manifest.format, "world_size": manifest.world_size}
        return {**said, **found, "reference": choice.reference.to_dict(), "metadata": dict(manifest.metadata)}

    def _manifest(self, reference: Reference) -> Manifest:
        return Checkpoint.from_uri(reference.uri, options=self._store_options).manifest

    def _say_started(self, reference: Reference | None, why: str) -> None:
        self._lineage.begin_attempt(
            AttemptRecord(
                attempt=self._options.attempt,
                resumed_from=reference.uri if reference else "",
                resumed_step=reference.step if reference else 0,
                why=why,
                job_name=self._options.job_name,
                writer=uuid.uuid4().hex,
                started=_now(),
            )
        )

    def commit(self, pin: str, **what: Any) -> dict[str, Any]:
        """Commit pinned files; the manifest is not written when one of them has changed meanwhile."""
        pinned = Pin.from_json(pin)
        started = time.monotonic()
        pinned.check()  # while it waited, somebody may have opened a file of it for writing again
        try:
            reference = self._lineage.commit(
                pinned.directory,
                attempt=self._options.attempt,
                files=pinned.files,
                progress=self._progress,
                others=self._others(pinned.directory, what),
                **what,
            )
        except UploadFailed:
            pinned.check()  # a file that was written to is no failure of the store
            raise
        return {"reference": reference.to_dict(), "seconds": time.monotonic() - started}

    def _others(self, directory: Path, what: Mapping[str, Any]) -> Gathering | None:
        if not self._options.gathers:
            return None
        path = what["metadata"]["resume"]["path"]
        shards = shards_named(directory / path) or {}
        needs = {(name if path == "." else f"{path}/{name}"): size for name, size in shards.items()}
        return Gathering(self._lineage.store, self._options.node.count, path, self._session, needs)

    def prune(self) -> dict[str, Any]:
        """Keep the newest checkpoints only, without reading back what was sent a moment ago."""
        self._lineage.prune(keep_last=self._options.keep_last, contents=False)
        return {}

    def end(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write the attempt's own account of its end."""
        self._lineage.end_attempt(EndRecord.from_dict({**record, "ended": _now()}))
        if self._peers:
            self._peers.end()
        return {}

    def _progress(self, progress: Any) -> None:
        self._report({"event": "progress", "done": progress.done_bytes, "total": progress.total_bytes})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
