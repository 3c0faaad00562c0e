"""Budgets and decisions: what is repeated by whom, how often, and when it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_resume_provider.attempts.budget import Budgets, poisoned, spent, without_progress
from airflow_resume_provider.attempts.decide import Action, OnPreemption, Rules, decide
from airflow_resume_provider.attempts.ledger import KEPT, Entry, Ledger, merged
from airflow_resume_provider.attempts.placement import Placement, Policy
from airflow_resume_provider.attempts.verdict import Kind, Verdict
from airflow_resume_provider.errors import InvalidInput

SPOT = Placement(region="us-central1")
RULES = Rules(ladder=(SPOT,))


def ledger(*kinds, commits=0, **fields):
    """A ledger of attempts that ended like this."""
    entries = [Entry(number=i, verdict=kind, commits=commits, **fields) for i, kind in enumerate(kinds, 1)]
    return Ledger(tuple(entries))


def verdict(kind, **fields):
    """A verdict."""
    return Verdict(kind=kind, reason="because", **fields)


def after(*kinds, rules=RULES, hopeless=False, adopted=False, **fields):
    """The decision after attempts that ended like this."""
    return decide(ledger(*kinds, **fields), verdict(kinds[-1], hopeless=hopeless), rules, adopted=adopted)


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        (Kind.SUCCEEDED, Action.FINISH),
        (Kind.PREEMPTED, Action.RESUBMIT),
        (Kind.INFRASTRUCTURE, Action.RESUBMIT),
        (Kind.LOST, Action.RESUBMIT),
        (Kind.USER_ERROR, Action.RETRY),
        (Kind.SUPERSEDED, Action.RETRY),
        (Kind.CANCELLED, Action.FAIL),
        (Kind.STOCKED_OUT, Action.RETRY),
    ],
)
def test_each_verdict_has_its_action(kind, action):
    """The table of the first occurrence, with one placement and the default budgets."""
    assert after(kind).action is action


def test_what_cannot_succeed_fails_at_once():
    """A hopeless verdict is never repeated, by nobody."""
    assert after(Kind.TIMED_OUT, hopeless=True).action is Action.FAIL
    assert after(Kind.USER_ERROR, hopeless=True).action is Action.FAIL


def test_late_kill_of_an_earlier_try_is_repeated():
    """A job that this try adopted and that was cancelled under it was killed by the try before."""
    assert after(Kind.CANCELLED, adopted=True).action is Action.RESUBMIT


def test_preemption_budget_is_spent_inside_the_try():
    """The third preemption in a row exceeds a budget of two; Airflow's retries go on from there."""
    rules = replace(RULES, budgets=Budgets(preemptions=2))
    assert after(Kind.PREEMPTED, Kind.PREEMPTED, rules=rules).action is Action.RESUBMIT
    over = after(Kind.PREEMPTED, Kind.PREEMPTED, Kind.PREEMPTED, rules=rules)
    assert over.action is Action.RETRY
    assert "3 preemptions" in over.reason


def test_a_budget_of_zero_repeats_nothing():
    """max_preemptions=0 hands the first preemption to Airflow."""
    rules = replace(RULES, budgets=Budgets(preemptions=0))
    assert after(Kind.PREEMPTED, rules=rules, commits=3).action is Action.RETRY


def test_progress_fills_the_budgets_again():
    """With a commit in each attempt a budget of one lasts for ever, unless the author says otherwise."""
    many = [Kind.PREEMPTED] * 50
    rules = replace(RULES, budgets=Budgets(preemptions=1))
    assert after(*many, rules=rules, commits=1).action is Action.RESUBMIT
    rules = replace(RULES, budgets=Budgets(preemptions=1, reset_on_progress=False))
    assert after(*many, rules=rules, commits=1).action is Action.RETRY


def test_budgets_are_separate():
    """Preemptions do not spend the budget of infrastructure failures, nor the other way round."""
    rules = replace(RULES, budgets=Budgets(preemptions=2, infrastructure=1))
    kinds = (Kind.PREEMPTED, Kind.INFRASTRUCTURE, Kind.PREEMPTED)
    assert after(*kinds, rules=rules).action is Action.RESUBMIT
    assert after(*kinds, Kind.LOST, rules=rules).action is Action.RETRY


