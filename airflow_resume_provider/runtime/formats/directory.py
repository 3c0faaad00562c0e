"""Any trainer that keeps each checkpoint in a sub-directory with a number in its name.

Complete is a sub-directory, all of whose files are whole, that

- was renamed into place from a temporary name (the kernel then stamps its `ctime` later than
  its `mtime`), or holds one of the marker files (`resume.json`, `_SUCCESS`, `done` …), or
- has stayed the same for a while with nobody holding a file of it open for writing.

A rename leaves no trace when the clock that stamps files has not ticked since the last entry (it
ticks every 1 to 10 ms, https://docs.kernel.org/filesystems/multigrain-ts.html), so that no trace
of one is no proof that there was none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_resume_provider.runtime.formats.evidence import all_whole, read_json
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import (
    MARKERS,
    directories,
    files_below,
    has_weights,
    is_temporary,
    step_in,
)

_SAYS_SO = re.compile(r"(^|[^a-z])(checkpoint|ckpt|chkpt|ckp|snapshot)s?([^a-z]|$)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


class DirectoryFormat(Format):
    """Numbered sub-directories, complete by rename, by marker, or by having settled."""

    name = "directory"

    def __init__(self, *, cautious: bool = False) -> None:
        """With `cautious`, a number is not enough: a log directory has one, too.

        What only settled must then hold weights or be called like another that was renamed; what
        is merely called a checkpoint is doubtful, and does not count beside one that is not.
        """
        self._cautious = cautious
        self._shapes: set[str] = set()

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the complete numbered sub-directories, by step."""
        complete = list(self._complete(directory))
        renamed = [each for each in complete if each.settled and not _marker(each.path, each.files)]
        self._shapes.update(_shape(each.path) for each in renamed)
        found = [each for one in complete if (each := self._judged(one))]
        sure = [each for each in found if not each.doubtful]
        return sorted(sure or found, key=lambda each: each.step)

    def present(self, directory: Path) -> Sequence[Found]:
        """Return all complete ones: a sibling that is renamed later may make any of them sure."""
        return list(self._complete(directory))

    def recognises(self, directory: Path) -> bool:
        """Something is there beyond doubt."""
        return any(not each.doubtful for each in self.find(directory))

    def _judged(self, found: Found) -> Found | None:
        if not self._cautious or found.settled or has_weights(found.files):
            return found
        shape = _shape(found.path)
        # Marks are made last, so without one it is not complete; a bare number may be anything's.
        if shape in self._shapes and shape.rpartition("/")[2] != "#":
            return found
        return replace(found, doubtful=True) if _SAYS_SO.search(found.path.rpartition("/")[2]) else None

    def _complete(self, directory: Path) -> Iterator[Found]:
        taken: list[str] = []
        for path in directories(directory):
            step = step_in(path.rpartition("/")[2])
            if step is None or any(path.startswith(f"{outer}/") for outer in taken):
                continue
            taken.append(path)
            files = files_below(directory / path, f"{path}/")
            if files and not any(map(_any_temporary, files)) and all_whole(directory, files):
                yield _found(directory, path, step, files)


def _shape(path: str) -> str:
    return _NUMBER.sub("#", path)


def _marker(path: str, files: tuple[str, ...]) -> str:
    return next((name for name in MARKERS if f"{path}/{name}" in files), "")


def _any_temporary(path: str) -> bool:
    return any(is_temporary(part) for part in path.split("/"))


def _found(directory: Path, path: str, step: int, files: tuple[str, ...]) -> Found:
    marker = _marker(path, files)
    last = _last_change(directory, files)
    said = read_json(directory / path / marker) if marker == "resume.json" else None
    if isinstance(said, dict) and isinstance(said.get("step"), int):
        step = said["step"]
    return Found(path, step, files, settled=_is_final(directory / path, marker, last))


def _is_final(path: Path, marker: str, last: int) -> bool:
    """Marked or renamed after the last byte: who writes into it again, in place, must settle."""
    try:
        marked = bool(marker) and (path / marker).stat().st_mtime_ns >= last
        return marked or (was_renamed(path) and path.stat().st_ctime_ns >= last)
    except OSError:
        return False


def _last_change(directory: Path, files: tuple[str, ...]) -> int:
    try:
        return max((directory / name).stat().st_mtime_ns for name in files)
    except OSError:
        return 0  # rotated away while we looked; it cannot be held either


def was_renamed(directory: Path) -> bool:
    """Say whether the directory got its name after its last entry: a rename, not a new entry, came last."""
    try:
        stat = directory.stat()
    except OSError:
        return False
    return stat.st_ctime_ns > stat.st_mtime_ns
