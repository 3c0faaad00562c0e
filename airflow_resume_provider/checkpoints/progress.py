"""How far a transfer is: counted here, shown by whoever asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A transfer's state; `seconds` since it began."""

    done_bytes: int
    total_bytes: int
    done_files: int
    total_files: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second so far."""
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at the rate so far, or `None` before there is a rate."""
        return (self.total_bytes - self.done_bytes) / self.rate if self.rate else None


Watcher = Callable[[Progress], None]


class Meter:
    """Counts from several threads; tells `watcher` at once, every `interval` seconds, and at the end."""

    def __init__(
        self,
        total_bytes: int,
        total_files: int,
        watcher: Watcher | None,
        *,
        interval: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_bytes, self._total_files = total_bytes, total_files
        self._bytes = self._files = 0
        self._watcher, self._interval, self._clock = watcher, interval, clock
        self._began = clock()
        self._told = self._began - interval
        self._lock = threading.Lock()

    def add(self, nbytes: int, files: int = 0) -> None:
        """Count bytes (negative when they are fetched anew) and finished files."""
        if self._watcher is None:
            return
        with self._lock:
            self._bytes += nbytes
            self._files += files
            now = self._clock()
            finished = self._files == self._total_files
            if finished or now - self._told >= self._interval:
                self._told = now
                self._watcher(self._now(now))

    def _now(self, now: float) -> Progress:
        return Progress(self._bytes, self._total_bytes, self._files, self._total_files, now - self._began)
