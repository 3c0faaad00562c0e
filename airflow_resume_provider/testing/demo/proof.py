"""What must hold for the demo to have shown its point; pure, each claim with its evidence."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_resume_provider.testing.demo.story import Attempt, Story


@dataclass(frozen=True)
class Claim:
    """One sentence, whether it held, and what was seen."""

    text: str
    held: bool
    seen: str


def claims(story: Story) -> list[Claim]:
    """Return every claim of the demo in the order a reader asks for them."""
    return [
        Claim("the Airflow run succeeded", story.run_state == "success", story.run_state),
        Claim("three attempts", len(story.attempts) == 3, str(len(story.attempts))),
        Claim("two preemptions", story.preemptions == 2, str(story.preemptions)),
        Claim("no retry was spent: try_number stayed 1", story.try_number == 1, str(story.try_number)),
        _once_in_each(story),
        _resumed(story),
        _every_step_once(story),
        _equal("the samples came in the same order", story.samples, story.twin.samples),
        _equal("the final weights are the same bytes", story.sha256, story.twin.sha256),
    ]


def _once_in_each(story: Story) -> Claim:
    held = [_place(attempt) for attempt in story.attempts[:-1]] == ["training", "restoring"]
    seen = "; ".join(f"{_place(a)} ({a.account or 'killed'})" for a in story.attempts[:-1])
    return Claim("once while training, once while restoring", held, seen or "none")


def _place(attempt: Attempt) -> str:
    """Only a container that ran can have restored: without losses its own account must be there."""
    if not attempt.in_restore:
        return "training"
    return "restoring" if attempt.account else "starting"


def _resumed(story: Story) -> Claim:
    """Each attempt must start from the newest step that an earlier one had committed."""
    pairs = [(attempt, _newest_before(story, attempt)) for attempt in story.attempts[1:]]
    held = bool(pairs) and all(
        attempt.resumed_step == expected > 0 for attempt, expected in pairs if attempt.losses
    )
    seen = ", ".join(f"attempt {a.number} at step {a.resumed_step} of {e}" for a, e in pairs if a.losses)
    return Claim(
        "the next attempt restored the newest checkpoint before it trained", held, seen or "none did"
    )


def _newest_before(story: Story, attempt: Attempt) -> int:
    earlier = [commit.step for a in story.attempts if a.number < attempt.number for commit in a.commits]
    return max(earlier, default=0)


def _every_step_once(story: Story) -> Claim:
    kept = [loss.step for attempt in story.attempts for loss in attempt.kept]
    held = kept == list(range(1, story.steps + 1))
    return Claim("the kept work is every step, once, in order", held, f"{len(kept)} of {story.steps} steps")


def _equal(text: str, ours: str, twin: str) -> Claim:
    held = bool(ours) and ours == twin
    return Claim(text, held, f"{ours[:12] or 'none'} {'=' if held else '≠'} {twin[:12] or 'none'}")
