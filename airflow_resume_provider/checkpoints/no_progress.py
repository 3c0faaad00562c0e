"""Attempts that die without a commit: which checkpoint to quarantine, and when to stop. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_resume_provider.checkpoints.history import AttemptHistory, History
from airflow_resume_provider.checkpoints.records import EndState

# Deaths in a row, quick ones after restoring the same checkpoint, that condemn it.
DEATHS_TO_QUARANTINE = 2
# Deaths in a row without any commit after which starting again is given up.
DEATHS_TO_GIVE_UP = 10
QUICK_SECONDS = 600.0
# Words in the next intent's reason that say the attempt before failed by itself.
_ITS_FAULT = ("user_error", "failed")


@dataclass(frozen=True)
class Verdict:
    """`quarantine` is the URI of a checkpoint that does not load, or empty; `deaths` without a commit."""

    quarantine: str
    deaths: tuple[int, ...]

    @property
    def reason(self) -> str:
        """Why the checkpoint is quarantined, for people."""
        last = self.deaths[:DEATHS_TO_QUARANTINE]
        return f"attempts {', '.join(map(str, sorted(last)))} died soon after restoring it, without a commit"


def judge(history: History, attempt: int) -> Verdict:
    """Look back over the attempts before `attempt` to the last one that committed or finished."""
    deaths = tuple(_deaths(history, attempt))
    quick = [death for death in deaths[:DEATHS_TO_QUARANTINE] if _seconds(history, death) <= QUICK_SECONDS]
    sources = {death.started.resumed_from for death in quick if death.started}
    condemned = len(quick) == DEATHS_TO_QUARANTINE and len(sources) == 1
    return Verdict(sources.pop() if condemned else "", tuple(death.number for death in deaths))


def _deaths(history: History, attempt: int) -> Iterator[AttemptHistory]:
    for past in reversed([past for past in history.attempts if past.number < attempt]):
        if past.checkpoints or (past.end and past.end.state is EndState.FINISHED):
            return
        if past.started and not _innocent(history, past):
            yield past


def _innocent(history: History, past: AttemptHistory) -> bool:
    """Return whether nothing says that the attempt failed by itself.

    A machine that is taken away without notice leaves no account of its end;
    condemning a good checkpoint for that would cost the training.
    """
    if past.end:
        return past.end.state is not EndState.FAILED
    following = _following(history, past)
    reason = following.intent.reason.lower() if following and following.intent else ""
    return not any(word in reason for word in _ITS_FAULT)


def _following(history: History, past: AttemptHistory) -> AttemptHistory | None:
    return next((later for later in history.attempts if later.number > past.number), None)


def _seconds(history: History, past: AttemptHistory) -> float:
    """Return how long an attempt lived at most; one that left no trace of time lived shortly."""
    following = _following(history, past)
    ends = [
        past.end.ended if past.end else "",
        following.intent.created if following and following.intent else "",
        following.started.started if following and following.started else "",
    ]
    began = _time(past.started.started if past.started else "")
    lives = [(end - began).total_seconds() for end in map(_time, ends) if end and began]
    return lives[0] if lives else 0.0


def _time(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.astimezone()
