"""Lightning: `*.ckpt` files, zip archives that are renamed into place."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from airflow_resume_provider.runtime.formats.evidence import whole
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import files_below, is_temporary, step_in

_STEP_KEY = "global_step"


class LightningFormat(Format):
    """Resume with `trainer.fit(..., ckpt_path=os.environ["RESUME_CHECKPOINT"] or None)`, or `"last"`.

    A checkpoint is the newest `.ckpt` and every other one beside it that is whole: `last.ckpt` may
    be a link to it, and the best ones so far are what `ckpt_path="best"` wants at the end.
    """

    name = "lightning"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the newest checkpoint file with its companions."""
        files = [path for path in _named(directory) if whole(directory / path)]
        steps = {path: _step(directory / path) for path in files}
        if not files:
            return ()
        newest = max(files, key=lambda path: (steps[path], not _is_last(path), path))
        return [Found(newest, steps[newest], tuple(files))]

    def recognises(self, directory: Path) -> bool:
        """There is a `.ckpt` file, whole or not."""
        return any(True for _ in _named(directory))


def _named(directory: Path) -> Iterator[str]:
    for path in files_below(directory):
        if path.endswith(".ckpt") and not any(is_temporary(part) for part in path.split("/")):
            yield path


def _is_last(path: str) -> bool:
    return path.rpartition("/")[2].startswith("last")


def _step(path: Path) -> int:
    try:
        stat = path.stat()
        inside = _step_inside(str(path), stat.st_ino, stat.st_mtime_ns)
    except (OSError, ValueError, zipfile.BadZipFile):
        inside = None
    return inside if inside is not None else step_in(path.name) or 0


@lru_cache(maxsize=1024)
def _step_inside(path: str, inode: int, modified: int) -> int | None:
    """Read `global_step` out of the pickle without executing it, and without PyTorch."""
    with zipfile.ZipFile(path) as archive:
        name = next((n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl"), None)
        if name is None:
            return None
        seen = False
        for _opcode, argument, _position in pickletools.genops(archive.read(name)):
            if seen and isinstance(argument, int) and "PUT" not in _opcode.name:
                return argument
            seen = seen or argument == _STEP_KEY
    return None
