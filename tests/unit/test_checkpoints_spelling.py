"""Spellings: which URIs name the same lineage, and which numbers are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.spelling import canonical, located
from airflow_resume_provider.errors import InvalidInput

BELOW = "attempts/0001/checkpoints/000007"


@pytest.mark.parametrize(
    "spelling",
    [
        "file://{}/a b/lin",
        "file://{}/a%20b/lin",
        "file://{}/a%20b/lin/",
        "file://localhost{}/a b/lin",
        "file://{}/x/../a b/lin",
        "file://{}/a b//lin",
        "file://{}/link/lin",
    ],
)
def test_spellings_of_one_lineage(tmp_path: Path, spelling: str) -> None:
    """However a file:// lineage is spelt, it and its checkpoints are the same ones."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to("a b")
    uri = spelling.format(tmp_path)
    assert canonical(uri) == f"file://{tmp_path}/a b/lin"
    place = located(f"{uri}/{BELOW}/")
    assert place is not None
    assert (place.lineage, place.below) == (f"file://{tmp_path}/a b/lin", BELOW)
    assert (place.attempt, place.index) == (1, 7)


def test_objects_are_byte_exact() -> None:
    """In a bucket %20 is a name of three characters: nothing is decoded."""
    assert canonical("gs://b/a%20b/") == "gs://b/a%20b"
    place = located(f"gs://b/a%20b/{BELOW}")
    assert place is not None
    assert place.lineage == "gs://b/a%20b"


@pytest.mark.parametrize("uri", ["", "gs://b/l", "file:///l/attempts/0001", "nonsense"])
def test_no_checkpoint(uri: str) -> None:
    """What is no checkpoint's URI has no place."""
    assert located(uri) is None


@pytest.mark.parametrize("number", [0, -1, 10**9, 10**19])
def test_attempt_numbers(number: int) -> None:
    """An attempt's number has one to nine digits: a directory with more would not be seen again."""
    with pytest.raises(InvalidInput, match="attempt"):
        names.attempt_number(number)
    assert names.attempt_number(999_999_999) == 999_999_999
