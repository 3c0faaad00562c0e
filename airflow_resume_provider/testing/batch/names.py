"""Resource names, taken apart and checked: `projects/P/locations/L/jobs/J/taskGroups/G/tasks/T`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid

# Project ids, with the optional domain prefix of old projects, or project numbers.
PROJECT = r"(?:[a-z][a-z0-9.-]{0,62}:)?(?:[a-z][a-z0-9-]{0,62}|[0-9]{1,20})"
# Only the form: which of them there are is another question, with another answer.
LOCATION = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
JOB_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PARENT = re.compile(rf"projects/(?P<project>{PROJECT})/locations/(?P<location>{LOCATION}|-)")
_PROJECT = re.compile(rf"projects/(?P<project>{PROJECT})")
_JOB = re.compile(rf"(?P<parent>projects/{PROJECT}/locations/{LOCATION})/jobs/(?P<id>[^/]+)")
_GROUP = re.compile(rf"(?P<job>{_JOB.pattern})/taskGroups/(?P<group>[^/]+)")
_TASK = re.compile(rf"(?P<groupname>{_GROUP.pattern})/tasks/(?P<task>[^/]+)")
_OPERATION = re.compile(rf"(?P<parent>projects/{PROJECT}/locations/{LOCATION})/operations/[^/]+")


@dataclass(frozen=True)
class Parent:
    """A project and a location; the location "-" stands for all of them."""

    project: str
    location: str

    def __str__(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    def covers(self, name: str) -> bool:
        """Whether a resource of that name lies under this parent."""
        start = f"projects/{self.project}/locations/"
        return name.startswith(start if self.location == "-" else f"{start}{self.location}/")


def _malformed(field: str, value: str, pattern: str) -> ApiError:
    return invalid(
        f'Invalid resource field value in the request: {field} "{value}" is not "{pattern}".', field
    )


def parent(value: str, *, wildcard: bool = False) -> Parent:
    """Parse the parent of jobs; only listing may use the wildcard location."""
    match = _PARENT.fullmatch(value)
    if not match or (match["location"] == "-" and not wildcard):
        raise _malformed("parent", value, "projects/{project}/locations/{location}")
    return Parent(match["project"], match["location"])


def project(value: str) -> str:
    """Parse `projects/P`."""
    match = _PROJECT.fullmatch(value)
    if not match:
        raise _malformed("name", value, "projects/{project}")
    return match["project"]


def location(value: str) -> Parent:
    """Parse `projects/P/locations/L`, as the name of a location."""
    match = _PARENT.fullmatch(value)
    if not match or match["location"] == "-":
        raise _malformed("name", value, "projects/{project}/locations/{location}")
    return Parent(match["project"], match["location"])


def job(value: str) -> str:
    """Check a job's name and give it back."""
    if not _JOB.fullmatch(value):
        raise _malformed("name", value, "projects/{project}/locations/{location}/jobs/{job}")
    return value


def task_group(value: str) -> tuple[str, str]:
    """Job name and group id of a task group's name."""
    match = _GROUP.fullmatch(value)
    if not match:
        pattern = "projects/{project}/locations/{location}/jobs/{job}/taskGroups/{task_group}"
        raise _malformed("parent", value, pattern)
    return match["job"], match["group"]


def task(value: str) -> tuple[str, str, str]:
    """Job name, group id and task id of a task's name."""
    match = _TASK.fullmatch(value)
    if not match:
        pattern = "projects/{project}/locations/{location}/jobs/{job}/taskGroups/{task_group}/tasks/{task}"
        raise _malformed("name", value, pattern)
    return match["job"], match["group"], match["task"]


def operation(value: str) -> str:
    """Check an operation's name and give it back."""
    if not _OPERATION.fullmatch(value):
        raise _malformed("name", value, "projects/{project}/locations/{location}/operations/{operation}")
    return value


def job_id_of(name: str) -> str:
    """The last part of a job's name."""
    return name.rpartition("/")[2]
