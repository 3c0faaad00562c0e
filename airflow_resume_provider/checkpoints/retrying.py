"""Trying again: exponential, jittered, bounded in time, and logged once for each failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

from airflow_resume_provider.errors import StoreUnavailable

log = logging.getLogger("airflow_resume_provider.checkpoints")
T = TypeVar("T")


class Transient(Exception):
    """A failure that trying again may cure; `str` says what was seen."""


class Patience:
    """Runs operations until they succeed, fail for good, or `seconds` are over.

    A failure that many chunks see at the same moment is one line in the log.
    """

    FIRST_PAUSE = 0.2
    LONGEST_PAUSE = 8.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._said: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def run(self, what: str, uri: str, call: Callable[[], T]) -> T:
        """Return `call()`'s result; raises `StoreUnavailable` when it stays transient to the end."""
        try:
            return call()  # the common case, without the cost of getting ready to try again
        except Transient as error:
            return self._run_again(what, uri, call, error)

    def _run_again(self, what: str, uri: str, call: Callable[[], T], first: Transient) -> T:
        failed = [first]

        def again() -> T:
            if failed:
                raise failed.pop()
            return call()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=tenacity.wait_random_exponential(multiplier=self.FIRST_PAUSE, max=self.LONGEST_PAUSE),
            stop=tenacity.stop_before_delay(self.seconds) | tenacity.stop_after_delay(self.seconds),
            before_sleep=lambda state: self._say(what, uri, state),
            reraise=True,
        )
        try:
            return retrying(again)
        except Transient as error:
            raise self._give_up(what, uri, error) from error

    def _give_up(self, what: str, uri: str, error: Transient) -> StoreUnavailable:
        return StoreUnavailable(
            f"Could not {what} {uri}: {error}.",
            did=f"Tried again for up to {self.seconds:g} s.",
            can="Nothing is known about what is there; try again when the store answers.",
            uri=uri,
        )

    def _say(self, what: str, uri: str, state: tenacity.RetryCallState) -> None:
        with self._lock:
            known = (uri, state.attempt_number) in self._said
            self._said.add((uri, state.attempt_number))
        if not known and state.outcome is not None and state.next_action is not None:
            reason = state.outcome.exception()
            log.warning(
                "Could not %s %s (%s); trying again in %.1f s", what, uri, reason, state.next_action.sleep
            )
