"""What a format answers: the checkpoints that the framework has finished writing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class Found:
    """A checkpoint on disk, complete by the framework's own evidence.

    Attributes:
        path: of the checkpoint itself, relative to the training's directory: a sub-directory,
            a file, or "." when the directory is the checkpoint.
        step: the trainer's own counter.
        files: what belongs to it, relative to the training's directory, POSIX separators.
        settled: false when the evidence cannot exclude that somebody still writes; it is then
            taken only after it stayed the same for a while.
        doubtful: nothing but its name says that it is a checkpoint: it is taken at the end only,
            when nobody writes any more.
        in_place: the framework will write into these same files again, so they are copied, not linked.
        appended: files of it that only ever grow, such as logs; they are copied, not compared.
        metrics: what the framework itself recorded.
        world_size: processes that wrote it, as far as the files tell; 0 is unknown.
    """

    path: str
    step: int
    files: tuple[str, ...]
    settled: bool = True
    doubtful: bool = False
    in_place: bool = False
    appended: frozenset[str] = frozenset()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 0


class Format(ABC):
    """Knows when a checkpoint on disk is complete, its step, and how to tell the framework.

    Add your own through the entry point group `airflow_resume_provider.formats`.
    """

    name: ClassVar[str]
    #: Whether a checkpoint can be loaded by another number of processes than wrote it.
    elastic: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The name that goes into the manifest."""
        return self.name

    @abstractmethod
    def find(self, directory: Path) -> Sequence[Found]:
        """Return the complete checkpoints below `directory`, oldest first."""

    def present(self, directory: Path) -> Sequence[Found]:
        """Return all that is there and could ever be taken for a checkpoint, now or once more is known."""
        return self.find(directory)

    def recognises(self, directory: Path) -> bool:
        """Say whether the framework has left any trace, complete or not; `auto` asks."""
        return bool(self.find(directory))

    def environment(self, restored: Found | None) -> Mapping[str, str]:
        """Return further variables for the training; `restored` is None on a fresh start."""
        return {}
