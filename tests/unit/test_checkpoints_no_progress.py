"""Attempts that die without a commit condemn what they restored, and end after a bounded number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_resume_provider.checkpoints.history import AttemptHistory, History
from airflow_resume_provider.checkpoints.no_progress import DEATHS_TO_GIVE_UP, judge
from airflow_resume_provider.checkpoints.records import AttemptRecord, EndRecord, EndState, IntentRecord
from airflow_resume_provider.checkpoints.reference import Reference

START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = "gs://b/l/attempts/0001/checkpoints/000003"


def died(
    number: int,
    *,
    source: str = SOURCE,
    state: EndState | None = EndState.FAILED,
    seconds: float = 20,
    commits: int = 0,
    why_next: str = "",
) -> AttemptHistory:
    began = START + timedelta(hours=number)
    ended = (began + timedelta(seconds=seconds)).isoformat()
    return AttemptHistory(
        number,
        IntentRecord(attempt=number, reason=why_next, created=began.isoformat()),
        AttemptRecord(attempt=number, resumed_from=source, started=began.isoformat()),
        EndRecord(attempt=number, state=state, exit_code=1, ended=ended) if state else None,
        tuple(Reference(f"u{n}", n, n, number) for n in range(commits)),
    )


def past(*attempts: AttemptHistory) -> History:
    return History(None, attempts)


def test_two_quick_deaths_condemn_the_source() -> None:
    """Two attempts in a row that died quickly after restoring it quarantine a checkpoint."""
    verdict = judge(past(died(2), died(3)), 4)
    assert verdict.quarantine == SOURCE
    assert "2, 3" in verdict.reason


def test_one_death_condemns_nothing() -> None:
    """One death may have had any cause."""
    assert judge(past(died(2)), 3).quarantine == ""


def test_different_sources_condemn_nothing() -> None:
    """Two deaths of two checkpoints say nothing about either."""
    assert judge(past(died(2), died(3, source="gs://b/other")), 4).quarantine == ""


def test_fresh_starts_condemn_nothing() -> None:
    """Deaths after a fresh start have no checkpoint to condemn."""
    assert judge(past(died(2, source=""), died(3, source="")), 4).quarantine == ""


def test_slow_deaths_condemn_nothing() -> None:
    """An attempt that trained for an hour has loaded its checkpoint well."""
    assert judge(past(died(2, seconds=3600), died(3)), 4).quarantine == ""


def test_preemptions_are_nobodys_fault() -> None:
    """Preempted attempts condemn nothing and count for nothing."""
    verdict = judge(past(died(2, state=EndState.PREEMPTED), died(3, state=EndState.PREEMPTED)), 4)
    assert verdict.quarantine == ""
    assert verdict.deaths == ()


def test_vanished_machines_condemn_nothing() -> None:
    """An attempt that left no account was taken away, unless the next one's intent says otherwise."""
    taken = past(died(2, state=None), died(3, state=None), died(4, why_next="preempted"))
    assert judge(taken, 4).deaths == ()
    blamed = past(died(2), died(3, state=None, seconds=0), died(4, why_next="user_error: exit 1"))
    assert judge(blamed, 4).deaths == (3, 2)


def test_commit_ends_the_row() -> None:
    """Deaths before the last commit are forgotten: budgets start again with progress."""
    assert judge(past(died(1), died(2), died(3, commits=1), died(4)), 5).deaths == (4,)


def test_row_of_deaths_is_counted() -> None:
    """Deaths are counted back to the last progress, so that the loop can be ended."""
    attempts = [died(number, source=f"gs://b/{number // 2}") for number in range(1, DEATHS_TO_GIVE_UP + 1)]
    assert len(judge(past(*attempts), DEATHS_TO_GIVE_UP + 1).deaths) == DEATHS_TO_GIVE_UP
