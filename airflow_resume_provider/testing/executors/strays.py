"""The last net below `host.py`: ends processes that carry the mark of a VM in their environment.

Needed only when a VM's init and its host were both killed, so that nobody was
left to adopt what ran in the VM.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "RESUME_LOCAL_VM"  # the VM's directory, in the environment of everything that runs in it


def marked(root: Path) -> list[int]:
    """Ids of the processes whose VM lies below a directory."""
    sought = f"{MARK}={root}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(value == sought or value.startswith(sought + b"/") for value in variables):
                found.append(int(entry.name))
    return found


def end_marked(root: Path) -> int:
    """Kill every process whose VM lies below a directory; returns how many there were."""
    ended = 0
    while pids := [pid for pid in marked(root) if pid != os.getpid()]:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
        if all(_is_zombie(pid) for pid in pids):
            break
    return ended


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True
