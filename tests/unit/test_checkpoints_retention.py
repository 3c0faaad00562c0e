"""Retention keeps what its rules say, and what nobody may delete."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.retention import Candidate, Policy, keep, metric
from airflow_resume_provider.errors import InvalidInput


def candidate(index: int, *, attempt: int = 1, defect: str = "", **metrics: Any) -> Candidate:
    return Candidate(Reference(f"u{index}", index, index * 100, attempt, metrics), defect)


def kept(candidates: list[Candidate], *protected: str, **policy: Any) -> list[int]:
    found = keep(candidates, Policy(**policy), protected)
    return sorted(int(uri[1:]) for uri in found)


def test_newest_n() -> None:
    """The newest n stay; numbers are compared as numbers (huggingface/transformers#27138)."""
    candidates = [candidate(index) for index in (91, 92, 93, 94, 95, 96, 97, 98, 99, 100)]
    assert kept(candidates, keep_last=2) == [99, 100]


@given(st.integers(0, 12), st.integers(1, 30))
def test_the_newest_n_stay_also_where_there_are_fewer(there: int, keep_last: int) -> None:
    """As long as there are not more than n, none goes; then exactly the newest n stay."""
    candidates = [candidate(index) for index in range(there)]
    assert kept(candidates, keep_last=keep_last) == list(range(there))[-keep_last:]


def test_best_and_newest() -> None:
    """With the best first, the newest is still not the one that goes (huggingface/transformers#11748)."""
    candidates = [candidate(index, loss=float(index)) for index in range(1, 6)]
    assert kept(candidates, keep_best=1, metric="loss") == [1, 5]
    assert kept(candidates, keep_best=2, metric="loss", mode="max") == [4, 5]


@pytest.mark.parametrize("metrics", [{"eval": {"loss": 1.5}}, {"eval.loss": 1.5}])
def test_nested_metric(metrics: dict[str, Any]) -> None:
    """A dotted name finds a nested metric, and one whose name has dots itself."""
    assert metric(metrics, "eval.loss") == 1.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1", None, True, {}])
def test_unusable_metrics_are_never_best(value: Any) -> None:
    """What is no finite number does not compete."""
    candidates = [candidate(0, loss=value), candidate(1, loss=9.0), candidate(2)]
    assert kept(candidates, keep_best=1, metric="loss") == [1, 2]


def test_every_mth() -> None:
    """Every m-th index stays, however often it is pruned."""
    candidates = [candidate(index) for index in range(10)]
    once = kept(candidates, keep_every=4)
    assert once == [0, 4, 8, 9]
    assert kept([c for c in candidates if c.reference.index in once], keep_every=4) == once


def test_protected_ones_stay() -> None:
    """A pinned checkpoint, or one that is being resumed from, is never deleted."""
    assert kept([candidate(index) for index in range(5)], "u0", keep_last=1) == [0, 4]


def test_broken_ones_do_not_count() -> None:
    """A checkpoint that cannot be restored neither counts as newest nor takes a place."""
    candidates = [candidate(0), candidate(1), candidate(2, defect="short"), candidate(3, defect="short")]
    assert kept(candidates, keep_last=1) == [1]


def test_newer_attempt_is_newer() -> None:
    """A zombie's high index does not push out the newest attempt's checkpoint."""
    assert kept([candidate(9, attempt=1), candidate(3, attempt=2)], keep_last=1) == [3]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.floats(allow_nan=False)), max_size=12),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_newest_good_one_always_stays(rows: list[tuple[int, bool, float]], n: int, k: int, m: int) -> None:
    """Whatever the rules, the newest complete checkpoint stays, and pruning twice is pruning once."""
    if not n + k + m:
        n = 1
    policy = Policy(keep_last=n, keep_best=k, keep_every=m, metric="loss")
    candidates = [
        candidate(index, attempt=attempt, defect="" if good else "short", loss=loss)
        for index, (attempt, good, loss) in enumerate(sorted(rows))
    ]
    first = keep(candidates, policy, ())
    good = [c.reference.uri for c in candidates if not c.defect]
    assert not good or good[-1] in first
    assert set(keep([c for c in candidates if c.reference.uri in first], policy, ())) == set(first)


@pytest.mark.parametrize(
    ("policy", "parameter"),
    [
        ({}, "keep_last"),
        ({"keep_last": -1}, "keep_last"),
        ({"keep_best": 1}, "metric"),
        ({"keep_last": 1, "mode": "low"}, "mode"),
        ({"keep_every": 1.5}, "keep_every"),
    ],
)
def test_senseless_policies_are_refused(policy: dict[str, Any], parameter: str) -> None:
    """A policy that cannot be meant is refused, and the parameter is named."""
    with pytest.raises(InvalidInput) as caught:
        Policy(**policy)
    assert caught.value.parameter == parameter
