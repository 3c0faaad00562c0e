"""The files of a commit as they are on the disk, and whether they stayed as they were."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.errors import EscapingPath, FormatError, InvalidInput


@dataclass(frozen=True)
class Source:
    """One file to commit. `state` changes when anybody writes to it or replaces it."""

    path: str
    file: Path
    size: int
    state: tuple[int, int, int, int]

    def unchanged(self) -> bool:
        """Return whether the file is still the one that was found."""
        try:
            return _state(self.file.stat()) == self.state
        except OSError:
            return False


@dataclass(frozen=True)
class Tree:
    """What a commit consists of: files, and directories that are empty."""

    files: tuple[Source, ...]
    directories: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes."""
        return sum(source.size for source in self.files)


def scan(directory: str | os.PathLike[str], only: Iterable[str | os.PathLike[str]] | None = None) -> Tree:
    """Find what to commit below `directory`; `only` names files or directories in it.

    Links to files and directories are followed, so a checkpoint holds their
    contents. Raises `InvalidInput` when there is no such directory and
    `FormatError` when something in it is no file.
    """
    top = Path(directory)
    if not top.is_dir():
        raise InvalidInput(f"{top} is not a directory.", parameter="directory", value=str(top))
    files: dict[str, Source] = {}
    empty: list[str] = []
    for start in _whole(top) if only is None else [_inside(top, name) for name in only]:
        for path in _walk(start, ()):
            relative = path.relative_to(top).as_posix()
            if path.is_dir():
                empty.append(_encodable(relative))
            else:
                files[relative] = _source(relative, path)
    return Tree(tuple(files[name] for name in sorted(files)), tuple(sorted(set(empty) - {"."})))


def _whole(top: Path) -> list[Path]:
    """Return where to start for everything in `top`, without what a restore has left beside its files."""
    if not os.path.ismount(top):
        return [top]
    return [path for path in sorted(top.iterdir()) if not path.name.startswith(names.IN_MOUNT)]


def _inside(top: Path, name: str | os.PathLike[str]) -> Path:
    path = Path(name)
    relative = path.relative_to(top) if path.is_absolute() and path.is_relative_to(top) else path
    try:
        return top / names.contained(relative.as_posix(), where=str(top))
    except EscapingPath as error:
        raise InvalidInput(
            f"{str(name)!r} names nothing inside {top}.",
            did="Nothing was committed.",
            parameter="file",
            value=str(name),
        ) from error


def _walk(path: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the files, and the directories without anything in them."""
    if not path.is_dir():
        yield path
        return
    status = path.stat()
    identity = status.st_dev, status.st_ino
    if identity in above:
        raise FormatError(f"{path} is a link to a directory that it lies in.", did="Nothing was committed.")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}.", did="Nothing was committed."
        ) from error
    if not entries:
        yield path
    for entry in entries:
        yield from _walk(entry, (*above, identity))


def _source(relative: str, path: Path) -> Source:
    try:
        status = path.stat()
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}.", did="Nothing was committed."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(
            f"{path} is neither a file nor a directory.",
            did="Nothing was committed.",
            can="Name the files to commit, or move it elsewhere.",
        )
    return Source(_encodable(relative), path, status.st_size, _state(status))


def _encodable(relative: str) -> str:
    try:
        relative.encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"The name {relative!r} is not valid UTF-8.", did="Nothing was committed."
        ) from error
    return relative


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
