"""A few threads work off many jobs; the first failure ends them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor


class Cancelled(Exception):
    """Another job of the same batch has failed; never leaves `run`."""


class Batch:
    """Jobs that succeed together or fail together. `stopped` tells long jobs to give up."""

    def __init__(self, streams: int, name: str) -> None:
        self.stopped = False
        self._streams, self._name = max(streams, 1), name
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []

    def run(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Run all jobs and raise the first failure, if there is one.

        Threads take job after job: handing each one over separately would cost
        more than fetching a small file does.
        """
        remaining = iter(jobs)
        try:
            with ThreadPoolExecutor(self._streams, thread_name_prefix=self._name) as pool:
                for _ in range(self._streams):
                    pool.submit(self._work, remaining)
        except BaseException:
            self.stopped = True  # Ctrl-C while waiting: the threads must not go on to the end
            raise
        if self._failures:
            raise self._failures[0]

    def _work(self, jobs: Iterator[Callable[[], object]]) -> None:
        while (job := self._next(jobs)) is not None:
            try:
                job()
            except Cancelled:
                return
            except BaseException as error:
                self._failures.append(error)
                self.stopped = True
                return

    def _next(self, jobs: Iterator[Callable[[], object]]) -> Callable[[], object] | None:
        with self._lock:
            return None if self.stopped else next(jobs, None)
