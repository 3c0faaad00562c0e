"""The server's clock: never goes back, and can be skewed by a fault."""

from __future__ import annotations

import datetime
import time

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Clock:
    """Wall clock plus a skew in seconds; `now` is strictly increasing."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._last = 0  # in microseconds, which is what timestamps can tell apart

    def now(self) -> datetime.datetime:
        """The server's time, at least a microsecond after the last one given out."""
        self._last = max(int((time.time() + self.skew) * 1e6), self._last + 1)
        return _EPOCH + datetime.timedelta(microseconds=self._last)
