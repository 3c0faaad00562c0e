"""What happened in a demo, as plain facts: the only thing that the report and the timeline read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Loss:
    """One optimizer step as the trainer printed it; `time` in seconds since the epoch."""

    step: int
    loss: float
    time: float


@dataclass(frozen=True)
class Commit:
    """A checkpoint that is in the store."""

    index: int
    step: int
    time: float
    accuracy: float


@dataclass(frozen=True)
class Attempt:
    """One Batch job of the training; times in seconds since the epoch, 0 for what never happened.

    `account` is what the container itself said about its end, empty when it was killed.
    """

    number: int
    job_name: str
    verdict: str
    submitted: float
    started: float
    ended: float
    resumed_from: str = ""
    resumed_step: int = 0
    commits: tuple[Commit, ...] = ()
    losses: tuple[Loss, ...] = ()
    account: str = ""

    @property
    def preempted(self) -> bool:
        """Whether the machine was taken away."""
        return self.verdict == "preempted"

    @property
    def in_restore(self) -> bool:
        """Whether it ended before it trained a single step."""
        return not self.losses

    @property
    def origin(self) -> str:
        """Where it started, in words."""
        if self.resumed_from:
            return f"step {self.resumed_step}"
        return "fresh" if self.losses else "–"

    @property
    def kept_step(self) -> int:
        """The step up to which its work is in the store."""
        return max((commit.step for commit in self.commits), default=self.resumed_step)

    @property
    def kept(self) -> tuple[Loss, ...]:
        """The steps whose work is in the store."""
        return tuple(loss for loss in self.losses if loss.step <= self.kept_step)

    @property
    def lost(self) -> tuple[Loss, ...]:
        """The steps after the last commit, which a later attempt has to train again."""
        return tuple(loss for loss in self.losses if loss.step > self.kept_step)

    @property
    def seconds_lost(self) -> float:
        """How long the lost steps took."""
        if not self.lost:
            return 0.0
        return self.lost[-1].time - (self.kept[-1].time if self.kept else self.lost[0].time)


@dataclass(frozen=True)
class Twin:
    """The same training, never interrupted."""

    sha256: str
    samples: str
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class Story:
    """A whole demo."""

    steps: int
    run_state: str
    try_number: int
    attempts: tuple[Attempt, ...]
    twin: Twin
    sha256: str = ""
    samples: str = ""
    xcoms: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def began(self) -> float:
        """When the first attempt was submitted."""
        return min((attempt.submitted for attempt in self.attempts), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first submission to the last end."""
        return max((attempt.ended for attempt in self.attempts), default=0.0) - self.began

    @property
    def preemptions(self) -> int:
        """How often the machine was taken away."""
        return sum(attempt.preempted for attempt in self.attempts)

    @property
    def steps_lost(self) -> int:
        """Steps that had to be trained twice."""
        return sum(len(attempt.lost) for attempt in self.attempts)

    @property
    def seconds_lost(self) -> float:
        """Time that went into them."""
        return sum(attempt.seconds_lost for attempt in self.attempts)
