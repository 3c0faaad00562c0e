"""Committing: claim an index, send the files, look again, then write the manifest, once.

Nothing that existed before is touched, whatever happens on the way.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from airflow_resume_provider.checkpoints import checksum, names
from airflow_resume_provider.checkpoints.claims import Busy, Claim, claim_next, claimed, is_alive, release
from airflow_resume_provider.checkpoints.json_values import finite, is_shallow
from airflow_resume_provider.checkpoints.manifest import FileEntry, Manifest
from airflow_resume_provider.checkpoints.progress import Meter, Watcher
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.sources import Tree
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.upload import Upload, changed
from airflow_resume_provider.checkpoints.view import LineageView, incomplete, read_manifest, reference_of
from airflow_resume_provider.errors import (
    AlreadyExists,
    CommitConflict,
    InvalidInput,
    ManifestError,
    ObjectNotFound,
    Superseded,
    UploadFailed,
)

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What is to be committed, besides the bytes."""

    attempt: int
    step: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    format: str = "directory"
    world_size: int = 1
    resumed_from: str = ""
    spec_digest: str = ""

    def __post_init__(self) -> None:
        names.attempt_number(self.attempt)
        names.positive(self.step, "step", least=0)
        names.positive(self.world_size, "world_size")
        # A diverged loss is no reason to lose a checkpoint, but NaN is no JSON.
        object.__setattr__(self, "metrics", finite(self.metrics))
        for name in ("metrics", "metadata"):
            _check_json(name, getattr(self, name))


def _check_json(name: str, value: Any) -> None:
    try:
        if not isinstance(value, Mapping):
            raise TypeError("not an object")
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        if not is_shallow(value):
            raise ValueError("it is nested too deeply")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} must be a JSON object: {error}.", parameter=name, value=value) from error


class Others(Protocol):
    """Further writers whose files belong to the same checkpoint."""

    def announce(self, prefix: str, step: int, paths: Sequence[str]) -> None:
        """Tell them where to put their files, and which paths are taken."""

    def collect(self, prefix: str) -> Sequence[FileEntry]:
        """Wait for all of them and return what they have put there; raises `UploadFailed`."""


