"""How often what may be repeated, counted over the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_resume_provider.attempts.ledger import KEPT, Entry, Ledger
from airflow_resume_provider.attempts.verdict import Kind
from airflow_resume_provider.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Limits, each with its own purse; `None` is unlimited.

    Attributes:
        preemptions: how many in one try, counted from the last commit.
        infrastructure: how many failures of the platform in one try, counted from the last commit.
        without_progress: how many attempts in a row may commit nothing, over all tries since a clear.
        quick_death: an attempt that failed within so many seconds without a commit died quickly.
        quick_deaths: so many quick deaths in a row from one checkpoint quarantine it.
        reset_on_progress: whether a commit fills the purses again.
    """

    preemptions: int | None = None
    infrastructure: int | None = 5
    without_progress: int | None = 20
    quick_death: float = 120.0
    quick_deaths: int = 2
    reset_on_progress: bool = True

    def __post_init__(self) -> None:
        _at_least("max_preemptions", self.preemptions, 0)
        _at_least("max_infrastructure_failures", self.infrastructure, 0)
        _at_least("max_attempts_without_progress", self.without_progress, 1)
        _at_least("quick_death_seconds", self.quick_death, 0, float)
        if self.without_progress is not None and self.without_progress > KEPT:
            raise InvalidInput(
                f"max_attempts_without_progress is {self.without_progress}.",
                can=f"Give a number up to {KEPT}.",
                parameter="max_attempts_without_progress",
                value=self.without_progress,
            )


def _at_least(
    parameter: str, value: float | None, minimum: float, kind: type[int] | type[float] = int
) -> None:
    if value is None:
        return
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or value < minimum:
        raise InvalidInput(
            f"{parameter} is {value!r}.",
            can=f"Give {'a number' if kind is float else 'a whole number'} of at least {minimum},"
            " or None for no limit.",
            parameter=parameter,
            value=value,
        )


def spent(ledger: Ledger, kind: Kind, try_number: int, *, reset_on_progress: bool = True) -> int:
    """Return how many attempts of this try ended in `kind` since the last commit.

    The attempt that committed last is itself counted: its progress refills
    the purse before its own end is paid for.
    """
    return sum(
        e.verdict is kind
        for e in _since_progress(ledger, lambda e: e.try_number == try_number, reset_on_progress)
    )


def _since_progress(ledger: Ledger, belongs: Callable[[Entry], bool], reset: bool = True) -> list[Entry]:
    window: list[Entry] = []
    for entry in ledger.tail(belongs):
        window.append(entry)
        if reset and entry.commits:
            break
    return window


def without_progress(ledger: Ledger, clears: int) -> int:
    """Return how many attempts in a row ran and committed nothing since the last commit or clear.

    A stocked-out attempt does not count: it never ran.
    """
    idle = ledger.tail(lambda e: e.clears == clears and not e.commits)
    return sum(e.verdict not in (Kind.STOCKED_OUT, Kind.PENDING) for e in idle)


_ITS_OWN_FAULT = frozenset({Kind.USER_ERROR})


def poisoned(ledger: Ledger, budgets: Budgets) -> str:
    """Return the URI of a checkpoint from which attempt after attempt died quickly, or an empty string.

    Only deaths of the command count: a preemption is no fault of the checkpoint.
    """
    last = ledger.entries[-1] if ledger.entries else None
    if last is None or not last.resumed_from:
        return ""

    def quick(entry: Entry) -> bool:
        same = entry.resumed_from == last.resumed_from and not entry.commits
        return same and entry.verdict in _ITS_OWN_FAULT and entry.seconds <= budgets.quick_death

    return last.resumed_from if len(ledger.tail(quick)) >= budgets.quick_deaths else ""
