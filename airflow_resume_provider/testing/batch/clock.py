"""The server's clock: never goes back, and can be skewed by a fault."""

from __future__ import annotations

import datetime
import time


class Clock:
    """Wall clock plus a skew in seconds; `now` is strictly increasing."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._last = 0.0

    def now(self) -> datetime.datetime:
        """The server's time, at least a microsecond after the last one given out."""
        self._last = max(time.time() + self.skew, self._last + 1e-6)
        return datetime.datetime.fromtimestamp(self._last, datetime.UTC)
