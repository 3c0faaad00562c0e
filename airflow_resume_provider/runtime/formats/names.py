"""Names on disk: which are temporary, which number they carry, what lies in a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

_TEMPORARY = re.compile(
    r"(^|[._-])(tmp|temp|temporary|partial|incomplete|inprogress|in-progress|writing)([._-]|\d*$)|"
    # `model.bin.part` is on its way; `part-00001` and `model_part_1.bin` are shards.
    r"\.part\d*$|"
    r"orbax-checkpoint-tmp|\.sw[a-p]$|~$|\.lock$|^\.nfs|^\.resume([.-]|$)",
    re.IGNORECASE,
)
_STEP_WORDS = (
    re.compile(r"(?:global[_-]?)?steps?[=_-]?(\d+)", re.IGNORECASE),
    re.compile(r"(\d+)[_-]?steps?", re.IGNORECASE),
)
_NUMBER = re.compile(r"\d+")
#: Suffixes of files that hold weights, whatever the framework.
_WEIGHTS = (
    *(".bin", ".ckpt", ".h5", ".joblib", ".keras", ".model", ".msgpack", ".npy", ".npz"),
    *(".onnx", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".zip"),
)
#: What a trainer puts into a finished directory to say so.
MARKERS = frozenset({"resume.json", "_SUCCESS", "_COMPLETE", ".complete", "complete", "DONE", "done"})


@lru_cache(maxsize=4096)
def is_temporary(name: str) -> bool:
    """Say whether a name is one that a writer renames or removes when it is done."""
    return _TEMPORARY.search(name) is not None


@lru_cache(maxsize=4096)
def step_in(name: str) -> int | None:
    """Return the step in a file's or directory's name: the number at the word "step", else the last one.

    A suffix such as `.h5` or `.mp4` carries no step.
    """
    stem = re.sub(r"\.[A-Za-z][A-Za-z0-9]*$", "", name)
    if word := next((found for word in _STEP_WORDS if (found := word.search(stem))), None):
        return int(word[1])
    numbers = _NUMBER.findall(stem)
    return int(numbers[-1]) if numbers else None


def has_weights(names: Iterable[str]) -> bool:
    """Say whether one of the names is that of a file with weights."""
    return any(name.lower().endswith(_WEIGHTS) for name in names)


def files_below(directory: Path, prefix: str = "") -> tuple[str, ...]:
    """Return every file below `directory`, relative and sorted, each name after `prefix`."""
    return tuple(sorted(_walk(directory, prefix)))


def _walk(directory: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return  # rotated away while we looked
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield prefix + entry.name


def small_files(directory: Path, limit: int) -> Iterator[str]:
    """Yield the names of the files right in `directory` of at most `limit` bytes; links are followed."""
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError:
        return
    for entry in listed:
        try:
            if entry.is_file() and entry.stat().st_size <= limit:
                yield entry.name
        except OSError:
            continue  # gone while we looked


def directories(directory: Path, depth: int = 3) -> Iterator[str]:
    """Yield the sub-directories that are not temporary, relative, outer ones first, down to `depth`."""
    level = [""]
    for _ in range(depth):
        level = [child for parent in level for child in _children(directory, parent)]
        yield from level


def _children(directory: Path, parent: str) -> Iterator[str]:
    try:
        with os.scandir(directory / parent) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if not is_temporary(name):
            yield f"{parent}/{name}" if parent else name
