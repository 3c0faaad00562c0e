"""torch.distributed.checkpoint: a directory whose `.metadata`, written last, names every shard."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import directories, files_below, is_temporary, step_in
from airflow_resume_provider.runtime.nodes import Node

_METADATA = ".metadata"


class DcpFormat(Format):
    """Resume with `dcp.load(state, checkpoint_id=os.environ["RESUME_CHECKPOINT"])`; any world size can."""

    name = "dcp"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the directories whose metadata is there with every byte that it names."""
        found = [each for path in _candidates(directory) if (each := _complete(directory, path))]
        return sorted(found, key=lambda each: each.step)

    def recognises(self, directory: Path) -> bool:
        """A rank has begun to write its shard."""
        return any(name.endswith(".distcp") for name in files_below(directory))


def _candidates(directory: Path) -> Iterator[str]:
    for path in (".", *directories(directory)):
        if (directory / path / _METADATA).is_file():
            yield path


def shards_named(root: Path) -> Mapping[str, int] | None:
    """Return the shards that the metadata in `root` names, each with the byte up to which it must reach.

    `None` where there is no metadata, or none that can be read.
    """
    try:
        stat = (root / _METADATA).stat()
        return _shards(str(root / _METADATA), stat.st_ino, stat.st_mtime_ns)
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, AttributeError, TypeError):
        return None


def _complete(directory: Path, path: str) -> Found | None:
    root = directory / path
    shards = shards_named(root)
    if shards is None:
        return None
    here = [name for name in shards if (root / name).exists()] if _shards_are_apart() else list(shards)
    if not here or not all(_reaches(root / name, shards[name]) for name in here):
        return None
    files = files_below(root, "" if path == "." else f"{path}/")
    ranks = {name.split("_")[2] for name in shards if name.startswith("__") and name.count("_") >= 3}
    kept = tuple(name for name in files if not is_temporary(name.rpartition("/")[2]))
    return Found(path, _step(path), kept, world_size=len(ranks) or 1)


def _shards_are_apart() -> bool:
    """Say whether other nodes' shards are on their own disks, from which they hand them in themselves.

    The metadata is written after every rank has said that its shards are: those that are not here
    are whole where they are.
    """
    return Node.here(os.environ).count > 1 and os.environ.get(env.SHARED_DIR, "0") != "1"


def _step(path: str) -> int:
    return next((step for part in reversed(path.split("/")) if (step := step_in(part)) is not None), 0)


def _reaches(path: Path, end: int) -> bool:
    try:
        return path.stat().st_size >= end
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _shards(path: str, inode: int, modified: int) -> Mapping[str, int]:
    """Return each shard's file name and up to which byte it must reach."""
    metadata = _Blind(BytesIO(Path(path).read_bytes())).load()
    shards: dict[str, int] = {}
    for where in metadata.storage_data.values():
        shards[where.relative_path] = max(shards.get(where.relative_path, 0), where.offset + where.length)
    return shards


class _Anything:
    """Stands for every class in the pickle: it has attributes and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return self

    def __hash__(self) -> int:
        return id(self)

    def __setstate__(self, state: Any) -> None:
        own = state[1] if isinstance(state, tuple) and len(state) == 2 and state[1] else state
        if isinstance(own, dict):
            self.__dict__.update(own)


class _Blind(pickle.Unpickler):
    """Reads the structure of a pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Anything,), {})
