"""Whether the training must stop, why, and until when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from signal import Signals

from airflow_resume_provider.runtime.notice import Notice
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.state import State

log = logging.getLogger("resume-run")


class Stop:
    """The first reason counts: the training gets its signal once, however often we get ours.

    A second SIGTERM is what a shutdown sends after the metadata server has spoken; many trainers
    take a second one as "abort now", so it is not passed on. A second SIGINT comes from a person
    at a terminal and ends the training at once.
    """

    def __init__(self, options: Options, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._options, self._state, self._clock = options, state, clock
        self.notice: Notice | None = None
        self.superseded = ""
        self.kill_at = float("inf")
        self.window_ends = float("inf")
        self.react: Callable[[], None] = lambda: None
        self.spread: Callable[[Notice], None] = lambda notice: None

    @property
    def asked(self) -> bool:
        """Whether anything at all asks the training to stop."""
        return self.notice is not None or bool(self.superseded)

    @property
    def overdue(self) -> bool:
        """Whether the training has had its grace."""
        return self._clock() >= self.kill_at

    def noticed(self, notice: Notice) -> None:
        """The machine is about to end."""
        if self.notice is not None:
            return log.info("%s after %s: known already", notice.source, self.notice.source)
        log.warning("preemption notice from %s; %g s of grace", notice.source, self._options.grace)
        self.notice = notice
        self.window_ends = self._clock() + self._options.window
        self.spread(notice)
        self._begin(notice)
        return None

    def signalled(self, number: Signals) -> None:
        """A signal came to us."""
        if number == Signals.SIGINT and self.asked:
            self.kill_at = self._clock()
        self.noticed(Notice(number.name))

    def overtaken(self, message: str) -> None:
        """A newer attempt exists: whatever this one still does is in vain."""
        if not self.superseded:
            log.error("%s", message)
            self.superseded = message
            self._begin(Notice("superseded"))

    def _begin(self, notice: Notice) -> None:
        if self.kill_at == float("inf"):
            self.kill_at = self._clock() + self._options.grace
            self._tell(notice)
            self.react()

    def _tell(self, notice: Notice) -> None:
        try:
            notice.write(self._state.notice, self._options.grace)
        except OSError as error:  # a full disk must not keep us from forwarding the signal
            log.warning("%s could not be written: %s", self._state.notice, error)
