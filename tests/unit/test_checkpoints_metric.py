"""Retention by a metric: a name that nobody has is an error, and nothing good is no reason to delete."""

from __future__ import annotations

import pytest

from airflow_resume_provider.checkpoints import Policy, Reference
from airflow_resume_provider.checkpoints.retention import Candidate, check_metric, keep
from airflow_resume_provider.errors import InvalidInput


def candidate(index: int, *, defect: str = "", **metrics: object) -> Candidate:
    return Candidate(Reference(f"u{index}", index, index, 1, metrics), defect)


def test_misspelt_metric_names_those_there_are() -> None:
    """A metric that no checkpoint has is refused with the names of those there are."""
    found = [candidate(0, eval={"loss": 1.0}), candidate(1, accuracy=0.5, note="text")]
    with pytest.raises(InvalidInput, match=r"accuracy, eval\.loss"):
        check_metric(found, Policy(keep_best=1, metric="eval.los"))
    check_metric(found, Policy(keep_best=1, metric="accuracy"))
    check_metric(found, Policy(keep_last=1))
    check_metric([], Policy(keep_best=1, metric="any"))


def test_nothing_good_means_nothing_is_deleted() -> None:
    """When no checkpoint can be restored all of them stay: somebody may still repair one."""
    kept = keep([candidate(0, defect="broken"), candidate(1, defect="short")], Policy(keep_last=1), ())
    assert set(kept) == {"u0", "u1"}
