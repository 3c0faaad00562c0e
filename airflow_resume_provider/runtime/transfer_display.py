"""Shows a transfer: a bar that redraws itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from airflow_resume_provider.checkpoints.progress import Progress

_LINE_EVERY = 10.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class TransferDisplay:
    """Call it with each `Progress`. The last call leaves a complete line.

    `used` says whether there was anything to show.
    """

    def __init__(
        self, what: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._stream, self._clock = what, stream or sys.stderr, clock
        self._bar = self._stream.isatty()
        self.used = False
        self._due = clock() + _LINE_EVERY

    def __call__(self, progress: Progress) -> None:
        """Show how far it is."""
        self.used = True
        last = progress.done_files >= progress.total_files
        if self._bar:
            width = shutil.get_terminal_size((100, 24)).columns
            line = f"{self._what} {_bar(progress, 24)} {describe(progress)}"[: width - 1]
            self._write(f"\r{line}\x1b[K" + ("\n" if last else ""))
        elif last or self._clock() >= self._due:
            self._due = self._clock() + _LINE_EVERY
            self._write(f"{self._what} {describe(progress)}\n")

    def _write(self, text: str) -> None:
        with suppress(BrokenPipeError):  # that nobody watches is no reason to stop half way
            self._stream.write(text)
            self._stream.flush()


def describe(progress: Progress) -> str:
    """Say bytes, files, rate and the time left in words."""
    left = progress.seconds_left
    bytes_ = f"{human(progress.done_bytes)} of {human(progress.total_bytes)}"
    files = f"{progress.done_files} of {progress.total_files} files"
    rest = "" if left is None or progress.done_files >= progress.total_files else f", {clock_time(left)} left"
    return f"{bytes_}, {files}, {human(progress.rate)}/s{rest}"


def human(nbytes: float) -> str:
    """Return bytes with the unit that keeps the number short."""
    for unit in _UNITS[:-1]:
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} {_UNITS[-1]}"


def clock_time(seconds: float) -> str:
    """Return a duration as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(progress: Progress, width: int) -> str:
    share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
    full = min(width, max(0, round(share * width)))
    return f"[{'#' * full}{'.' * (width - full)}]"