def test_budgets_begin_anew_with_each_try():
    """What an earlier try spent is not counted."""
    old = ledger(Kind.PREEMPTED, Kind.PREEMPTED, try_number=1)
    both = old.with_entry(Entry(number=3, verdict=Kind.PREEMPTED, try_number=2))
    assert spent(both, Kind.PREEMPTED, 2) == 1


def test_attempts_without_progress_end():
    """Even unlimited preemptions end when nothing is ever committed."""
    rules = replace(RULES, budgets=Budgets(without_progress=3))
    assert after(Kind.PREEMPTED, Kind.PREEMPTED, rules=rules).action is Action.RESUBMIT
    decision = after(Kind.PREEMPTED, Kind.PREEMPTED, Kind.PREEMPTED, rules=rules)
    assert (decision.action, decision.no_progress) == (Action.FAIL, True)


def test_clearing_starts_the_count_without_progress_anew():
    """A person who clears after a fix gets a full count of attempts."""
    old = ledger(Kind.USER_ERROR, Kind.USER_ERROR, clears=1)
    both = old.with_entry(Entry(number=3, verdict=Kind.PREEMPTED, clears=3))
    assert without_progress(both, 3) == 1


def test_a_checkpoint_that_kills_twice_is_quarantined():
    """Two quick deaths of the command from one checkpoint are its fault; preemptions are not."""
    one = {"resumed_from": "gs://b/c", "seconds": 5.0}
    assert after(Kind.USER_ERROR, **one).quarantine == ""
    assert after(Kind.USER_ERROR, Kind.USER_ERROR, **one).quarantine == "gs://b/c"
    assert after(Kind.PREEMPTED, Kind.USER_ERROR, **one).quarantine == ""
    slow = {**one, "seconds": 500.0}
    assert poisoned(ledger(Kind.USER_ERROR, Kind.USER_ERROR, **slow), Budgets()) == ""


def test_preemption_can_be_handed_to_airflow():
    """on_preemption="retry" asks for a retry without delay."""
    rules = replace(RULES, on_preemption=OnPreemption.RETRY)
    decision = after(Kind.PREEMPTED, rules=rules)
    assert (decision.action, decision.immediately) == (Action.RETRY, True)


LADDER = (
    replace(SPOT, zones=("us-central1-a",), attempts=2),
    replace(SPOT, region="us-east1"),
    replace(SPOT, provisioning_model="STANDARD"),
)


def rung_after(*attempts, policy=Policy.STICKY):
    """The decision after attempts on these rungs."""
    entries = [Entry(number=i, verdict=k, rung=r, commits=1) for i, (k, r) in enumerate(attempts, 1)]
    rules = Rules(ladder=LADDER, placement_policy=policy)
    return decide(Ledger(tuple(entries)), verdict(attempts[-1][0]), rules)


def test_a_stock_out_moves_down_at_once():
    """No capacity: the next rung."""
    assert rung_after((Kind.STOCKED_OUT, 0)).rung == 1


def test_a_rung_is_left_when_its_attempts_are_used():
    """attempts=2: the third goes one rung down, and the last rung has no limit."""
    assert rung_after((Kind.PREEMPTED, 0)).rung == 0
    assert rung_after((Kind.PREEMPTED, 0), (Kind.PREEMPTED, 0)).rung == 1
    assert rung_after((Kind.PREEMPTED, 2), (Kind.PREEMPTED, 2), (Kind.PREEMPTED, 2)).rung == 2


def test_the_author_chooses_sticky_or_returning():
    """After an attempt that ran lower down: stay, or try the first rung again."""
    attempts = ((Kind.STOCKED_OUT, 0), (Kind.PREEMPTED, 1))
    assert rung_after(*attempts).rung == 1
    assert rung_after(*attempts, policy=Policy.RETURN).rung == 0


def test_a_used_up_ladder_is_handed_to_airflow():
    """Stocked out on the last rung: Airflow's retries, later."""
    decision = rung_after((Kind.STOCKED_OUT, 2))
    assert decision.action is Action.RETRY
    assert "no placement is left" in decision.reason


