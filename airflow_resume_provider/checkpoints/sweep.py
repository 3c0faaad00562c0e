"""Many small objects from one thread, which takes each answer when it is there.

A thread per request spends more time on handing the interpreter over than on the
bytes. Here only connections are made in threads, as many as the time to an answer
asks for; what does not come at the first asking is left to the patient way.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from airflow_resume_provider.checkpoints.connection import Connection, Declined
from airflow_resume_provider.checkpoints.direct import DirectBucket
from airflow_resume_provider.checkpoints.retrying import Transient

_FIRST = 8
# When nothing comes for so long, it is answers that are waited for: more of them are asked for at once.
_IDLE_SECONDS = 0.002
_MAKERS = 16
_LOOK = 0.01  # seconds between looks at connections that are being made


def sweep(
    bucket: DirectBucket, wanted: Sequence[tuple[str, int]], most: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield the index and content of each (key, size), in any order, and nothing for what did not come whole.

    A content is gone when the next one is asked for. At most `most` requests are in flight.
    """
    makers = ThreadPoolExecutor(_MAKERS, thread_name_prefix="connect")
    flight = _Flight(bucket, wanted, most, makers)
    try:
        yield from flight.answers()
    finally:
        flight.close()
        makers.shutdown(cancel_futures=True)


class _Flight:
    """The requests of one sweep, and the connections that they are on."""

    def __init__(
        self, bucket: DirectBucket, wanted: Sequence[tuple[str, int]], most: int, makers: ThreadPoolExecutor
    ) -> None:
        self._bucket, self._wanted, self._most, self._makers = bucket, wanted, most, makers
        self._next = 0  # of those wanted
        self._poll = select.epoll()
        self._asked: dict[int, tuple[Connection, int]] = {}  # by file descriptor: what it was asked for
        self._making: set[Future[Connection]] = set()
        self._failed = False

    def answers(self) -> Iterator[tuple[int, memoryview]]:
        """Yield what comes, until all has or nothing does any more."""
        self._make(_FIRST)
        heard = time.monotonic()
        while self._asked or self._making:
            self._employ()
            if not self._asked:
                continue
            began = time.monotonic()
            ready = self._poll.poll(_LOOK if self._making else self._bucket.seconds)
            now = time.monotonic()
            if ready:
                heard = now
            elif now - heard >= self._bucket.seconds:
                return
            if now - began > _IDLE_SECONDS:
                self._make(len(self._asked))
            for descriptor, _ in ready:
                if answer := self._take(descriptor):
                    yield answer

    def close(self) -> None:
        """End what is in flight."""
        self._poll.close()
        for connection, _ in self._asked.values():
            connection.close()
        for making in self._making:
            making.add_done_callback(_close)

    def _make(self, more: int) -> None:
        """Have so many connections made, unless one could not be, or there are enough."""
        there = len(self._asked) + len(self._making)
        more = min(more, self._most - there, len(self._wanted) - self._next - len(self._making))
        for _ in range(0 if self._failed else more):
            self._making.add(self._makers.submit(self._bucket.connect))

    def _employ(self) -> None:
        """Give new connections something to do; waits for one while there is no other."""
        if not self._making:
            return
        done, _ = wait(self._making, 0 if self._asked else None, return_when=FIRST_COMPLETED)
        self._making -= done
        for made in done:
            try:
                connection = made.result()
            except (Declined, Transient):
                self._failed = True
                continue
            if self._ask(connection):
                self._poll.register(connection.fileno(), select.EPOLLIN)

    def _ask(self, connection: Connection) -> bool:
        """Ask for the next object; returns whether there was one, and the connection took the request."""
        index = self._next
        if index == len(self._wanted):
            self._bucket.keep(connection)
            return False
        self._next += 1
        key, size = self._wanted[index]
        try:
            connection.ask(self._bucket.request(key, 0, size))
        except (OSError, Declined):
            connection.close()
            return False
        self._asked[connection.fileno()] = connection, index
        return True

    def _take(self, descriptor: int) -> tuple[int, memoryview] | None:
        """Take an answer, and ask for the next object, so that it comes while this one is written."""
        connection, index = self._asked.pop(descriptor)
        try:
            content = connection.whole(self._wanted[index][1])
        except (OSError, Declined):
            connection.close()  # and so it leaves the poll
            return None
        if not connection.keeps:
            connection.close()
        elif not self._ask(connection) and connection.open:
            self._poll.unregister(descriptor)
        return index, content


def _close(made: Future[Connection]) -> None:
    with suppress(Exception):
        made.result().close()
