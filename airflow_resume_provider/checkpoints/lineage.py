"""The lineage: one training's directory in the store, and all that can be done with it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.commit import Commit, Committer, Others, check_superseded
from airflow_resume_provider.checkpoints.history import History, read_history, read_record
from airflow_resume_provider.checkpoints.no_progress import DEATHS_TO_GIVE_UP, Verdict, judge
from airflow_resume_provider.checkpoints.overview import overview
from airflow_resume_provider.checkpoints.progress import Watcher
from airflow_resume_provider.checkpoints.prune import Pruned, prune, unmark
from airflow_resume_provider.checkpoints.records import (
    AttemptRecord,
    EndRecord,
    IntentRecord,
    Record,
    TrainingRecord,
    VerdictRecord,
)
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.restore import fetch, refuse_overlap, start_fresh, verify
from airflow_resume_provider.checkpoints.retention import Policy
from airflow_resume_provider.checkpoints.select import Choice, select
from airflow_resume_provider.checkpoints.sources import scan
from airflow_resume_provider.checkpoints.store import Store, StoreOptions, open_store
from airflow_resume_provider.checkpoints.view import NO_MANIFEST, LineageView, read_json, read_training
from airflow_resume_provider.errors import (
    AlreadyExists,
    CheckpointBroken,
    CheckpointError,
    CheckpointNotFound,
    InvalidInput,
    ManifestUnreadable,
    NoProgressError,
    UnknownSchema,
)

log = logging.getLogger("airflow_resume_provider.checkpoints")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Restored:
    """What a restore did; `reference` is `None` for a fresh start."""

    choice: Choice
    directory: Path

    @property
    def reference(self) -> Reference | None:
        """The checkpoint that now lies in `directory`."""
        return self.choice.reference


class Lineage:
    """One training's directory in a store.

    Reading never changes anything. Everything that is written is written once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._committer: Committer | None = None

    @classmethod
    def open(cls, uri: str, *, options: StoreOptions | None = None) -> Lineage:
        """Open the lineage at a `gs://` or `file://` URI; nothing is asked of the store yet."""
        return cls(open_store(uri, options))

    def __repr__(self) -> str:
        return f"Lineage({self.uri!r})"

    @property
    def uri(self) -> str:
        """The URI, without a slash at the end."""
        return self._store.uri

    def tune(self, **options: Any) -> None:
        """Change how hard transfers work from now on: `StoreOptions` by name, also for one under way."""
        self._store.options = replace(self._store.options, **options)

    @property
    def store(self) -> Store:
        """The store, rooted at the lineage."""
        return self._store

    def training(self) -> TrainingRecord | None:
        """Return who this lineage belongs to, or `None` when nobody has said so.

        Raises `ManifestUnreadable` when somebody has, and it cannot be read.
        """
        return read_record(TrainingRecord, read_training(self._store))

    def ensure_training(self, record: TrainingRecord | None = None) -> TrainingRecord:
        """Say who this lineage belongs to, unless somebody has, and return what holds.

        Without a record the identity comes from the oldest manifest, else from the URI.
        """
        there = self.training()
        if there:
            return there
        wanted = record or TrainingRecord(training_id=self._derived_id(), created=_now())
        return self._once(wanted, TrainingRecord.FILE)

    def write_intent(self, record: IntentRecord) -> IntentRecord:
        """Announce an attempt before its job exists, which fences all lower ones; returns what holds."""
        return self._once(record, f"{names.attempt_prefix(record.attempt)}/{IntentRecord.FILE}")

    def begin_attempt(self, record: AttemptRecord) -> AttemptRecord:
        """Record that an attempt runs and what it has restored; returns what holds.

        A second start of the same attempt finds the first one's record. Raises
        `Superseded` when a higher attempt exists.
        """
        check_superseded(self._store, record.attempt)
        return self._once(record, f"{names.attempt_prefix(record.attempt)}/{AttemptRecord.FILE}")

    def end_attempt(self, record: EndRecord) -> None:
        """Record how an attempt ended; the first account stands."""
        self._once(record, f"{names.attempt_prefix(record.attempt)}/{EndRecord.FILE}")

    def write_verdict(self, record: VerdictRecord) -> VerdictRecord:
        """Record why an attempt's job is about to be ended; the first account stands."""
        return self._once(record, f"{names.attempt_prefix(record.attempt)}/{VerdictRecord.FILE}")

    def verdict(self, attempt: int) -> VerdictRecord | None:
        """Return why an attempt's job was ended, when the operator did that."""
        return read_record(VerdictRecord, LineageView(self._store).record(attempt, VerdictRecord.FILE))

    def history(self) -> History:
        """Read all attempts with their records and committed checkpoints."""
        return read_history(self._store)

    def overview(self) -> dict[str, Any]:
        """Return all attempts and checkpoints with their states, in JSON values."""
        return overview(self._store)

    def choose(
        self,
        attempt: int,
        *,
        fallback: str = "",
        restarted: bool = False,
        contents: bool = False,
        progress: Watcher | None = None,
    ) -> Choice:
        """Choose what an attempt resumes from.

        Looks at listings and manifests only, unless `contents` says that the
        candidate's bytes are to be read and compared, too.
        """
        names.attempt_number(attempt)
        view = LineageView(self._store)

        def use(uri: str) -> None:
            if contents:
                verify(*view.at(uri), uri, view.require(uri), progress=progress)

        return self._search(view, attempt, fallback, restarted, use)

    def restore(
        self,
        attempt: int,
        directory: str | os.PathLike[str],
        *,
        fallback: str = "",
        explicit: bool = False,
        restarted: bool = False,
        learn: bool = True,
        most_asides: int | None = None,
        progress: Watcher | None = None,
    ) -> Restored:
        """Choose and restore, walking back past what turns out to be broken.

        What is in `directory` already is set aside, unless an earlier restore has put
        it there and nobody has touched it since; see `placing`. Raises `InvalidInput`
        when the lineage itself lies there.

        Args:
            attempt: the attempt that is about to start.
            directory: will hold exactly the checkpoint's files. For a fresh start, what an earlier
                restore has put there is gone, and anything else is left alone.
            fallback: URI to start from when the lineage itself has nothing.
            explicit: a person named `fallback`, so that one which cannot be used is an error.
            restarted: the attempt itself ran before, so its own commits count.
            learn: quarantine a checkpoint that attempts have died of, and raise
                `NoProgressError` when they die again and again.
            most_asides: how many directories that were set aside may stay; `None` is all of them.
            progress: told how far the download is.
        """
        names.attempt_number(attempt)
        refuse_overlap(self.uri, directory)
        if learn:
            self.learn(attempt)
        view = LineageView(self._store)

        def use(uri: str) -> None:
            at, manifest = view.at(uri), view.require(uri)
            fetch(*at, uri, manifest, directory, most_asides=most_asides, progress=progress)

        choice = self._search(view, attempt, fallback, restarted, use)
        if choice.reference is None and fallback and explicit:
            raise _explicit_is_broken(view.own(fallback), choice)
        if choice.reference is None:
            start_fresh(directory, most_asides=most_asides)
        return Restored(choice, Path(directory))

    def commit(
        self,
        directory: str | os.PathLike[str],
        *,
        attempt: int,
        step: int,
        files: Iterable[str | os.PathLike[str]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        format: str = "directory",
        world_size: int = 1,
        resumed_from: str = "",
        spec_digest: str = "",
        progress: Watcher | None = None,
        should_stop: Callable[[], bool] | None = None,
        others: Others | None = None,
    ) -> Reference:
        """Commit a directory, or some `files` of it, as the attempt's next checkpoint.

        `others` are further writers, such as other nodes, whose files belong to it.
        Committing the same contents at the same step again returns the first
        reference. Raises `Superseded`, `CommitConflict`, `UploadFailed` or a
        `StoreError`; then nothing was committed.
        """
        what = Commit(
            attempt=attempt,
            step=step,
            metrics=metrics or {},
            metadata=metadata or {},
            format=format,
            world_size=world_size,
            resumed_from=resumed_from,
            spec_digest=spec_digest,
        )
        tree = scan(directory, files)
        if not tree.files and others is None:
            raise InvalidInput(
                f"{directory} holds no file, so there is nothing to resume from.",
                did="Nothing was committed.",
                parameter="directory",
                value=str(directory),
            )
        if self._committer is None:
            self._committer = Committer(self._store, self.ensure_training().training_id)
        return self._committer.commit(tree, what, progress=progress, should_stop=should_stop, others=others)

    def prune(
        self,
        *,
        keep_last: int = 0,
        keep_best: int = 0,
        metric: str = "",
        mode: Literal["min", "max"] = "min",
        keep_every: int = 0,
        protect: Iterable[str] = (),
        dry_run: bool = False,
        contents: bool = True,
    ) -> Pruned:
        """Delete what no rule of `retention.Policy` keeps; `protect` names URIs that stay in any case.

        The newest checkpoint is read and compared before anything older is deleted,
        unless `contents` is switched off.
        """
        policy = Policy(
            keep_last=keep_last, keep_best=keep_best, metric=metric, mode=mode, keep_every=keep_every
        )
        return prune(self._store, policy, protect=protect, dry_run=dry_run, contents=contents)

    def quarantine(self, reference: Reference | str, reason: str) -> str:
        """Never choose this checkpoint again, until `release` says otherwise."""
        return self._mark(names.QUARANTINE, reference, reason)

    def condemn(self, uri: str, reason: str) -> bool:
        """Quarantine a checkpoint that attempts have died of; returns whether that was new.

        What belongs to another lineage is not this one's to judge, and what is broken or not there any
        more is passed over anyway.
        """
        view = LineageView(self._store)
        place = view.place(uri)
        if place is None or place in view.quarantined:
            return False
        try:
            self.quarantine(uri, reason)
        except (CheckpointBroken, CheckpointNotFound):
            return False
        log.warning("%s is quarantined: %s", uri, reason)
        return True

    def quarantine_reason(self, reference: Reference | str) -> str:
        """Return why a checkpoint is quarantined, or an empty string when it is not."""
        return LineageView(self._store).quarantined.get(self._placed(reference)[1], "")

    def release(self, reference: Reference | str) -> bool:
        """Take a checkpoint out of quarantine; returns whether it was in it."""
        return self._unmark(names.QUARANTINE, reference)

    def pin(self, reference: Reference | str, reason: str = "") -> str:
        """Never prune this checkpoint, until `unpin` says otherwise."""
        return self._mark(names.PINS, reference, reason)

    def unpin(self, reference: Reference | str) -> bool:
        """Leave a checkpoint to retention again; returns whether it was pinned."""
        return self._unmark(names.PINS, reference)

    def learn(self, attempt: int) -> Verdict:
        """Quarantine a checkpoint that the attempts before this one have died of.

        Raises `NoProgressError` when they have died without a commit too often.
        """
        verdict = judge(self.history(), attempt)
        if len(verdict.deaths) >= DEATHS_TO_GIVE_UP:
            raise NoProgressError(
                f"The last {len(verdict.deaths)} attempts of {self.uri} died without committing anything.",
                did=f"Attempt {attempt} was not started.",
                can="Read their logs; after a fix, start a new generation or raise the attempt's own limits.",
                attempts=verdict.deaths,
            )
        self.condemn(verdict.quarantine, verdict.reason)
        return verdict

    def _search(
        self, view: LineageView, attempt: int, fallback: str, restarted: bool, use: Callable[[str], None]
    ) -> Choice:
        while True:
            choice = select(attempt, view, fallback=view.own(fallback), restarted=restarted)
            if choice.reference is None:
                return choice
            try:
                use(choice.reference.uri)
            except CheckpointBroken as error:
                log.warning("%s", error)
                view.broken[choice.reference.uri] = error.reason
            else:
                return choice

    def _mark(self, kind: str, reference: Reference | str, reason: str) -> str:
        """Return the reason that holds: the first one, when it was marked before."""
        uri, place = self._placed(reference)
        # Quarantine is the way past what only a newer version can read.
        with suppress(UnknownSchema) if kind == names.QUARANTINE else nullcontext():
            LineageView(self._store).require(uri)
        record = {"schema": 1, "uri": uri, "reason": reason, "created": _now()}
        name = names.mark_name(kind, *place)
        try:
            self._store.create(name, json.dumps(record).encode())
        except AlreadyExists:
            return str(read_json(self._store, name).get("reason") or "")
        return reason

    def _unmark(self, kind: str, reference: Reference | str) -> bool:
        _, place = self._placed(reference)
        return unmark(self._store, kind, place)

    def _placed(self, reference: Reference | str) -> tuple[str, tuple[int, int]]:
        """Return a checkpoint's URI as this lineage spells it, with its numbers."""
        view = LineageView(self._store)
        uri = view.own(reference if isinstance(reference, str) else reference.uri)
        place = view.place(uri)
        if place is None:
            raise InvalidInput(f"{uri} is no checkpoint of {self.uri}.", parameter="reference", value=uri)
        return uri, place

    def _once(self, record: R, name: str) -> R:
        """Create a record, or return the one that is there."""
        try:
            self._store.create(name, json.dumps(record.to_dict(), ensure_ascii=False, indent=1).encode())
        except AlreadyExists as error:
            there = read_record(type(record), read_json(self._store, name))
            if there is None:
                raise ManifestUnreadable(
                    f"{self.uri}/{name} cannot be read.", uri=f"{self.uri}/{name}"
                ) from error
            return there
        return record

    def _derived_id(self) -> str:
        """Return the identity that the oldest manifest names, else one that only depends on the URI."""
        return LineageView(self._store).training_id or hashlib.sha256(self.uri.encode()).hexdigest()[:16]


def _explicit_is_broken(uri: str, choice: Choice) -> CheckpointError:
    reason = next((p.reason for p in choice.passed_over if p.uri == uri), "it was not looked at")
    kind = CheckpointNotFound if reason == NO_MANIFEST else CheckpointBroken
    return kind(
        f"The checkpoint {uri} was asked for by name, and cannot be used: {reason}.",
        did="Nothing was restored.",
        can="Name another one, or none.",
        uri=uri,
        reason=reason,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
