"""What this Batch server chooses where the public API leaves it a choice, and how it misbehaves."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Quirks:
    """One way to be a Batch server; each field is a choice that a client must be able to live with.

    Attributes:
        page_cap: jobs or tasks of a page at most, whatever is asked for.
        newest_first: the order of a listing.
        honours_mask: whether `x-goog-fieldmask` is looked at.
        lists_events: whether listed jobs have their status events.
        lists_at_all: whether jobs can be listed; else UNIMPLEMENTED.
        shuffles_events: status events come in any order.
        stamps: `all`, `equal` or `none`: what `event_time` is worth.
        exit_codes: where a code is told: in `task_execution`, in `words`, or in `tasks` alone.
        hides_job_words: the job's own events do not say why a task failed.
        late_tasks: so many ListTasks of an ended job are answered NOT_FOUND, or with nothing.
        late_job: so many reads after Create are answered NOT_FOUND.
        remembers_requests: a repeated request id gets the same answer; else 409.
        uids: whether jobs have a `uid`.
        project_number: names in answers carry the project's number.
        slow_cancel: steps that CANCELLATION_IN_PROGRESS and DELETION_IN_PROGRESS take.
        refuses_second_cancel: with FAILED_PRECONDITION; else it is accepted again.
        novel_states: jobs pass through states that no client knows.
        error_rate: share of calls that fail in passing.
        lost_answers: share of CreateJob and CancelJob that take effect, and whose answer is lost.
        slow_answers: share of calls that are answered after the client's patience.
        rest_only: HTTP/1.1 and JSON in place of gRPC.
    """

    page_cap: int = 7
    newest_first: bool = False
    honours_mask: bool = True
    lists_events: bool = True
    lists_at_all: bool = True
    shuffles_events: bool = False
    stamps: str = "all"
    exit_codes: str = "execution"
    hides_job_words: bool = False
    late_tasks: int = 0
    late_job: int = 0
    remembers_requests: bool = True
    uids: bool = True
    project_number: bool = False
    slow_cancel: int = 2
    refuses_second_cancel: bool = True
    novel_states: bool = False
    error_rate: float = 0.0
    lost_answers: float = 0.0
    slow_answers: float = 0.0
    rest_only: bool = False

    @classmethod
    def drawn(cls, seed: int) -> Quirks:
        """Return one way to be, drawn at random."""
        dice = random.Random(seed)
        choices: dict[str, tuple[object, ...]] = {
            "page_cap": (1, 3, 7),
            "lists_at_all": (True, True, True, False),
            "stamps": ("all", "equal", "none"),
            "exit_codes": ("execution", "words", "tasks"),
            "late_tasks": (0, 2, 4),
            "late_job": (0, 2, 4),
            "slow_cancel": (0, 2, 20),
            "error_rate": (0.0, 0.1, 0.3),
            "lost_answers": (0.0, 0.5),
            "slow_answers": (0.0, 0.03),
            "rest_only": (True, False, False),
        }
        drawn = {f.name: dice.choice(choices.get(f.name, (True, False))) for f in fields(cls)}
        return cls(**drawn)  # type: ignore[arg-type]
