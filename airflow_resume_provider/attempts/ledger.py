"""The compact history of a training's attempts, as decisions need it and as people read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from airflow_resume_provider.attempts.verdict import Kind

# Older attempts than these are only counted: a ledger travels through XCom and
# triggers, and a training on Spot may have a thousand attempts.
KEPT = 100
# Airflow warns of a state above 64 KB, so only the newest attempts are told at length.
WORDY = 20
BRIEF = 80


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One attempt.

    Attributes:
        number: 1, 2, 3 … over the whole life of the training.
        verdict: how it ended; PENDING while it has not.
        rung: position of its placement in the ladder.
        try_number: the Airflow try that submitted it.
        clears: `ti.max_tries` at that time; it rises exactly when a person clears the task.
        commits: how many checkpoints it committed itself.
        resumed_from: URI it really restored, or empty.
        seconds: how long its container ran, as far as known.
        lost: seconds after its last commit, to be done again by the next attempt.
    """

    number: int
    verdict: Kind = Kind.PENDING
    reason: str = ""
    exit_code: int | None = None
    job_name: str = ""
    rung: int = 0
    try_number: int = 1
    clears: int = 0
    commits: int = 0
    resumed_from: str = ""
    step: int = 0
    seconds: float = 0.0
    lost: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {k: v.value if isinstance(v, Kind) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """Read the JSON form; unknown fields are ignored."""
        names = {f.name for f in fields(cls)}
        known = {k: v for k, v in data.items() if k in names}
        return cls(**{**known, "verdict": Kind(known.get("verdict", Kind.PENDING))})


@dataclass(frozen=True)
class Ledger:
    """All attempts, oldest first; `dropped` counts those too old to be listed, by verdict."""

    entries: tuple[Entry, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    dropped_seconds: float = 0.0
    dropped_lost: float = 0.0

    def with_entry(self, entry: Entry) -> Ledger:
        """Return a ledger in which this attempt is recorded, replacing what was known of it."""
        others = [e for e in self.entries if e.number != entry.number]
        return replace(self, entries=tuple(sorted((*others, entry), key=lambda e: e.number)))._bounded()

    def _bounded(self) -> Ledger:
        return self._without_oldest()._brief()

    def _brief(self) -> Ledger:
        old, new = self.entries[:-WORDY], self.entries[-WORDY:]
        brief = [replace(e, reason=e.reason[:BRIEF]) if len(e.reason) > BRIEF else e for e in old]
        return replace(self, entries=(*brief, *new))

    def _without_oldest(self) -> Ledger:
        if len(self.entries) <= KEPT:
            return self
        old, kept = self.entries[:-KEPT], self.entries[-KEPT:]
        dropped = dict(self.dropped)
        for entry in old:
            dropped[entry.verdict.value] = dropped.get(entry.verdict.value, 0) + 1
        return Ledger(
            entries=kept,
            dropped=dropped,
            dropped_seconds=self.dropped_seconds + sum(e.seconds for e in old),
            dropped_lost=self.dropped_lost + sum(e.lost for e in old),
        )

    def get(self, number: int) -> Entry | None:
        """Return what is known of an attempt."""
        return next((e for e in self.entries if e.number == number), None)

    def count(self, kind: Kind) -> int:
        """Return how many attempts ended this way, over the whole life of the training."""
        return sum(e.verdict is kind for e in self.entries) + int(self.dropped.get(kind.value, 0))

    @property
    def seconds(self) -> float:
        """Seconds trained over all attempts."""
        return self.dropped_seconds + sum(e.seconds for e in self.entries)

    @property
    def lost(self) -> float:
        """Seconds trained that had to be done again."""
        return self.dropped_lost + sum(e.lost for e in self.entries)

    def tail(self, belongs: Callable[[Entry], bool]) -> tuple[Entry, ...]:
        """Return the newest entries for which `belongs` holds without a gap, newest first."""
        found: list[Entry] = []
        for entry in reversed(self.entries):
            if not belongs(entry):
                break
            found.append(entry)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "entries": [e.to_dict() for e in self.entries],
            "dropped": dict(self.dropped),
            "dropped_seconds": self.dropped_seconds,
            "dropped_lost": self.dropped_lost,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Ledger:
        """Read the JSON form; `None` is an empty ledger."""
        data = data or {}
        return cls(
            entries=tuple(Entry.from_dict(e) for e in data.get("entries", ())),
            dropped=dict(data.get("dropped", {})),
            dropped_seconds=float(data.get("dropped_seconds", 0)),
            dropped_lost=float(data.get("dropped_lost", 0)),
        )


def merged(ledgers: Iterable[Ledger]) -> Ledger:
    """Return one ledger of several accounts of the same training; an ended attempt beats a pending one."""
    best = Ledger()
    for ledger in ledgers:
        if sum(ledger.dropped.values()) > sum(best.dropped.values()):
            best, ledger = ledger, best
        oldest = best.entries[0].number if best.dropped and best.entries else 0
        for entry in ledger.entries:
            known = best.get(entry.number)
            if entry.number >= oldest and (known is None or known.verdict is Kind.PENDING):
                best = best.with_entry(entry)
    return best
