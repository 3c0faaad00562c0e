"""A directory that appears whole or not at all.

Everything is prepared in a temporary sibling on the same file system, made
durable, and put in place with one rename; what was there before is exchanged for
it in the same moment where the system can do that. Beside the directory lies a
ready mark, `.NAME.ready.json`, which says what it holds: beside, because
frameworks look at every file inside.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Above so many files one flush of the file system is cheaper than one per file.
_MANY_FILES = 64


class Place:
    """The final directory with its temporary sibling, its lock and its ready mark."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(os.path.realpath(directory))
        self._inside = os.path.ismount(self.directory)
        self._around = self.directory if self._inside else self.directory.parent
        self._stem = f".{self.directory.name}." if not self._inside else ".resume."
        self.ready_mark = self._around / f"{self._stem}ready.json"

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the place; yields whether somebody else held it before. A dead holder holds nothing."""
        self._around.mkdir(parents=True, exist_ok=True)
        lock = self._around / f"{self._stem}lock"
        with _lock_file(lock) as waited:
            self._reap()
            try:
                yield waited
            finally:
                with suppress(OSError):
                    lock.unlink()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield an empty temporary directory; it is gone afterwards, whatever happened."""
        staged = self._around / f"{self._stem}restoring-{secrets.token_hex(4)}"
        staged.mkdir()
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def put(self, staged: Path, mark: Mapping[str, Any]) -> None:
        """Put `staged` in place of whatever is there, then write the ready mark."""
        sync_tree(staged)
        self.ready_mark.unlink(missing_ok=True)
        if self._inside:
            self._fill(staged)
        else:
            _swap(staged, self.directory)
        sync_directory(self._around)
        _write_durably(self.ready_mark, json.dumps({**mark, "state": _state(self.directory, self._stem)}))

    def holds(self, **wanted: Any) -> bool:
        """Return whether the directory is ready, holds what is `wanted`, and was not touched since."""
        mark = self.mark()
        return (
            all(mark.get(name) == value for name, value in wanted.items())
            and self.directory.is_dir()
            and mark.get("state") == _state(self.directory, self._stem)
        )

    def mark(self) -> Mapping[str, Any]:
        """Return what the ready mark says; empty when there is none."""
        with suppress(OSError, ValueError):
            data = json.loads(self.ready_mark.read_text())
            return data if isinstance(data, dict) else {}
        return {}

    def _reap(self) -> None:
        """Remove what a killed restore left; nobody else is at work while the lock is held."""
        for left in self._around.glob(f"{_escaped(self._stem)}restoring-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _fill(self, staged: Path) -> None:
        """Replace the contents of a mount point, which cannot itself be renamed."""
        for old in list(self.directory.iterdir()):
            if old != staged and not old.name.startswith(self._stem) and old.name != "lost+found":
                _remove(old)
        for new in list(staged.iterdir()):
            new.rename(self.directory / new.name)


def _escaped(stem: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in stem)


@contextmanager
def _lock_file(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock on `path`, which the holder may unlink; yields whether it had to wait."""
    waited = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _same_file(fd, path):
                yield waited
                return
            waited = True
        finally:
            os.close(fd)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _swap(staged: Path, directory: Path) -> None:
    if not os.path.lexists(directory):
        staged.rename(directory)
    elif not _exchange(staged, directory):
        aside = staged.with_name(f"{staged.name}-old")
        directory.rename(aside)
        staged.rename(directory)
        _remove(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; `False` where the system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _state(directory: Path, own: str) -> list[list[Any]]:
    """Return name, inode, size and time of everything inside, which tells any change."""
    found: list[list[Any]] = []
    _look(str(directory), "", own, found)
    return sorted(found)


def _look(path: str, prefix: str, own: str, found: list[list[Any]]) -> None:
    with os.scandir(path) as entries:
        for entry in entries:
            if not prefix and entry.name.startswith(own):
                continue
            if entry.is_dir(follow_symlinks=False):
                found.append([f"{prefix}{entry.name}/", entry.inode(), 0, 0])
                _look(entry.path, f"{prefix}{entry.name}/", own, found)
            else:
                stat = entry.stat(follow_symlinks=False)
                found.append([prefix + entry.name, stat.st_ino, stat.st_size, stat.st_mtime_ns])


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


def _write_durably(path: Path, text: str) -> None:
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


def clear(directory: str | os.PathLike[str]) -> None:
    """Make sure that the directory exists and holds nothing that an earlier restore has put there."""
    place = Place(directory)
    with place.locked():
        if place.mark():
            with place.staging() as staged:
                place.put(staged, {})
            place.ready_mark.unlink(missing_ok=True)
        place.directory.mkdir(parents=True, exist_ok=True)
