"""How an attempt ended: every death is one row."""

from __future__ import annotations

import pytest

from airflow_resume_provider.attempts.observation import EventSeen, JobSeen
from airflow_resume_provider.attempts.verdict import Kind, judge
from airflow_resume_provider.checkpoints.records import EndRecord, EndState
from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.runtime.outcome import Seen, exit_code_of, outcome

F, P, X, S = EndState.FINISHED, EndState.PREEMPTED, EndState.FAILED, EndState.SUPERSEDED


@pytest.mark.parametrize(
    ("seen", "state", "code"),
    [
        (Seen(0), F, 0),
        (Seen(0, notice="SIGTERM"), P, ExitCode.PREEMPTED),
        (Seen(0, notice="SIGTERM", finished=True), F, 0),
        (Seen(-15, notice="SIGTERM"), P, 143),
        (Seen(-15, notice="SIGTERM", finished=True), F, 0),
        (Seen(1, notice="the metadata server"), P, 1),
        (Seen(1), X, 1),
        (Seen(1, finished=True), X, 1),
        (Seen(77), X, 77),
        (Seen(-9), X, 137),
        (Seen(-9, oom=True), X, 137),
        (Seen(0, unsaved="lost"), X, ExitCode.UPLOAD_FAILED),
        (Seen(0, notice="SIGTERM", finished=True, unsaved="lost"), X, ExitCode.UPLOAD_FAILED),
        (Seen(0, notice="SIGTERM", unsaved="lost"), P, ExitCode.PREEMPTED),
        (Seen(1, unsaved="lost"), X, 1),
        (Seen(0, superseded="newer"), S, ExitCode.SUPERSEDED),
        (Seen(1, superseded="newer", notice="SIGTERM"), S, ExitCode.SUPERSEDED),
        (Seen(None, notice="SIGTERM"), P, ExitCode.PREEMPTED),
        (Seen(None, superseded="newer"), S, ExitCode.SUPERSEDED),
    ],
)
def test_every_death_has_its_state_and_exit_code(seen: Seen, state: EndState, code: int) -> None:
    """Exit 0 after a notice is a preemption; other codes of the training pass through unchanged."""
    result = outcome(seen)
    assert (result.state, result.exit_code) == (state, code)


@pytest.mark.parametrize("code", [80, 81, 83, 87, 94, 99])
def test_our_codes_from_the_training_itself_are_its_own_failures(code: int) -> None:
    """`exit 80` in a training is no preemption, and is not repeated for ever as one."""
    result = outcome(Seen(code))
    record = {"attempt": 1, "state": result.state, "exit_code": result.exit_code, "by": "training"}
    said = JobSeen(
        name="job", state="FAILED", events=(EventSeen(description=f"failed with exit code {code}"),)
    )
    theirs = judge(said, EndRecord.from_dict(record))
    assert result.by_training
    assert (theirs.kind, theirs.exit_code, theirs.hopeless) == (Kind.USER_ERROR, code, False)
    beside = judge(said, EndRecord.from_dict({**record, "exit_code": -1}))
    assert beside.kind is Kind.USER_ERROR
    ours = judge(said, None)
    assert ours.reason != theirs.reason


def test_only_the_trainings_own_failures_are_said_to_be_its_own() -> None:
    """A lost upload has our code and is ours."""
    assert not outcome(Seen(0, unsaved="lost")).by_training
    assert not outcome(Seen(0, superseded="newer")).by_training
    assert not outcome(Seen(None, notice="SIGTERM")).by_training


def test_the_reason_names_memory_and_disk() -> None:
    """A person reads why, not only a number."""
    assert "memory" in outcome(Seen(-9, oom=True)).reason
    assert "ENOSPC" in outcome(Seen(1, disk_full=True)).reason
    assert "SIGKILL" in outcome(Seen(-9)).reason


def test_signals_become_the_codes_that_shells_show() -> None:
    """128 + n, as `docker` and Batch would report it."""
    assert [exit_code_of(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
