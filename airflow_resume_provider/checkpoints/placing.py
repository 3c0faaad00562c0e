"""A directory that appears whole or not at all.

Everything is prepared in a temporary sibling on the same file system, made
durable, and put in place with one rename; what was there before is exchanged for
it in the same moment where the system can do that. Beside the directory lies a
ready mark, `.NAME.ready.json`, which says what it holds: beside, because
frameworks look at every file inside.

What the mark describes is a copy and is replaced. Anything else is somebody's work:
it is never mixed with what is restored and never deleted, but set aside, in the
sibling `NAME.replaced-TIME`, or in `.resume-replaced-TIME` of a mount point.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints.durable import sync_directory, sync_tree, write_durably
from airflow_resume_provider.checkpoints.merging import merge, short, size_of
from airflow_resume_provider.checkpoints.names import IN_MOUNT
from airflow_resume_provider.errors import InvalidInput

log = logging.getLogger("airflow_resume_provider.checkpoints")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNMOVABLE = (errno.EXDEV, errno.ENOSYS, errno.ENOTSUP)


class Place:
    """The final directory with its temporary sibling, its lock and its ready mark."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(os.path.realpath(directory))
        self._inside = os.path.ismount(self.directory)
        self._around = self.directory if self._inside else self.directory.parent
        name = short(self.directory.name)
        self._stem = f".{name}." if not self._inside else ".resume."
        self.ready_mark = self._around / f"{self._stem}ready.json"
        self._asides = f"{name}.replaced-" if not self._inside else ".resume-replaced-"
        self._own = IN_MOUNT if self._inside else ()
        if os.path.lexists(self.directory) and not self.directory.is_dir():
            raise InvalidInput(
                f"{directory} is not a directory.",
                did="It was left as it is.",
                can="Name a directory, or one that is not there yet.",
                parameter="dir",
                value=str(directory),
            )

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

    def put(
        self,
        staged: Path,
        mark: Mapping[str, Any],
        *,
        keep_others: bool = False,
        most_asides: int | None = None,
    ) -> None:
        """Put `staged` in place of whatever is there, then write the ready mark.

        What is no untouched restore is set aside, and the newest `most_asides` of
        those are kept; `None` keeps all. With `keep_others` it stays where it is:
        somebody may be at work with it.
        """
        sync_tree(staged)
        state, old = _state(staged, self._own), self.mark()
        work = self.is_work()
        aside = self._aside() if work and not keep_others else None
        self.ready_mark.unlink(missing_ok=True)
        if work and keep_others:
            merge(staged, self.directory, self._untouched(old))
        elif self._inside:
            self._fill(staged, aside)
        elif not self._swap(staged, aside):
            state = self._state()  # what had to be copied is another file now
        sync_directory(self._around)
        if keep_others:  # directories that were there before stay what they are
            own = {row[0] for row in state}
            state = [row for row in self._state() if row[0] in own]
        write_durably(self.ready_mark, json.dumps({**mark, "state": state}))
        if aside:
            log.warning("%s held other files, which are now in %s", self.directory, aside)
            self._forget_asides(most_asides)

    def is_work(self) -> bool:
        """Return whether something is there that no restore has put there, or that was touched since."""
        state = self._state() if self.directory.is_dir() else []
        return bool(state) and self.mark().get("state") != state

    def holds(self, **wanted: Any) -> bool:
        """Return whether the directory is ready, holds what is `wanted`, and was not touched since."""
        mark = self.mark()
        return (
            all(mark.get(name) == value for name, value in wanted.items())
            and self.directory.is_dir()
            and mark.get("state") == self._state()
        )

    def offers(self, files: Mapping[str, int], directories: Iterable[str], **wanted: Any) -> bool:
        """Return whether it is ready and has all `files` with their sizes, whatever else lies there."""
        mark = self.mark()
        return (
            all(mark.get(name) == value for name, value in wanted.items())
            and all(size_of(self.directory / path) == size for path, size in files.items())
            and all((self.directory / path).is_dir() for path in directories)
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
        for left in self._around.glob(_escaped(self.ready_mark.name) + "." + "[0-9a-f]" * 8):
            with suppress(OSError):
                left.unlink()

    def _untouched(self, old: Mapping[str, Any]) -> list[str]:
        """Return the files that the `old` mark knows of and that are still as they were."""
        there = self._state()
        return [row[0] for row in old.get("state", ()) if row in there and not row[0].endswith("/")]

    def _state(self) -> list[list[Any]]:
        return _state(self.directory, self._own)

    def _aside(self) -> Path:
        return self._around / f"{self._asides}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"

    def _forget_asides(self, most: int | None) -> None:
        kept = sorted(self._around.glob(f"{_escaped(self._asides)}[0-9]*T*Z"))
        for old in kept[: max(0, len(kept) - most)] if most is not None else ():
            _remove(old)

    def _swap(self, staged: Path, aside: Path | None) -> bool:
        """Replace the directory as a whole where the system can, else all that is in it, and return False."""
        try:
            if aside:
                _swap_aside(staged, self.directory, aside)
            else:
                _swap(staged, self.directory)
        except OSError as error:
            # A directory of a container image's layer, or a file system that renames files only.
            if error.errno not in _UNMOVABLE:
                raise
            self._fill(staged, aside)
            return False
        return True

    def _fill(self, staged: Path, aside: Path | None) -> None:
        """Replace the contents of a directory that cannot itself be renamed, such as a mount point."""
        self.directory.mkdir(exist_ok=True)
        if aside:
            aside.mkdir()
        for old in list(self.directory.iterdir()):
            if not old.name.startswith(self._own):
                _move(old, aside / old.name) if aside else _remove(old)
        for new in list(staged.iterdir()):
            _move(new, self.directory / new.name)
        if not self._inside:  # what had to be copied is not durable by having been so elsewhere
            sync_tree(self.directory)


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
            # A child that was forked meanwhile has a copy of the descriptor, and must not keep the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _move(source: Path, target: Path) -> None:
    """Rename, or copy what cannot be renamed; never into a directory that is there already."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in _UNMOVABLE or os.path.lexists(target):
            raise
        shutil.move(source, target)


def _swap(staged: Path, directory: Path) -> None:
    if not os.path.lexists(directory):
        staged.rename(directory)
    elif not _exchange(staged, directory):
        aside = staged.with_name(f"{staged.name}-old")
        directory.rename(aside)
        staged.rename(directory)
        _remove(aside)


def _swap_aside(staged: Path, directory: Path, aside: Path) -> None:
    """Put `staged` in the place of `directory`, which becomes `aside`."""
    staged.rename(aside)
    try:
        exchanged = _exchange(aside, directory)
    except OSError:
        aside.rename(staged)
        raise
    if not exchanged:
        aside.rename(staged)
        directory.rename(aside)
        staged.rename(directory)


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


def _state(directory: Path, own: tuple[str, ...]) -> list[list[Any]]:
    """Return name, inode, size and time of everything inside, which tells any change."""
    found: list[list[Any]] = []
    _look(str(directory), "", own, found)
    return sorted(found)


def _look(path: str, prefix: str, own: tuple[str, ...], found: list[list[Any]]) -> None:
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


def clear(directory: str | os.PathLike[str], *, most_asides: int | None = None) -> None:
    """Make sure that the directory exists and holds nothing that an earlier restore has put there.

    Files that no restore has put there are the user's, and stay.
    """
    place = Place(directory)
    with place.locked():
        if place.mark():
            with place.staging() as staged:
                place.put(staged, {}, most_asides=most_asides)
            place.ready_mark.unlink(missing_ok=True)
        elif place.is_work():
            log.warning("%s is not empty; the training starts with what is there", place.directory)
        place.directory.mkdir(parents=True, exist_ok=True)
