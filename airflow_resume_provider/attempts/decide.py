"""What to do next, as pure functions of the ledger and the newest verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_resume_provider.attempts.budget import Budgets, poisoned, spent, without_progress
from airflow_resume_provider.attempts.ledger import Entry, Ledger
from airflow_resume_provider.attempts.placement import Placement, Policy, next_rung
from airflow_resume_provider.attempts.verdict import Kind, Verdict


class Action(StrEnum):
    """What is done about an attempt's end."""

    FINISH = "finish"
    RESUBMIT = "resubmit"  # another attempt inside the same try
    RETRY = "retry"  # raise, and let Airflow's own retries decide
    FAIL = "fail"  # raise so that Airflow does not retry


class OnPreemption(StrEnum):
    """Who repeats a preempted attempt."""

    RESUBMIT = "resubmit"  # the operator, inside the try
    RETRY = "retry"  # Airflow, at once, as a try that people see


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the author asked for."""

    ladder: Sequence[Placement]
    budgets: Budgets = field(default_factory=Budgets)
    on_preemption: OnPreemption = OnPreemption.RESUBMIT
    placement_policy: Policy = Policy.STICKY


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next action with its reason; `rung` is meant for RESUBMIT, `immediately` for RETRY."""

    action: Action
    reason: str
    rung: int = 0
    immediately: bool = False
    no_progress: bool = False
    quarantine: str = ""


def decide(ledger: Ledger, verdict: Verdict, rules: Rules, *, adopted: bool = False) -> Decision:
    """Return what to do about the newest attempt of the ledger, whose end is `verdict`.

    `adopted` says that an earlier try submitted it: its cancellation is then
    that try's kill coming late, and not the wish of somebody to stop this one.
    """
    last = ledger.entries[-1]
    if verdict.kind is Kind.SUCCEEDED:
        return Decision(action=Action.FINISH, reason=verdict.reason)
    if verdict.hopeless or (verdict.kind is Kind.CANCELLED and not adopted):
        return Decision(action=Action.FAIL, reason=verdict.reason)
    if stuck := _no_progress(ledger, last, rules.budgets):
        return Decision(
            action=Action.FAIL, reason=f"{stuck}; the last one: {verdict.reason}", no_progress=True
        )
    if verdict.kind in (Kind.USER_ERROR, Kind.SUPERSEDED):
        # Airflow's own retries decide; the retry resumes from the last checkpoint too.
        poison = poisoned(ledger, rules.budgets)
        return Decision(action=Action.RETRY, reason=verdict.reason, quarantine=poison)
    if over := _over_budget(ledger, verdict, last, rules.budgets):
        return Decision(action=Action.RETRY, reason=f"{over}; the last one: {verdict.reason}")
    return _again(ledger, verdict, rules)


def _no_progress(ledger: Ledger, last: Entry, budgets: Budgets) -> str:
    idle = without_progress(ledger, last.clears)
    if budgets.without_progress is None or idle < budgets.without_progress:
        return ""
    return f"{idle} attempts in a row committed no checkpoint"


def _over_budget(ledger: Ledger, verdict: Verdict, last: Entry, budgets: Budgets) -> str:
    reset = budgets.reset_on_progress
    if verdict.kind is Kind.PREEMPTED:
        used = spent(ledger, Kind.PREEMPTED, last.try_number, reset_on_progress=reset)
        return _exceeded(used, budgets.preemptions, "preemptions")
    if verdict.kind in (Kind.INFRASTRUCTURE, Kind.LOST):
        used = sum(
            spent(ledger, kind, last.try_number, reset_on_progress=reset)
            for kind in (Kind.INFRASTRUCTURE, Kind.LOST)
        )
        return _exceeded(used, budgets.infrastructure, "infrastructure failures")
    return ""


def _exceeded(used: int, limit: int | None, what: str) -> str:
    return (
        f"{used} {what} since the last progress, {limit} allowed"
        if limit is not None and used > limit
        else ""
    )


def _again(ledger: Ledger, verdict: Verdict, rules: Rules) -> Decision:
    rung = next_rung(rules.ladder, ledger, rules.placement_policy)
    if rung is None:
        return Decision(action=Action.RETRY, reason=f"no placement is left: {verdict.reason}")
    if verdict.kind is Kind.PREEMPTED and rules.on_preemption is OnPreemption.RETRY:
        return Decision(action=Action.RETRY, reason=verdict.reason, rung=rung, immediately=True)
    return Decision(action=Action.RESUBMIT, reason=verdict.reason, rung=rung)
