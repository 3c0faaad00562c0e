"""Transfers are shown in words that a person reads."""

from __future__ import annotations

import io

import pytest

from airflow_resume_provider.checkpoints.progress import Meter, Progress
from airflow_resume_provider.runtime.transfer_display import TransferDisplay, clock_time, describe, human


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB"), (2**51, "2.0 PiB")],
)
def test_bytes(nbytes: int, text: str) -> None:
    """Bytes have the unit that keeps the number short."""
    assert human(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_durations(seconds: float, text: str) -> None:
    """Durations read like a clock."""
    assert clock_time(seconds) == text


def test_everything_is_said() -> None:
    """Bytes, files, rate and the time left are in the line."""
    text = describe(Progress(1 << 20, 4 << 20, 1, 3, 2.0))
    assert text == "1.0 MiB of 4.0 MiB, 1 of 3 files, 512.0 KiB/s, 0:06 left"


def test_lines_are_few() -> None:
    """Where there is no terminal, a line comes every ten seconds and at the end."""
    now, stream = [0.0], io.StringIO()
    display = TransferDisplay("Restoring", stream, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        display(Progress(second, 25, 0, 1, second))
    display(Progress(25, 25, 1, 1, 25))
    assert len(stream.getvalue().splitlines()) == 3


def test_meter_tells_at_once_then_seldom_then_at_the_end() -> None:
    """The watcher hears the beginning, something now and then, and always the end."""
    now, seen = [0.0], []
    meter = Meter(100, 2, seen.append, interval=1.0, clock=lambda: now[0])
    for step in range(20):
        now[0] = step / 10
        meter.add(5)
    meter.add(0, 2)
    assert [progress.done_bytes for progress in seen] == [5, 55, 100]
    assert seen[-1].done_files == 2
