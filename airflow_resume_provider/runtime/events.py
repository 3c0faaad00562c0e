"""One queue for everything that happens to a run: signals, the notice, answers, exits."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable
from typing import Any


class Events:
    """Threads and signal handlers put events in; the main thread alone takes them out and acts.

    `SimpleQueue.put` is reentrant, so a signal handler may call it at any moment.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._handlers: dict[str, Callable[[Any], None]] = {}

    def on(self, kind: str, handler: Callable[[Any], None]) -> None:
        """Let `handler` act on events of this kind."""
        self._handlers[kind] = handler

    def put(self, kind: str, value: Any) -> None:
        """Say that something happened; from any thread."""
        self._queue.put((kind, value))

    def handle(self, patience: float) -> bool:
        """Act on the next event; return whether one came within `patience` seconds."""
        try:
            kind, value = self._queue.get(timeout=max(0.0, patience))
        except queue.Empty:
            return False
        self._handlers[kind](value)
        return True

    def listen_to_signals(self, *numbers: signal.Signals) -> None:
        """Turn signals into events; must be called from the main thread."""
        for number in numbers:
            signal.signal(number, lambda got, _frame: self.put("signal", signal.Signals(got)))
