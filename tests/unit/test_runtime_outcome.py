"""How an attempt ended: every death is one row."""

from __future__ import annotations

import pytest

from airflow_resume_provider.checkpoints.records import EndState
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


def test_the_reason_names_memory_and_disk() -> None:
    """A person reads why, not only a number."""
    assert "memory" in outcome(Seen(-9, oom=True)).reason
    assert "ENOSPC" in outcome(Seen(1, disk_full=True)).reason
    assert "SIGKILL" in outcome(Seen(-9)).reason


def test_signals_become_the_codes_that_shells_show() -> None:
    """128 + n, as `docker` and Batch would report it."""
    assert [exit_code_of(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
