"""Orbax: `<step>/`, renamed from `<step>.orbax-checkpoint-tmp…` when everything is in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_resume_provider.runtime.formats.evidence import all_whole, read_json
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import directories, files_below, is_temporary, step_in

_METADATA = "_CHECKPOINT_METADATA"
_TEMPORARY = ".orbax-checkpoint-tmp"
_COMMIT_KEY = "commit_timestamp_nsecs"


class OrbaxFormat(Format):
    """`CheckpointManager(directory).latest_step()` finds what was restored by itself."""

    name = "orbax"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the step directories whose metadata carries the time of their commit."""
        found = [each for path in _steps(directory) if (each := _complete(directory, path))]
        return sorted(found, key=lambda each: each.step)

    def recognises(self, directory: Path) -> bool:
        """A step is there or being written."""
        if any((directory / path / _METADATA).exists() for path in directories(directory)):
            return True
        return any(_TEMPORARY in path.name for path in directory.glob("*"))


def _steps(directory: Path) -> Iterator[str]:
    return (path for path in directories(directory) if (directory / path / _METADATA).is_file())


def _complete(directory: Path, path: str) -> Found | None:
    metadata = read_json(directory / path / _METADATA)
    step = step_in(path.rpartition("/")[2])
    if step is None or not isinstance(metadata, dict) or not metadata.get(_COMMIT_KEY):
        return None
    files = files_below(directory / path, f"{path}/")
    if any(is_temporary(part) for name in files for part in name.split("/")):
        return None
    return Found(path, step, files) if all_whole(directory, files) else None
