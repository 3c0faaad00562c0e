"""Many small transfers side by side."""

from __future__ import annotations

import threading

import pytest

from airflow_resume_provider.checkpoints.parallel import Batch


def test_while_answers_do_not_come_more_requests_are_put_in_flight() -> None:
    """Forty jobs that all wait for each other only end when all forty are under way at once."""
    together = threading.Barrier(40, timeout=30)
    Batch(96, "test", waiting=True).run([together.wait] * 40)


def test_never_more_are_in_flight_than_allowed() -> None:
    """Three streams are three, however long the answers take."""
    inside, most, lock = 0, 0, threading.Lock()
    pair = threading.Barrier(3, timeout=30)

    def job() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        pair.wait()
        with lock:
            inside -= 1

    Batch(3, "test", waiting=True).run([job] * 30)
    assert most == 3


def test_the_first_failure_ends_the_batch() -> None:
    """What comes after a failure is not begun, and the failure is what the caller gets."""
    begun = []

    def job(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise KeyError(number)

    with pytest.raises(KeyError):
        Batch(1, "test", waiting=True).run([lambda n=n: job(n) for n in range(1000)])  # type: ignore[misc]
    assert begun == [0, 1, 2, 3]


def test_no_jobs_are_no_work() -> None:
    """An empty checkpoint is done at once."""
    Batch(96, "test", waiting=True).run([])
