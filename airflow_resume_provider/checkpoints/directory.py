"""A checkpoint as a value: a name until somebody wants its bytes, then one download per node.

However many processes and threads of a node ask, one of them downloads and the
others wait and share. Locks are the kernel's, one per reader, so a dead process
holds none and nobody has to guess which locks are stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.progress import Watcher
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.restore import fetch, verify
from airflow_resume_provider.checkpoints.store import Store, StoreOptions, open_store
from airflow_resume_provider.checkpoints.view import (
    NO_MANIFEST,
    incomplete,
    read_json,
    read_manifest,
    reference_of,
)
from airflow_resume_provider.errors import (
    AlreadyExists,
    CheckpointBroken,
    CheckpointNotFound,
    ManifestError,
    ObjectNotFound,
)

# Metadata set after the commit: numbered, create-only objects, of which the last one holds.
_METADATA = ".resume/metadata"


class Checkpoint:
    """A checkpoint named by its URI. Nothing is asked of the store before it is needed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def from_uri(cls, uri: str, *, options: StoreOptions | None = None) -> Checkpoint:
        """Name the checkpoint at a `gs://` or `file://` URI."""
        return cls(open_store(uri, options, parameter="checkpoint"))

    def __repr__(self) -> str:
        return f"Checkpoint({self.uri!r})"

    @property
    def uri(self) -> str:
        """The URI, without a slash at the end."""
        return self._store.uri

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest; raises `CheckpointNotFound` or a `ManifestError`."""
        try:
            return read_manifest(self._store, "", self.uri)
        except ObjectNotFound as error:
            raise CheckpointNotFound(
                f"There is no checkpoint {self.uri}: {NO_MANIFEST}.", uri=self.uri
            ) from error
        except ManifestError as error:
            raise type(error)(
                f"The manifest of {self.uri} cannot be used. {error.seen}",
                did=error.did,
                can=error.can,
                **{**error.data, "uri": self.uri},
            ) from error

    @property
    def reference(self) -> Reference:
        """The few hundred bytes that name it."""
        return reference_of(self.manifest, self.uri)

    @property
    def metadata(self) -> dict[str, Any]:
        """What has been said about it, JSON values only: the manifest's, then what was set since."""
        entries = sorted(entry.name for entry in self._store.objects(_METADATA))
        latest = read_json(self._store, entries[-1]) if entries else {}
        said = latest.get("metadata", self.manifest.metadata)
        return dict(said) if isinstance(said, Mapping) else {}

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is said about it; raises `TypeError` when it is not JSON."""
        raw = _json(metadata)
        number = len(self._store.objects(_METADATA))
        while True:
            number += 1
            with suppress(AlreadyExists):
                return self._store.create(f"{_METADATA}/{number:06d}.json", raw)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to what is said about it; raises `TypeError` when it is not JSON."""
        _json(metadata)
        self.set_metadata({**self.metadata, **metadata})

    def verify(self, *, contents: bool = True, progress: Watcher | None = None) -> None:
        """Read every byte and compare, or only the listing's sizes; raises `CheckpointBroken`."""
        self._check_listing()
        if contents:
            verify(self._store, "", self.uri, self.manifest, progress=progress)

    def to_directory(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        exactly: bool = False,
        most_asides: int | None = None,
        progress: Watcher | None = None,
    ) -> Path:
        """Put the files into exactly `path`, or into a directory shared by this node, and return it.

        What somebody else has put there stays there. With `exactly` the directory
        will hold the checkpoint's files and nothing else: what lies there is set
        aside, and the newest `most_asides` of such directories are kept; `None`
        keeps all.
        """
        self._check_listing()
        target = self._shared() if path is None else Path(path)
        return self._fetch(target, keep_others=not exactly, most_asides=most_asides, progress=progress)

    @contextmanager
    def as_directory(self, *, progress: Watcher | None = None) -> Iterator[Path]:
        """Yield a directory with the files, to be read only.

        A local checkpoint is passed through untouched. A remote one lies in a
        temporary directory that the last reader on this node removes.
        """
        local = self._untouched()
        if local is not None:
            yield local
            return
        directory = self._shared().with_name(f"{self._shared().name}-reading")
        with _reading(directory):
            self._check_listing()
            yield self._fetch(directory, keep_others=True, progress=progress)

    def _fetch(self, target: Path, **how: Any) -> Path:
        return fetch(self._store, "", self.uri, self.manifest, target, **how)

    def _untouched(self) -> Path | None:
        """Return where the files lie on this machine under their own names, or `None`."""
        directories = self.manifest.directories
        if any(entry.stored_as for entry in self.manifest.files) or any(map(names.stored_as, directories)):
            return None
        return self._store.local_path("")

    def _shared(self) -> Path:
        name = hashlib.sha256(f"{self.uri}\0{self.manifest.commit_id}".encode()).hexdigest()[:24]
        return _node_directory() / name

    def _check_listing(self) -> None:
        reason = incomplete(self._store, "", self.manifest)
        if reason:
            raise CheckpointBroken(f"{self.uri} is broken: {reason}.", uri=self.uri, reason=reason)


def _json(metadata: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps({"schema": 1, "metadata": dict(metadata)}, allow_nan=False).encode()
    except ValueError as error:
        raise TypeError(f"metadata must be JSON: {error}") from error


def _node_directory() -> Path:
    default = Path(tempfile.gettempdir()) / f"airflow-resume-{os.getuid()}"
    directory = Path(os.environ.get("RESUME_CACHE") or default)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """Count as a reader of `directory`; whoever is the last removes it."""
    lock = directory.with_name(f"{directory.name}.readers")
    fd, reader = _shared_lock(lock), os.getpid()
    try:
        yield
    finally:
        # A forked child that unwinds its copy of this frame has never been a reader.
        if os.getpid() == reader:
            _leave(fd, lock, directory)


def _shared_lock(lock: Path) -> int:
    """Open and share `lock`, starting again if its last reader has just removed it."""
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), lock.stat()):
                return fd
        os.close(fd)


def _leave(fd: int, lock: Path, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # A child that was forked meanwhile has a copy of the descriptor, and must not keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.with_name(f".{directory.name}.ready.json").unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
