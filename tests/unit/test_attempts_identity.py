"""Names: always legal, never shared, and the same after every crash."""

from __future__ import annotations

import re
import uuid

from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.identity import TrainingKey
from airflow_resume_provider.batch import labels

NAMES = st.text(min_size=1, max_size=250)
KEYS = st.builds(
    TrainingKey,
    dag_id=NAMES,
    task_id=NAMES,
    run_id=NAMES,
    run_after=st.just("2026-11-30T00:00:00+00:00"),
    map_index=st.integers(-1, 10**5),
)
LEGAL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@given(key=KEYS, attempt=st.integers(1, 10**6))
def test_job_ids_are_legal_whatever_things_are_called(key, attempt):
    """Underscores, capitals, emojis, length: Batch accepts the id, and the request id is a UUID."""
    training = identity.training_id(key.lineage_uri("gs://b/root", 1))
    job = identity.job_id(key, training, attempt)
    assert LEGAL.fullmatch(job)
    assert job.endswith(f"{training}-{attempt}")
    assert uuid.UUID(identity.request_id(job)).int


@given(one=KEYS, other=KEYS)
def test_two_trainings_never_share_a_directory_or_an_id(one, other):
    """Different task instances have different lineages, although names are shortened."""
    if one == other:
        return
    uris = {key.lineage_uri("gs://b/root", 1) for key in (one, other)}
    assert len(uris) == 2
    assert len({identity.training_id(uri) for uri in uris}) == 2


@given(key=KEYS)
def test_lineages_are_plain_paths(key):
    """No segment leaves the root, is empty, or needs quoting."""
    segments = key.lineage_uri("gs://b/root", 3).removeprefix("gs://b/root/").split("/")
    assert len(segments) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", s) and s not in (".", "..") for s in segments)


def test_a_reused_run_id_is_another_training():
    """A run that was deleted and made again under its old name does not inherit."""
    first = TrainingKey(dag_id="d", task_id="t", run_id="r", run_after="2026-01-01")
    again = TrainingKey(dag_id="d", task_id="t", run_id="r", run_after="2026-02-01")
    assert first.lineage_uri("gs://b", 1) != again.lineage_uri("gs://b", 1)


def test_names_are_readable():
    """People find their training in the console and in the bucket."""
    key = TrainingKey(dag_id="Train_Digits", task_id="train", run_id="manual__2026-11-30T10:00:00+00:00")
    assert key.lineage_uri("gs://b/root", 1).startswith(
        "gs://b/root/Train_Digits/train/manual__2026-11-30T10-00"
    )
    assert identity.job_id(key, "t0123", 2) == "train-digits-train-t0123-2"


@given(key=KEYS, attempt=st.integers(1, 999), tries=st.integers(1, 99))
def test_labels_are_legal_whatever_things_are_called(key, attempt, tries):
    """All labels of a job satisfy Batch's rules."""
    made = labels.job_labels(key, "t0123456789abcde", attempt, tries, labels.day_of(0), {"team": "nlp"})
    assert len(made) <= labels.MAX_LABELS
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name) for name in made)
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", text) for text in made.values())
