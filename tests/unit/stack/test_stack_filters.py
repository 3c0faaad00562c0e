"""The filter language of list methods."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.testing.batch.api_errors import ApiError
from airflow_resume_provider.testing.batch.filters import compile_filter
from airflow_resume_provider.testing.batch.messages import Job, JobState, Task, TaskState


def job(name: str = "projects/p/locations/l/jobs/a", **fields: object) -> object:
    """A job with a state, labels and times."""
    made = Job(name=name, priority=int(fields.pop("priority", 0)))  # type: ignore[call-overload]
    made.status.state = JobState[str(fields.pop("state", "RUNNING"))]
    made.create_time.FromJsonString(str(fields.pop("created", "2026-01-02T03:04:05Z")))
    for key, value in fields.items():
        made.labels[key] = str(value)
    return made


def matches(text: str, **fields: object) -> bool:
    """Whether a filter holds for such a job."""
    return compile_filter(text, Job)(job(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("  ", True),
        ('status.state="RUNNING"', True),
        ("status.state=RUNNING", True),
        ("status.state = FAILED", False),
        ("status.state!=FAILED", True),
        ("status.state:RUNNING", True),
        ("labels.team=a", True),
        ('labels."team"="a"', True),
        ("labels.team=b", False),
        ("labels.team:*", True),
        ("labels.none:*", False),
        ("labels:team", True),
        ("NOT labels.none:*", True),
        ("-labels.none:*", True),
        ("labels.team!=a", False),
        ("name=projects/p/locations/l/jobs/a", True),
        ('name="projects/p/locations/l/jobs/*"', True),
        ("name:jobs/a", True),
        ('create_time>"2026-01-01T00:00:00Z"', True),
        ('createTime<="2026-01-02T03:04:05Z"', True),
        ('createTime<"2026-01-02T03:04:05Z"', False),
        ('createTime>="2026-01-02T05:04:05+02:00"', True),
        ("priority>=5", True),
        ("priority<5", False),
        ("status.state=RUNNING AND labels.team=a", True),
        ("status.state=RUNNING labels.team=b", False),
        ("status.state=FAILED OR labels.team=a", True),
        ("(status.state=FAILED OR status.state=RUNNING) AND labels.team=a", True),
        ("NOT (status.state=FAILED OR status.state=RUNNING)", False),
        ("labels.team=b AND status.state=FAILED OR status.state=RUNNING", False),
        ("labels.team = 'a'", True),
    ],
)
def test_a_filter_chooses(text: str, expected: bool) -> None:
    """Each operator and connective, in both spellings of field names; OR binds tighter than AND."""
    assert matches(text, team="a", priority=5) is expected


@pytest.mark.parametrize(
    "text",
    [
        "status.state",
        "status.state=",
        "=RUNNING",
        "status.state=NO_SUCH_STATE",
        "status.state>RUNNING",
        "nothing=1",
        "status.nothing=1",
        "name.more=1",
        "(status.state=RUNNING",
        "status.state=RUNNING)",
        "status.state=RUNNING AND",
        "OR status.state=RUNNING",
        "NOT",
        "create_time>yesterday",
        "priority>high",
        "a=1 \x00",
        '"name"=1',
        "(" * 60 + "priority=1" + ")" * 60,
        "name=" + "x" * 9000,
        "task_groups=1",
        'name="unclosed',
    ],
)
def test_what_is_no_filter_is_an_invalid_argument(text: str) -> None:
    """Nothing that cannot be understood is taken as "everything" or "nothing"."""
    with pytest.raises(ApiError) as caught:
        compile_filter(text, Job)
    assert (caught.value.code, caught.value.field) == ("INVALID_ARGUMENT", "filter")


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_an_invalid_argument(text: str) -> None:
    """No input ends in another exception."""
    with contextlib.suppress(ApiError):
        compile_filter(text, Job)(job())


def test_tasks_are_filtered_by_state_as_documented() -> None:
    """`State=RUNNING` is the documented form; the field's path works too."""
    task = Task()
    task.status.state = TaskState.RUNNING
    aliases = {"State": "status.state"}
    assert compile_filter("State=RUNNING", Task, aliases)(task)
    assert not compile_filter("State=FAILED", Task, aliases)(task)
    assert compile_filter("status.state=RUNNING", Task, aliases)(task)
