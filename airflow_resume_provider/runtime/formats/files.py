"""Any trainer that writes single files: `model_2000_steps.zip`, `epoch=3-step=400.pt`, `last.bin`.

Files of one step belong together (`model_1000_steps.zip` and `vecnormalize_1000_steps.pkl`).
Without any number all files together are one checkpoint that is written over and over. Nothing
but the file's structure says that it is complete, so it must also have settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from airflow_resume_provider.runtime.formats.evidence import all_whole
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import files_below, has_weights, is_temporary, step_in

_NO_CHECKPOINT = ("*.log", "*.jsonl", "*.csv", "*.tsv", "*.txt", "*.md", "events.out.tfevents*", "*.out")


class FilesFormat(Format):
    """Single files, grouped by the number in their names."""

    name = "files"

    def __init__(self, *, cautious: bool = False) -> None:
        """With `cautious`, a checkpoint must hold weights: vocabularies and settings are none."""
        self._cautious = cautious

    def find(self, directory: Path) -> Sequence[Found]:
        """Return one checkpoint per step, or the unnumbered files as one."""
        groups: dict[int, list[str]] = defaultdict(list)
        unnumbered: list[str] = []
        for path in files_below(directory):
            if _is_checkpoint(path):
                step = step_in(path.rpartition("/")[2])
                (unnumbered if step is None else groups[step]).append(path)
        numbered = [_found(step, files) for step, files in sorted(groups.items())]
        found = [each for each in numbered if self._takes(each)]
        if not found and unnumbered:
            found = [each for each in [_found(0, unnumbered)] if self._takes(each)]
        return [each for each in found if all_whole(directory, each.files)]

    def _takes(self, found: Found) -> bool:
        return not self._cautious or has_weights(found.files)


def _found(step: int, files: list[str]) -> Found:
    return Found(files[0], step, tuple(files), settled=False)


def _is_checkpoint(path: str) -> bool:
    parts = path.split("/")
    return not any(map(is_temporary, parts)) and not any(fnmatch(parts[-1], p) for p in _NO_CHECKPOINT)
