"""Many small transfers side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

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


@pytest.mark.parametrize("waiting", [True, False])
def test_what_prepares_a_job_may_fail_as_well(waiting: bool) -> None:
    """A file that cannot be made is no end of the work: it is an error, and nothing else goes on."""
    done = []

    def jobs() -> Iterator[Callable[[], None]]:
        yield lambda: done.append(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Batch(4, "test", waiting=waiting).run(jobs())
    assert done in ([], [1])


def test_an_interrupted_wait_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while many jobs are left: what is under way ends, and no other begins."""
    begun: list[int] = []
    stopped = threading.Event()

    class Watched(Batch):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if (name, value) == ("stopped", True):
                stopped.set()

    def job(number: int) -> None:
        begun.append(number)
        assert stopped.wait(30)

    batch = Watched(8, "test", waiting=True)

    def ended(threads: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "_first", 4)
    monkeypatch.setattr(batch, "_ended", ended)

    with pytest.raises(KeyboardInterrupt):
        batch.run([partial(job, number) for number in range(1000)])
    assert len(begun) <= 4


def test_no_jobs_are_no_work() -> None:
    """An empty checkpoint is done at once."""
    Batch(96, "test", waiting=True).run([])
