"""Keras BackupAndRestore: weights written in place, then `training_metadata.json`.

While the weights are written they are newer than the metadata; when the metadata is the newer one
and both are whole, they are of one save. The step is the number of epochs that are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_resume_provider.runtime.formats.evidence import all_whole, read_json
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import directories

_WEIGHTS, _METADATA = "latest.weights.h5", "training_metadata.json"


class KerasFormat(Format):
    """`BackupAndRestore(backup_dir)` below RESUME_DIR finds what was restored by itself."""

    name = "keras"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the backup directory when weights and metadata are whole and of one save."""
        found = [each for path in _backups(directory) if (each := _complete(directory, path))]
        return sorted(found, key=lambda each: each.step)

    def recognises(self, directory: Path) -> bool:
        """Keras has begun to write its backup."""
        return any(True for _ in _backups(directory))


def _backups(directory: Path) -> Iterator[str]:
    for path in (".", *directories(directory)):
        if (directory / path / _WEIGHTS).exists() or (directory / path / _METADATA).exists():
            yield path


def _complete(directory: Path, path: str) -> Found | None:
    prefix = "" if path == "." else f"{path}/"
    files = tuple(f"{prefix}{name}" for name in (_WEIGHTS, _METADATA))
    said = read_json(directory / files[1])
    if not isinstance(said, dict) or not all_whole(directory, files):
        return None
    try:
        if (directory / files[1]).stat().st_mtime_ns < (directory / files[0]).stat().st_mtime_ns:
            return None  # new weights with the metadata of the save before
    except OSError:
        return None
    epoch = said.get("epoch")
    step = epoch if isinstance(epoch, int) else 0
    return Found(path, step, files, in_place=True, metrics={"batch": said.get("batch")})