class Committer:
    """Commits to one lineage, one commit at a time."""

    def __init__(self, store: Store, training_id: str) -> None:
        self._store, self._training_id = store, training_id
        self._floors: dict[int, int] = {}

    def commit(
        self,
        tree: Tree,
        what: Commit,
        *,
        progress: Watcher | None = None,
        should_stop: Callable[[], bool] | None = None,
        others: Others | None = None,
    ) -> Reference:
        """Commit `tree` and return its reference; the same contents at the same step are one commit."""
        check_superseded(self._store, what.attempt)
        newest = self._newest(what.attempt)
        there = self._complete(newest)
        if there and (same := self._same(*there, tree, what)):
            return same
        try:
            claim = claim_next(self._store, what.attempt, shape(tree, what.step), self._floor(what.attempt))
        except Busy as busy:
            return self._await(busy, tree, what)
        try:
            # Somebody may have committed the same between the look and the claim: a new one, or one
            # whose files were there already.
            later = self._newest(what.attempt)
            there = self._complete(later) if later != newest or not there else None
            if there and (same := self._same(*there, tree, what)):
                return same
            return self._write(claim, tree, what, progress, should_stop, others)
        finally:
            release(self._store, claim)

    def _write(
        self,
        claim: Claim,
        tree: Tree,
        what: Commit,
        progress: Watcher | None,
        should_stop: Callable[[], bool] | None,
        others: Others | None,
    ) -> Reference:
        meter = Meter(tree.total_bytes, len(tree.files), progress)
        if others:
            others.announce(claim.prefix, what.step, [source.path for source in tree.files])
        entries = Upload(self._store, claim.prefix, meter, should_stop).run(tree.files)
        if others:
            entries = (*entries, *others.collect(claim.prefix))
        if not entries:
            raise UploadFailed(
                f"No node had a file for {self._store.uri}/{claim.prefix}.",
                did="It was not committed: there would be nothing to resume from.",
            )
        # A file that was sent early may have been written to while the others were on their way.
        for source in tree.files:
            if not source.unchanged():
                raise changed(source)
        for directory in tree.directories:
            if not names.stored_as(directory):
                self._store.make_directory(f"{claim.prefix}/{directory}")
        manifest = Manifest(
            training_id=self._training_id,
            attempt=claim.attempt,
            index=claim.index,
            step=what.step,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            format=what.format,
            world_size=what.world_size,
            files=entries,
            directories=tree.directories,
            metrics=what.metrics,
            metadata=what.metadata,
            resumed_from=what.resumed_from,
            spec_digest=what.spec_digest,
            commit_id=secrets.token_hex(8),
        )
        self._look_again(claim, manifest)
        return self._finish(claim, manifest)

    def _look_again(self, claim: Claim, manifest: Manifest) -> None:
        """Refuse to commit what the store does not show in full, or after a newer attempt has begun."""
        missing = incomplete(self._store, claim.prefix, manifest)
        if missing:
            raise UploadFailed(
                f"After the upload to {self._store.uri}/{claim.prefix}, {missing}.",
                did="It was not committed.",
            )
        check_superseded(self._store, claim.attempt)

    def _finish(self, claim: Claim, manifest: Manifest) -> Reference:
        uri = f"{self._store.uri}/{claim.prefix}"
        try:
            self._store.create(f"{claim.prefix}/{names.MANIFEST}", manifest.to_json())
        except AlreadyExists as error:
            raise CommitConflict(
                f"Another writer with number {claim.attempt} took the place of {uri}.",
                did="Nothing was committed.",
                can="End this process; the other one goes on.",
            ) from error
        return reference_of(manifest, uri)

    def _floor(self, attempt: int) -> int:
        """Return the lowest index that is above everything other attempts have begun and anybody marked."""
        if attempt not in self._floors:
            store, view = self._store, LineageView(self._store)
            others = [number for number in view.attempts() if number != attempt]

            def highest(number: int) -> int:
                begun = [index for index, _ in view.checkpoints(number)]
                return max([*begun, *claimed(store, view, number)], default=-1)

            marks = [entry.name for kind in (names.QUARANTINE, names.PINS) for entry in store.objects(kind)]
            marked = [place[1] for place in map(names.marked, marks) if place]
            with ThreadPoolExecutor(8, thread_name_prefix="floor") as pool:
                self._floors[attempt] = max([-1, *marked, *pool.map(highest, others)]) + 1
        return self._floors[attempt]

    def _newest(self, attempt: int) -> str:
        return max(LineageView(self._store).checkpoints(attempt), default=(-1, ""))[1]

    def _complete(self, uri: str) -> tuple[str, Manifest] | None:
        """Return the checkpoint at `uri` with its manifest, if it has one."""
        if not uri:
            return None
        try:
            return uri, read_manifest(self._store, uri.removeprefix(f"{self._store.uri}/"), uri)
        except (ObjectNotFound, ManifestError):
            return None

    def _same(self, uri: str, manifest: Manifest, tree: Tree, what: Commit) -> Reference | None:
        """Return the reference of a checkpoint if committing would only repeat it."""
        if manifest.step != what.step or not _same_contents(manifest, tree):
            return None
        prefix = uri.removeprefix(f"{self._store.uri}/")
        return None if incomplete(self._store, prefix, manifest) else reference_of(manifest, uri)

    def _await(self, busy: Busy, tree: Tree, what: Commit) -> Reference:
        """Wait for another process that seems to commit the same; anything else is a conflict."""
        claim = busy.claim
        uri = f"{self._store.uri}/{claim.prefix}"
        deadline = time.monotonic() + self._store.options.max_total_seconds
        while claim.shape == shape(tree, what.step) and time.monotonic() < deadline:
            alive = is_alive(self._store, claim)
            there = self._complete(uri)
            if there and (same := self._same(*there, tree, what)):
                return same
            if not alive:
                break
            time.sleep(_POLL_SECONDS)
        raise busy


def check_superseded(store: Store, attempt: int) -> None:
    """Raise `Superseded` when a higher attempt exists."""
    newest = max(LineageView(store).attempts(), default=0)
    if newest > attempt:
        raise Superseded(
            f"Attempt {attempt} is superseded by attempt {newest} of {store.uri}.",
            did="Nothing was committed.",
            can="End this process; the newer attempt goes on.",
            attempt=attempt,
            by=newest,
        )


def shape(tree: Tree, step: int) -> str:
    """Return a digest of names, sizes and step: equal for equal contents, and cheap."""
    lines = [str(step), *(f"{source.path}\0{source.size}" for source in tree.files), *tree.directories]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _same_contents(manifest: Manifest, tree: Tree) -> bool:
    listed = {entry.path: entry for entry in manifest.files}
    if sorted(listed) != [source.path for source in tree.files] or manifest.directories != tree.directories:
        return False
    if any(listed[source.path].size != source.size for source in tree.files):
        return False
    return all(_crc(source.file) == listed[source.path].crc32c for source in tree.files)


def _crc(path: Path) -> str:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            crc = checksum.extend(piece, crc)
    return checksum.encode(crc)
