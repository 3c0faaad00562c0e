"""Processes seen from outside: their CPU time and their children."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of those that it has waited for; 0 when it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def below(pid: int) -> Iterator[int]:
    """Yield a process's children and theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children = ""
        with suppress(OSError):  # the thread has ended meanwhile
            children = task.read_text()
        for child in map(int, children.split()):
            yield child
            yield from below(child)
