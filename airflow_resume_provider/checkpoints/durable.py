"""What has been written stays, also after the power was cut."""

from __future__ import annotations

import ctypes
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

# Above so many files one flush of the file system is cheaper than one per file.
_MANY_FILES = 64


def sync_tree(top: Path) -> None:
    """Make a tree durable: its files, then its directories."""
    files, folders = [], [str(top)]
    for path, below, names in os.walk(top):
        files += [f"{path}/{name}" for name in names]
        folders += [f"{path}/{name}" for name in below]
    if len(files) > _MANY_FILES and _sync_file_system(top):
        return
    with ThreadPoolExecutor(8, thread_name_prefix="fsync") as pool:
        list(pool.map(_sync, files))
    for folder in reversed(folders):
        sync_directory(Path(folder))


def _sync_file_system(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bool(ctypes.CDLL(None).syncfs(fd) == 0)
    except AttributeError:
        return False
    finally:
        os.close(fd)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where the file system has a notion of it."""
    with suppress(OSError):
        _sync(str(path))


def write_durably(path: Path, text: str) -> None:
    """Make a file appear with this text, or not at all, and stay."""
    staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with staged.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    sync_directory(path.parent)