@pytest.mark.parametrize(
    ("field", "value", "parameter"),
    [
        ("preemptions", -1, "max_preemptions"),
        ("infrastructure", 1.5, "max_infrastructure_failures"),
        ("infrastructure", "3", "max_infrastructure_failures"),
        ("without_progress", 0, "max_attempts_without_progress"),
        ("without_progress", KEPT + 1, "max_attempts_without_progress"),
        ("quick_death", -1, "quick_death_seconds"),
        ("preemptions", True, "max_preemptions"),
    ],
)
def test_impossible_budgets_are_refused_by_name(field, value, parameter):
    """A budget that is no number, or negative, names its parameter."""
    with pytest.raises(InvalidInput) as refused:
        Budgets(**{field: value})
    assert refused.value.parameter == parameter


KINDS = st.sampled_from([kind for kind in Kind if kind is not Kind.PENDING])
ENTRIES = st.lists(
    st.builds(
        Entry,
        number=st.just(0),
        verdict=KINDS,
        rung=st.integers(0, 2),
        commits=st.integers(0, 1),
        seconds=st.floats(0, 300),
        resumed_from=st.sampled_from(["", "gs://b/1"]),
    ),
    min_size=1,
    max_size=30,
)


@given(entries=ENTRIES, policy=st.sampled_from(Policy))
def test_every_history_has_one_decision(entries, policy):
    """Whatever has happened, there is a decision, and its rung exists."""
    numbered = tuple(replace(e, number=i) for i, e in enumerate(entries, 1))
    rules = Rules(ladder=LADDER, placement_policy=policy)
    decision = decide(Ledger(numbered), verdict(numbered[-1].verdict), rules)
    assert isinstance(decision.action, Action)
    assert 0 <= decision.rung < len(LADDER)
    assert (decision.action is Action.FINISH) == (numbered[-1].verdict is Kind.SUCCEEDED)


@settings(max_examples=50)
@given(kinds=st.lists(st.sampled_from([Kind.PREEMPTED, Kind.INFRASTRUCTURE, Kind.LOST]), min_size=60))
def test_no_loop_without_hope(kinds):
    """Attempts that never commit end within the bound, whatever they die of."""
    book, submitted = Ledger(), 0
    for number, kind in enumerate(kinds, 1):
        book = book.with_entry(Entry(number=number, verdict=kind))
        submitted += 1
        if decide(book, verdict(kind), RULES).action is not Action.RESUBMIT:
            break
    assert submitted <= Budgets().without_progress


@given(number=st.integers(1, 400))
def test_the_ledger_stays_small_and_its_sums_right(number):
    """A thousand attempts do not grow what travels; nothing is lost from the counts."""
    book = Ledger()
    for i in range(1, number + 1):
        book = book.with_entry(Entry(number=i, verdict=Kind.PREEMPTED, seconds=2.0, lost=1.0))
    assert len(book.entries) <= KEPT
    assert book.count(Kind.PREEMPTED) == number
    assert (book.seconds, book.lost) == (2.0 * number, 1.0 * number)
    assert Ledger.from_dict(book.to_dict()) == book


def test_a_long_ledger_fits_into_airflows_state_store():
    """Airflow warns above 64 KB; long reasons, names and URIs of a hundred attempts stay below."""
    entry = Entry(
        number=1,
        verdict=Kind.PREEMPTED,
        reason="r" * 300,
        exit_code=50001,
        job_name="j" * 120,
        resumed_from="u" * 160,
        seconds=3600.0,
    )
    book = Ledger()
    for number in range(1, 301):
        book = book.with_entry(replace(entry, number=number))
    assert len(json.dumps(book.to_dict())) < 64 * 1024
    assert book.entries[-1].reason == entry.reason


def test_accounts_are_merged_and_the_ended_one_wins():
    """The state store's and the intents' accounts complete each other."""
    one = ledger(Kind.PREEMPTED, Kind.PENDING)
    other = ledger(Kind.PREEMPTED, Kind.USER_ERROR, Kind.PENDING)
    assert merged([one, other]) == other
    assert merged([other, one]) == other
