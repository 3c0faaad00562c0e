"""Labels of jobs: what people search by, and what the watcher lists by.

Rules: https://cloud.google.com/batch/docs/organize-resources-using-labels
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_resume_provider.attempts.identity import TrainingKey
from airflow_resume_provider.attempts.placement import templated
from airflow_resume_provider.errors import InvalidInput

# No hyphen in the keys that are filtered by: `labels.key` then needs no quoting anywhere.
DAY = "resume_day"
TRAINING = "resume_training"
ATTEMPT = "resume_attempt"
OURS = "resume_"
MAX_LABELS = 64
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_OWN = 8


def value(text: str) -> str:
    """Return the nearest legal label value."""
    return re.sub(r"[^a-z0-9_-]", "-", str(text).lower())[:63]


def day_of(moment: float) -> str:
    """Return the label value that bounds what the watcher lists: the day of submission, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%d")


def job_labels(
    key: TrainingKey, training: str, attempt: int, try_number: int, day: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return all labels of an attempt's job; the author's come first and cannot hide ours."""
    return {
        **{str(k): str(v) for k, v in extra.items()},
        "airflow_dag": value(key.dag_id),
        "airflow_task": value(key.task_id),
        "airflow_run": value(key.run_id),
        "airflow_map_index": value(str(key.map_index)),
        "airflow_try": value(str(try_number)),
        DAY: day,
        TRAINING: training,
        ATTEMPT: str(attempt),
    }


def checked(labels: Mapping[str, Any]) -> None:
    """Refuse labels that Batch would refuse; what is still templated is left alone."""
    if not isinstance(labels, Mapping):
        _refuse("labels", labels, "a dictionary of strings")
    if len(labels) > MAX_LABELS - _OWN:
        _refuse("labels", f"{len(labels)} labels", f"at most {MAX_LABELS - _OWN}")
    for key, text in labels.items():
        if templated(key) or not isinstance(key, str):
            _refuse("labels", key, "keys that are plain strings")
        if not _KEY.fullmatch(key) or key.startswith((OURS, "airflow_")):
            _refuse(
                f"labels[{key!r}]",
                key,
                "keys of lower-case letters, digits, _ and - that begin with a letter, not with"
                " resume_ or airflow_",
            )
        if not templated(text) and not _VALUE.fullmatch(str(text)):
            _refuse(f"labels[{key!r}]", text, "values of up to 63 lower-case letters, digits, _ and -")


def _refuse(parameter: str, found: Any, wanted: str) -> None:
    raise InvalidInput(f"{parameter} is {found!r}.", can=f"Give {wanted}.", parameter="labels", value=found)
