"""How many VMs there are: jobs wait for theirs by priority, then in order of creation."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Capacity:
    """A counting semaphore that serves the highest priority first and never lets a small job overtake."""

    def __init__(self, vms: int) -> None:
        self.total, self.free = vms, vms
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []

    async def take(self, wanted: int, priority: int) -> int:
        """Wait for that many VMs, never for more than there are; returns how many were taken."""
        wanted = min(wanted, self.total)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-priority, next(self._order), wanted, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(wanted)
            raise
        return wanted

    def give(self, count: int) -> None:
        """Give VMs back."""
        self.free += count
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            _, _, wanted, turn = self._waiting[0]
            if turn.done():
                heapq.heappop(self._waiting)
                continue
            if wanted > self.free:
                return
            heapq.heappop(self._waiting)
            self.free -= wanted
            turn.set_result(None)
