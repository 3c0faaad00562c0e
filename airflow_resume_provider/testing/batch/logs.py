"""Task logs: JSON lines on disk, entries or text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def entries(directory: Path, task: int | None = None) -> Iterator[dict[str, Any]]:
    """Log entries of a job's tasks, task after task, each in the order in which it was written."""
    for path in sorted(directory.glob("task-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2])):
        index = int(path.stem.partition("-")[2])
        if task not in (None, index):
            continue
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield {"task": index, **json.loads(line)}
                except ValueError:
                    continue  # a line that is being written


def text(directory: Path, task: int | None = None) -> str:
    """The messages alone; with several tasks each line begins with its task."""
    found = list(entries(directory, task))
    several = len({entry["task"] for entry in found}) > 1
    return "".join(
        (f"[{entry['task']}] " if several else "") + str(entry["message"]) + "\n" for entry in found
    )
