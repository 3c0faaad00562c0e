"""A few threads work off many jobs; the first failure ends them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

# Where answers come at once, more threads than this only take the interpreter from each other.
_FEW = 8
# As many threads as make this much time per job: with answers after 20 ms that is 80 of them.
_SECONDS_PER_JOB = 0.00025
_LOOK = 0.02
# Above this share of a core the threads are not waiting for answers, but for each other.
_AT_WORK = 0.5


class Cancelled(Exception):
    """Another job of the same batch has failed; never leaves `run`."""


class Batch:
    """Jobs that succeed together or fail together. `stopped` tells long jobs to give up.

    With `waiting` the jobs are small and mostly wait for answers: it begins with
    few threads, and gets up to `streams` of them while the answers take long.
    """

    def __init__(self, streams: int, name: str, *, waiting: bool = False) -> None:
        self.stopped = False
        self._most, self._name = max(streams, 1), name
        self._first = min(_FEW, self._most) if waiting else self._most
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._done, self._took = 0, 0.0
        self._clocks = (0.0, 0.0)

    def run(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Run all jobs and raise the first failure, if there is one.

        Threads take job after job: handing each one over separately would cost
        more than fetching a small file does.
        """
        remaining = iter(jobs)
        self._clocks = (time.perf_counter(), time.process_time())
        with ThreadPoolExecutor(self._most, thread_name_prefix=self._name) as pool:
            try:
                threads = [pool.submit(self._work, remaining) for _ in range(self._first)]
                while len(threads) < self._most and not self._ended(threads):
                    more = self._wanted() - len(threads)
                    threads += [pool.submit(self._work, remaining) for _ in range(more)]
                wait(threads)
            except BaseException:
                self.stopped = True  # Ctrl-C while waiting: the threads must not go on to the end
                raise
        if self._failures:
            raise self._failures[0]

    def _ended(self, threads: list[Future[None]]) -> bool:
        """Wait a moment, or until nothing is left to be taken."""
        return bool(wait(threads, timeout=_LOOK, return_when="FIRST_COMPLETED").done)

    def _wanted(self) -> int:
        """Return how many threads the answers so far, or else the lack of any, ask for."""
        with self._lock:
            done, took = self._done, self._took
            self._done, self._took = 0, 0.0
        if self._share() > _AT_WORK:
            return 0
        mean = took / done if done else _LOOK
        return min(self._most, int(mean / _SECONDS_PER_JOB))

    def _share(self) -> float:
        """Return the share of a core that this process has used since the last look."""
        (wall, cpu), self._clocks = self._clocks, (time.perf_counter(), time.process_time())
        return (self._clocks[1] - cpu) / max(self._clocks[0] - wall, 1e-9)

    def _work(self, jobs: Iterator[Callable[[], object]]) -> None:
        took = 0.0
        try:
            # What prepares a job may fail as well as the job: nobody else would hear of it.
            while (job := self._next(jobs, took)) is not None:
                began = time.perf_counter()
                job()
                took = time.perf_counter() - began
        except Cancelled:
            return
        except BaseException as error:
            self._failures.append(error)
            self.stopped = True

    def _next(self, jobs: Iterator[Callable[[], object]], took: float) -> Callable[[], object] | None:
        with self._lock:
            if took:
                self._done += 1
                self._took += took
            return None if self.stopped else next(jobs, None)
