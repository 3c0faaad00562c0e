"""What the machine itself says about a death: memory and disk."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)


class Machine:
    """Compares the kernel's out-of-memory count with what it was at the start."""

    def __init__(self) -> None:
        self._before = oom_kills()

    def killed_for_memory(self) -> bool:
        """Say whether the kernel has killed something in this container for want of memory."""
        return oom_kills() > self._before


def oom_kills() -> int:
    """Return the number of out-of-memory kills in this cgroup, 0 when nobody counts."""
    for path in map(Path, _CGROUPS):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def disk_full(directory: Path) -> bool:
    """Say whether less than a thousandth (at most 1 MiB) of the disk under `directory` is free."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < min(1 << 20, disk.f_blocks * disk.f_frsize // 1000)
