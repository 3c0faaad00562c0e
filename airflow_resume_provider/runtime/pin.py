"""Pinning: holding on to a finished checkpoint's files while the trainer goes on.

A hard link survives unlink and rename, and costs a third of a millisecond. It does not survive
a trainer that opens the same path for writing again: the inode is shared. So inode, size and
mtime are compared, and whoever writes in place gets copies instead.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Another file system, one without links, too many of them, or somebody else's file.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
#: Identity of a file's content without reading it: inode, size, mtime in ns.
Stamp = tuple[int, int, int]


class Changed(Exception):
    """A file was not the same before and after; the checkpoint must not be taken."""


@dataclass(frozen=True)
class Pin:
    """Files held below `directory` in their natural relative paths."""

    directory: Path
    stamps: Mapping[str, Stamp]

    @property
    def files(self) -> list[str]:
        """The relative paths."""
        return sorted(self.stamps)

    @property
    def total_bytes(self) -> int:
        """Bytes of all the files."""
        return sum(stamp[1] for stamp in self.stamps.values())

    def check(self) -> None:
        """Raise `Changed` when a pinned file has been written to since."""
        for name, stamp in self.stamps.items():
            if stamp_of(self.directory / name) != tuple(stamp):
                raise Changed(name)

    def release(self) -> None:
        """Let go; the trainer's own files are not touched."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def to_json(self) -> str:
        """Return what another process needs to know."""
        return json.dumps({"directory": str(self.directory), "stamps": self.stamps})

    @classmethod
    def from_json(cls, text: str) -> Pin:
        """Read the JSON form."""
        data = json.loads(text)
        stamps = {name: tuple(stamp) for name, stamp in data["stamps"].items()}
        return cls(Path(data["directory"]), stamps)


def stamp_of(path: Path) -> Stamp | None:
    """Return the file's stamp, or None when it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def stamps_of(directory: Path, files: Iterable[str]) -> dict[str, Stamp]:
    """Return the stamps of `files`; raises `Changed` when one is gone."""
    stamps: dict[str, Stamp] = {}
    for name in files:
        stamp = stamp_of(directory / name)
        if stamp is None:
            raise Changed(name)
        stamps[name] = stamp
    return stamps


def pin_files(
    source: Path, files: Iterable[str], target: Path, *, appended: Collection[str] = (), copy: bool = False
) -> Pin:
    """Hold `files` of `source` below `target`, by hard link, or by copy where a link is impossible.

    Raises:
        Changed: a file changed or vanished meanwhile; nothing is left at `target`.
        OSError: no space for a copy; nothing is left at `target`.
    """
    names = sorted(files)
    try:
        stamps = stamps_of(source, names)
        held = {name: _hold(source / name, target / name, copy or name in appended) for name in names}
        if any(stamps_of(source, [n])[n] != stamps[n] for n in names if n not in appended):
            raise Changed(source)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Pin(target, held)


def _hold(source: Path, target: Path, copy: bool) -> Stamp:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if copy or source.is_symlink():
            shutil.copy2(source, target)
        else:
            _link(source, target)
    except FileNotFoundError as error:
        raise Changed(source) from error
    return stamps_of(target.parent, [target.name])[target.name]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, target)
