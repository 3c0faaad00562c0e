"""One checkpoint onto the disk: space first, then verified bytes, then one rename."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.download import Download
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.placing import Place, clear
from airflow_resume_provider.checkpoints.progress import Meter, Watcher
from airflow_resume_provider.checkpoints.spelling import canonical, located
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.errors import InvalidInput, NoSpace, PermissionDenied

# What a file takes beyond its bytes: the rest of its last block and an inode.
_FILE_OVERHEAD = 4096
_LONGEST_NAME = 255


def fetch(
    store: Store,
    prefix: str,
    uri: str,
    manifest: Manifest,
    directory: str | os.PathLike[str],
    *,
    keep_others: bool = False,
    most_asides: int | None = None,
    progress: Watcher | None = None,
) -> Path:
    """Make `directory` hold exactly the checkpoint's files and return it.

    With `keep_others` it may hold more, and what somebody else put there stays.

    Processes that ask for the same checkpoint at the same place share one
    download. What was there before is replaced as a whole, or set aside when it is
    somebody's work, and a failure leaves it as it was. Raises `InvalidInput` when
    the checkpoint's lineage lies there, `CheckpointBroken`, `NoSpace` or a `StoreError`.
    """
    refuse_overlap(uri, directory)
    place = Place(directory)
    mark = {"uri": uri, "commit_id": manifest.commit_id, "digest": digest(manifest)}
    try:
        with place.locked():
            if not (_is_offered(place, manifest, mark) if keep_others else place.holds(**mark)):
                with place.staging() as staged:
                    _check_space(staged, manifest)
                    _make_directories(staged, manifest)
                    Download(store, prefix, uri, staged, _meter(manifest, progress)).run(manifest.files)
                    place.put(staged, mark, keep_others=keep_others, most_asides=most_asides)
    except OSError as error:
        raise _system_error(error, manifest.total_bytes, place.directory) from error
    return place.directory


def _is_offered(place: Place, manifest: Manifest, mark: Mapping[str, str]) -> bool:
    files = {entry.path: entry.size for entry in manifest.files}
    return place.offers(files, manifest.directories, **mark)


def start_fresh(directory: str | os.PathLike[str], *, most_asides: int | None = None) -> None:
    """Make sure that `directory` is there, without what an earlier restore has put there."""
    try:
        clear(directory, most_asides=most_asides)
    except OSError as error:
        raise _system_error(error, 0, Path(directory)) from error


def refuse_overlap(uri: str, directory: str | os.PathLike[str]) -> None:
    """Raise `InvalidInput` when restoring to `directory` would replace the lineage of `uri` itself."""
    place = located(uri)
    lineage = place.lineage if place else canonical(uri)
    if not lineage.startswith("file:///"):
        return
    stored, target = Path(lineage.removeprefix("file://")), Path(os.path.realpath(directory))
    if stored.is_relative_to(target) or target.is_relative_to(stored):
        raise InvalidInput(
            f"The lineage {lineage} lies in {directory}, or the other way round.",
            did="Nothing was restored: that would have replaced the checkpoints themselves.",
            can="Restore to a directory of its own.",
            parameter="dir",
            value=str(directory),
        )


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
    for folder in {entry.path.rpartition("/")[0] for entry in manifest.files} - {""}:
        wanted.update([*names.parents(folder), folder])
    for directory in sorted(wanted):
        (staged / directory).mkdir(parents=True, exist_ok=True)


def _system_error(error: OSError, required: int, directory: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"The disk of {directory} is full ({error.strerror}).",
            did="What was downloaded is removed; the directory is as it was.",
            can="Use a larger disk, or another directory.",
            required=required,
            free=0,
        )
    if reason := _bad_name(error, directory):
        parameter, seen = reason
        return InvalidInput(seen, did="Nothing was restored.", parameter=parameter, value=str(directory))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDenied(
            f"May not write to {error.filename or directory} ({error.strerror}).",
            can="Give the user that runs this write access, or use another directory.",
            uri=str(directory),
            permission="write access",
        )
    return error


def _bad_name(error: OSError, directory: Path) -> tuple[str, str] | None:
    """Return the parameter that the system cannot take, and what was seen; `None` for other failures."""
    if error.errno == errno.ENAMETOOLONG and len(os.fsencode(directory.name)) > _LONGEST_NAME:
        return "dir", f"The name of the directory {str(directory)!r} is longer than this file system allows."
    if error.errno == errno.ENAMETOOLONG:
        seen = f"A name of the checkpoint is longer than this file system allows ({error.filename})."
        return "directory", seen
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP):
        return "dir", f"{directory} cannot be a directory ({error.strerror}: {error.filename})."
    return None
