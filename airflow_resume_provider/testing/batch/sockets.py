"""The short private directory of a server's unix socket; what a killed server left goes with the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "resume-sock-"
_YOUNG_SECONDS = 60.0  # one that has just been made may not be held yet


class SocketDirectory:
    """A new directory below the temporary one, held with a lock until it is removed or this process ends.

    It is short because paths of sockets are limited to 107 bytes.
    """

    def __init__(self) -> None:
        remove_left_over()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_over() -> None:
    """Remove the directories that nobody holds any more: those of servers that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another user's, or gone meanwhile: not ours to remove.
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and time.time() - path.stat().st_mtime > _YOUNG_SECONDS:
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
