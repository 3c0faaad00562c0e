"""Files that arrive in a directory where somebody else is at work: each whole, and nobody's taken away."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from airflow_resume_provider.checkpoints.durable import sync_directory

# Names beside the directory are its own with something added, and 255 bytes is all there is.
_LONGEST = 200


def merge(staged: Path, directory: Path, superseded: Iterable[str]) -> None:
    """Move everything `staged` into `directory`, in place of the files that are `superseded`."""
    for name in superseded:
        (directory / name).unlink()
    for path, folders, files in os.walk(staged):
        target = directory / os.path.relpath(path, staged)
        for name in folders:
            _real_directory(target / name)
        for name in files:
            Path(path, name).replace(target / name)
        sync_directory(target)


def size_of(path: Path) -> int:
    """Return a file's size; -1 when there is none."""
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def short(name: str) -> str:
    """Return `name`, or what stands for it where something longer would be no name any more."""
    raw = os.fsencode(name)
    if len(raw) <= _LONGEST:
        return name
    return f"{os.fsdecode(raw[:40])}-{hashlib.sha256(raw).hexdigest()[:16]}"


def _real_directory(path: Path) -> None:
    """Make a directory, or find one that is no link to somewhere else."""
    with suppress(FileExistsError):
        path.mkdir()
    if path.is_symlink() or not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
