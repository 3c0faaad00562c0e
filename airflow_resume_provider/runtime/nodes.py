"""Which node and which process of it this is, as Batch or a launcher says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

# Each row: index or count, in the order of trust. Batch knows nodes; launchers know ranks.
_INDEX = ("BATCH_NODE_INDEX", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_COUNT = ("BATCH_NODE_COUNT", "GROUP_WORLD_SIZE", "NNODES", "SLURM_NNODES")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID")


@dataclass(frozen=True)
class Node:
    """`index` of `count` nodes, and which of the launcher's processes on it, if one has said so."""

    index: int = 0
    count: int = 1
    local_rank: int = 0
    launched: bool = field(default=False, compare=False)

    @property
    def alone(self) -> bool:
        """Whether this is certainly the training's only process of ours."""
        return self.count == 1 and not self.launched

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Self:
        """Read it from the environment; one node with one process when nobody says."""
        index, count = _first(environ, _INDEX, 0), _first(environ, _COUNT, 1)
        local = _first(environ, _LOCAL, 0)
        if not _known(environ, _INDEX) and (size := _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")):
            index = _first(environ, ("OMPI_COMM_WORLD_RANK",), 0) // size
            count = _first(environ, ("OMPI_COMM_WORLD_SIZE",), size) // size
        return cls(index, max(count, index + 1), local, _known(environ, _LOCAL))


def _known(environ: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return any(_number(environ, name) is not None for name in names)


def _first(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    found = (_number(environ, name) for name in names)
    return next((number for number in found if number is not None), default)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else None
