"""What the operator reads from and writes to lineages: the generations, the accounts, the times."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.attempts.identity import TrainingKey
from airflow_resume_provider.attempts.ledger import Entry, Ledger, merged

if TYPE_CHECKING:
    from airflow_resume_provider.checkpoints import History, Lineage, StoreOptions


_GENERATION = re.compile(r"g[1-9][0-9]{0,8}")


def newest_generation(
    key: TrainingKey, root: str, opened: Callable[[str], Lineage]
) -> tuple[int, Lineage | None]:
    """Return the newest generation that exists and its lineage, `(0, None)` before the first.

    Older ones may have been deleted: nobody needs them.
    """
    there = opened(key.directory(root)).store.directories("")
    for number in sorted((int(name[1:]) for name in there if _GENERATION.fullmatch(name)), reverse=True):
        lineage = opened(key.lineage_uri(root, number))
        if lineage.training() is not None:
            return number, lineage
    return 0, None


@dataclass(frozen=True)
class Account:
    """What the store says about one attempt."""

    number: int
    intent: Any = None
    started: Any = None
    end: Any = None
    checkpoints: tuple[Any, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether its container never said anything."""
        return self.started is None and self.end is None

    @classmethod
    def of(cls, history: History, number: int) -> Account:
        """Read it from a history; an attempt that is not there is an empty account."""
        for attempt in history.attempts:
            if attempt.number == number:
                return cls(number, attempt.intent, attempt.started, attempt.end, tuple(attempt.checkpoints))
        return cls(number)


def seconds(moment: str) -> float:
    """Return an ISO time as seconds since the epoch, 0 when there is none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def committed_at(uri: str, options: StoreOptions | None) -> float:
    """Return when a checkpoint was committed, seconds since the epoch."""
    from airflow_resume_provider.checkpoints import Checkpoint

    return seconds(Checkpoint.from_uri(uri, options=options).manifest.created)


def newest_commit(uri: str, attempt: int, options: StoreOptions | None) -> float:
    """Return when the attempt committed last, 0 when it has not."""
    from airflow_resume_provider.checkpoints import Lineage

    account = Account.of(Lineage.open(uri, options=options).history(), attempt)
    return committed_at(account.checkpoints[-1].uri, options) if account.checkpoints else 0.0


def timed(entry: Entry, account: Account, ended: float, options: StoreOptions | None) -> Entry:
    """Return the entry with how long the container ran and how much of that was lost."""
    from dataclasses import replace

    began = seconds(account.started.started) if account.started else 0.0
    ended = seconds(account.end.ended) if account.end and account.end.ended else ended
    if not began or ended < began:
        return entry
    kept = committed_at(account.checkpoints[-1].uri, options) if account.checkpoints else began
    return replace(entry, seconds=round(ended - began, 1), lost=round(max(0.0, ended - kept), 1))


def ledger_of(history: History, remembered: Ledger) -> Ledger:
    """Return all that is known: what was remembered and what the newest intent carries."""
    carried = [
        Ledger.from_dict((a.intent.extra or {}).get("ledger"))
        for a in sorted(history.attempts, key=lambda a: a.number, reverse=True)[:3]
        if a.intent is not None
    ]
    return merged([remembered, *carried])
