"""What the machine itself says about a death: memory and disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class Machine:
    """Compares the kernel's out-of-memory count with what it was at the start."""

    def __init__(self) -> None:
        self._before = oom_kills()

    def killed_for_memory(self) -> bool:
        """Say whether the kernel has killed something in this container for want of memory."""
        return oom_kills() > self._before


def oom_kills(cgroups: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int:
    """Return the number of out-of-memory kills in this cgroup, 0 when nobody counts."""
    for path in _counters(cgroups, root):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def _counters(cgroups: Path, root: Path) -> Iterator[Path]:
    """Yield where the kernel may count: version 2, version 1, seen from inside or outside a namespace."""
    try:
        rows = [line.split(":", 2) for line in cgroups.read_text().splitlines()]
    except OSError:
        rows = []
    for _, controllers, path in rows:
        if controllers in ("", "memory"):
            folder, name = (
                (root, "memory.events") if not controllers else (root / "memory", "memory.oom_control")
            )
            yield folder / path.lstrip("/") / name
            yield folder / name


def disk_full(directory: Path) -> bool:
    """Say whether less than a thousandth (at most 1 MiB) of the disk under `directory` is free."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < max(4096, min(1 << 20, disk.f_blocks * disk.f_frsize // 1000))
