"""One checkpoint onto the disk: space first, then verified bytes, then one rename."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.download import Download
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.placing import Place
from airflow_resume_provider.checkpoints.progress import Meter, Watcher
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.errors import InvalidInput, NoSpace, PermissionDenied

# What a file takes beyond its bytes: the rest of its last block and an inode.
_FILE_OVERHEAD = 4096


def fetch(
    store: Store,
    prefix: str,
    uri: str,
    manifest: Manifest,
    directory: str | os.PathLike[str],
    *,
    progress: Watcher | None = None,
) -> Path:
    """Make `directory` hold exactly the checkpoint's files and return it.

    Processes that ask for the same checkpoint at the same place share one
    download. What was there before is replaced as a whole, and a failure leaves
    it as it was. Raises `CheckpointBroken`, `NoSpace` or a `StoreError`.
    """
    place = Place(directory)
    mark = {"uri": uri, "commit_id": manifest.commit_id, "digest": digest(manifest)}
    try:
        with place.locked():
            if not place.holds(**mark):
                _fetch_into(place, mark, store, prefix, uri, manifest, progress)
    except OSError as error:
        raise _system_error(error, manifest, place.directory) from error
    return place.directory


def _fetch_into(
    place: Place,
    mark: Mapping[str, Any],
    store: Store,
    prefix: str,
    uri: str,
    manifest: Manifest,
    progress: Watcher | None,
) -> None:
    with place.staging() as staged:
        _check_space(staged, manifest)
        _make_directories(staged, manifest)
        Download(store, prefix, uri, staged, _meter(manifest, progress)).run(manifest.files)
        place.put(staged, mark)


def verify(
    store: Store, prefix: str, uri: str, manifest: Manifest, *, progress: Watcher | None = None
) -> None:
    """Read all of a checkpoint and compare; raises `CheckpointBroken`. Nothing is written."""
    Download(store, prefix, uri, None, _meter(manifest, progress)).run(manifest.files)


def digest(manifest: Manifest) -> str:
    """Return what tells two checkpoints' contents apart."""
    lines = sorted(f"{entry.path}\0{entry.size}\0{entry.crc32c}" for entry in manifest.files)
    return hashlib.sha256("\n".join([*lines, *sorted(manifest.directories)]).encode()).hexdigest()


def _meter(manifest: Manifest, progress: Watcher | None) -> Meter:
    return Meter(manifest.total_bytes, len(manifest.files), progress)


def _check_space(staged: Path, manifest: Manifest) -> None:
    required = manifest.total_bytes + _FILE_OVERHEAD * len(manifest.files)
    free = shutil.disk_usage(staged).free
    if required > free:
        raise NoSpace(
            f"The checkpoint takes {required} bytes, the disk of {staged.parent} has {free} free.",
            did="Nothing was downloaded.",
            can="Use a larger disk, or another directory.",
            required=required,
            free=free,
        )


def _make_directories(staged: Path, manifest: Manifest) -> None:
    wanted = set(manifest.directories)
    for entry in manifest.files:
        wanted.update(names.parents(entry.path))
    for directory in sorted(wanted):
        (staged / directory).mkdir(parents=True, exist_ok=True)


def _system_error(error: OSError, manifest: Manifest, directory: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"The disk of {directory} is full ({error.strerror}).",
            did="What was downloaded is removed; the directory is as it was.",
            can="Use a larger disk, or another directory.",
            required=manifest.total_bytes,
            free=0,
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput(
            f"A name of the checkpoint is longer than this file system allows ({error.filename}).",
            did="Nothing was restored.",
            parameter="directory",
            value=str(directory),
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDenied(
            f"May not write to {error.filename or directory} ({error.strerror}).",
            can="Give the user that runs this write access, or use another directory.",
            uri=str(directory),
            permission="write access",
        )
    return error
