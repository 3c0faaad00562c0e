"""How many VMs there are: jobs wait for theirs by priority, then in order of creation."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

# So often others may go first before they all wait for one whose VMs must come at once.
OVERTAKEN_AT_MOST = 100


@dataclass(order=True)
class _Waiting:
    rank: tuple[int, bool, int]
    wanted: int = field(compare=False)
    least: int = field(compare=False)
    turn: asyncio.Future[int] = field(compare=False)
    overtaken: int = field(default=0, compare=False)


class Capacity:
    """A counting semaphore that serves the highest priority first, and gives what there is.

    Who needs more at once than is free is overtaken by whom that is enough
    for, but not for ever.
    """

    def __init__(self, vms: int) -> None:
        self.total, self.free = vms, vms
        self._order = itertools.count()
        self._waiting: list[_Waiting] = []

    async def take(
        self,
        wanted: int,
        priority: int,
        least: int = 1,
        *,
        more: bool = False,
        waits: Callable[[], None] = lambda: None,
    ) -> int:
        """Wait for VMs, never for more than there are; returns how many were taken.

        Args:
            least: fewer are of no use.
            more: for a job that runs already; those that wait to begin go first.
            waits: called once when there is nothing to be had at once.
        """
        wanted, least = min(wanted, self.total), min(least, self.total)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = _Waiting((-priority, more, next(self._order)), wanted, least, turn)
        bisect.insort(self._waiting, waiting)
        self._serve()
        if not turn.done():
            waits()
        try:
            return await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._serve()
            else:
                self.give(turn.result())
            raise

    def give(self, count: int) -> None:
        """Give VMs back."""
        self.free += count
        self._serve()

    def _serve(self) -> None:
        passed: list[_Waiting] = []
        for waiting in list(self._waiting) if self.free else ():
            if waiting.turn.cancelled():
                continue  # its owner takes it off the list
            if not self.free:
                return
            if waiting.least <= self.free:
                self._waiting.remove(waiting)
                given = min(waiting.wanted, self.free)
                self.free -= given
                waiting.turn.set_result(given)
                for other in passed:
                    other.overtaken += 1
            elif waiting.overtaken >= OVERTAKEN_AT_MOST:
                return
            else:
                passed.append(waiting)
