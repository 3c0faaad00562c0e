"""Who writes: an identity that tells whether its process still lives, as far as this machine can see."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Self


class Life(Enum):
    """What is known about a writer."""

    OURSELVES = "this process"
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "on another machine or in another container"


@dataclass(frozen=True)
class Writer:
    """A process. `host` is one boot of one machine and one process namespace on it."""

    host: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Writer:
        """Return this process."""
        return cls(_host(), os.getpid(), _started(os.getpid()))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form; anything missing makes a writer nobody knows."""
        pid = data.get("pid")
        return cls(
            str(data.get("host", "")), pid if isinstance(pid, int) else -1, str(data.get("started", ""))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def life(self) -> Life:
        """Return what can be known about this writer from here."""
        if self == Writer.current():
            return Life.OURSELVES
        if self.host != _host() or self.pid < 1:
            return Life.UNKNOWN
        return Life.ALIVE if _exists(self.pid) and _started(self.pid) == self.started else Life.DEAD


@lru_cache(maxsize=1)
def _host() -> str:
    boot = _text("/proc/sys/kernel/random/boot_id") or socket.gethostname()
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = "pid"
    return f"{boot} {namespace}"


def _started(pid: int) -> str:
    """Return the kernel's start time of a process: a number given twice means another process."""
    status = _text(f"/proc/{pid}/stat")
    fields = status.rpartition(")")[2].split()
    # State Z is a process that has ended and that nobody has waited for.
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
