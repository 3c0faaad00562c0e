"""The choice of the checkpoint to resume from: pure, over what a listing shows.

Newest attempt first, in it the highest index first. An attempt without a
restorable checkpoint of its own passes to what it had itself resumed from, then
to the attempt before it. Attempts of the same or a higher number are never
looked at, and neither is anything outside the lineage except `fallback`, or, where
that lies inside or is not given, what an attempt records that it resumed from.

A zombie, an attempt that commits after a newer one has begun, changes nothing as
long as a newer attempt has a checkpoint or has recorded where it resumed from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_resume_provider.checkpoints.reference import Reference


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that was not taken, and why."""

    uri: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return {"uri": self.uri, "reason": self.reason}


@dataclass(frozen=True)
class Choice:
    """What to resume from; `reference` is `None` for a fresh start. `why` is for people."""

    reference: Reference | None
    passed_over: tuple[PassedOver, ...]
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that the CLI prints."""
        return {
            "checkpoint": self.reference.to_dict() if self.reference else None,
            "passed_over": [passed.to_dict() for passed in self.passed_over],
            "why": self.why,
        }


class View(Protocol):
    """What the choice may know. Each answer is a fact of the store; a failure to look raises."""

    def attempts(self) -> Sequence[int]:
        """Return the numbers of the attempts, in any order."""

    def checkpoints(self, attempt: int) -> Sequence[tuple[int, str]]:
        """Return `(index, uri)` of all checkpoint directories of an attempt, in any order."""

    def resumed_from(self, attempt: int) -> str:
        """Return the URI that an attempt records to have restored, or an empty string."""

    def place(self, uri: str) -> tuple[int, int] | None:
        """Return attempt and index of a checkpoint of this lineage; `None` for any other URI."""

    def examine(self, uri: str) -> Reference | str:
        """Return the reference of a complete checkpoint, or the reason why it is none."""


def select(attempt: int, view: View, *, fallback: str = "", restarted: bool = False) -> Choice:
    """Choose what attempt number `attempt` resumes from.

    Args:
        attempt: the attempt that is about to start.
        view: what is known of the lineage.
        fallback: URI taken when the lineage itself has nothing (a warm start). It also replaces
            another warm start that an earlier attempt has recorded: whoever names it has corrected that.
        restarted: the same attempt started a second time, so its own commits count too.
    """
    earlier = sorted(
        (n for n in view.attempts() if n < attempt or (restarted and n == attempt)), reverse=True
    )
    passed: dict[str, str] = {}
    for uri, origin in _candidates(earlier, view, fallback):
        if uri in passed:
            continue
        found = view.examine(uri)
        if isinstance(found, Reference):
            return Choice(found, _listed(passed), _taken(attempt, found, origin, len(passed)))
        passed[uri] = found
    return Choice(None, _listed(passed), _fresh(attempt, earlier, passed))


def _candidates(earlier: Sequence[int], view: View, fallback: str) -> Iterator[tuple[str, str]]:
    for number in earlier:
        for _, uri in sorted(view.checkpoints(number), reverse=True):
            yield uri, f"the newest complete checkpoint of attempt {number}"
        source = view.resumed_from(number)
        corrected = fallback not in ("", source) and view.place(source) is view.place(fallback) is None
        if source and not corrected:
            yield (
                source,
                f"what attempt {number} had itself resumed from; it has no usable checkpoint of its own",
            )
    if fallback:
        yield fallback, "the checkpoint that was offered; the lineage itself has none"


def _listed(passed: dict[str, str]) -> tuple[PassedOver, ...]:
    return tuple(PassedOver(uri, reason) for uri, reason in passed.items())


def _taken(attempt: int, taken: Reference, origin: str, passed: int) -> str:
    skipped = f" {_count(passed, 'checkpoint')} passed over before it." if passed else ""
    return f"Attempt {attempt} resumes at step {taken.step} from {taken.uri}: {origin}.{skipped}"


def _fresh(attempt: int, earlier: Sequence[int], passed: dict[str, str]) -> str:
    if not earlier and not passed:
        return f"Attempt {attempt} starts fresh: there is no earlier attempt."
    if not passed:
        before = _count(len(earlier), "earlier attempt")
        return f"Attempt {attempt} starts fresh: {before}, none with a checkpoint."
    return f"Attempt {attempt} starts fresh: {_count(len(passed), 'checkpoint')} found, none of them usable."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
