"""Listing through unmodified clients: filters, order, pages, all locations, partial responses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from google.api_core import exceptions
from stack_clients import PARENT, TRANSPORTS, Client, State, job_of, name_of, script

from airflow_resume_provider.testing import LocalStack, Settings
from airflow_resume_provider.testing.batch import fieldmask

WEST = PARENT.replace("us-central1", "us-west1")
OTHER = PARENT.replace("local-project", "other-project")
KINDS = {"ok": "true", "bad": "exit 1", "long": "sleep 60"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack with seven jobs: three ended, one running, one in another region, one in another project."""
    settings = Settings(stop_grace_seconds=0.2, max_page_size=5)
    with LocalStack(tmp_path_factory.mktemp("filled"), settings=settings) as stack:
        client = Client(stack.batch_endpoint)
        for number, kind in enumerate(["ok", "bad", "ok", "long"]):
            labels = {"kind": kind, "parity": "even" if number % 2 == 0 else "odd"}
            client.submit(job_of(script(KINDS[kind]), labels=labels), f"job-{number}")
        client.create_job(parent=WEST, job_id="west", job=job_of(script("true")))
        client.create_job(parent=OTHER, job_id="other", job=job_of(script("true")))
        for number in range(3):
            client.wait(f"job-{number}")
        client.wait("job-3", "RUNNING")
        client.close()
        yield stack


@pytest.fixture(params=TRANSPORTS)
def reader(request: pytest.FixtureRequest, filled: LocalStack) -> Iterator[Client]:
    """A client over each transport in turn."""
    made = Client(filled.batch_endpoint, request.param)
    yield made
    made.close()


def ids(jobs: list[object]) -> list[str]:
    """The ids of jobs."""
    return [job.name.rpartition("/")[2] for job in jobs]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ('labels.kind="ok"', [0, 2]),
        ("status.state=SUCCEEDED", [0, 2]),
        ("status.state=RUNNING OR status.state=FAILED", [1, 3]),
        ('labels.parity=even AND (status.state="SUCCEEDED" OR status.state="FAILED")', [0, 2]),
        ("NOT labels.kind=ok", [1, 3]),
        (f'name="{name_of("job-1")}"', [1]),
        ('create_time>"2020-01-01T00:00:00Z" AND labels.kind:*', [0, 1, 2, 3]),
        ('create_time<"2020-01-01T00:00:00Z"', []),
    ],
)
def test_jobs_are_filtered(reader: Client, text: str, expected: list[int]) -> None:
    """By labels, state, name and time, with every connective."""
    assert ids(reader.list_jobs(parent=PARENT, filter=text)) == [f"job-{number}" for number in expected]


def test_jobs_are_ordered(reader: Client) -> None:
    """By name or by time of creation, either way."""
    forward = [f"job-{number}" for number in range(4)]
    for order in ("name", "create_time"):
        assert ids(reader.list_jobs(parent=PARENT, order_by=order)) == forward
        assert ids(reader.list_jobs(parent=PARENT, order_by=f"{order} desc")) == forward[::-1]


def test_pages_are_as_long_as_asked_and_no_longer_than_allowed(reader: Client) -> None:
    """The pager walks through all of them; a page has a token as long as there is more."""
    page = reader.page("list_jobs", parent=PARENT, page_size=3)
    assert len(page.jobs) == 3
    assert page.next_page_token
    assert len(reader.list_jobs(parent=PARENT, page_size=1)) == 4
    rest = reader.page("list_jobs", parent=PARENT, page_size=3, page_token=page.next_page_token)
    assert ids([*page.jobs, *rest.jobs]) == [f"job-{number}" for number in range(4)]
    assert rest.next_page_token == ""


def test_all_locations_can_be_listed_at_once(reader: Client) -> None:
    """The location `-` of a project; other projects are other projects."""
    found = reader.list_jobs(parent="projects/local-project/locations/-", page_size=2)
    assert ids(found) == ["job-0", "job-1", "job-2", "job-3", "west"]
    assert ids(reader.list_jobs(parent=OTHER)) == ["other"]


@pytest.mark.parametrize(
    "request_",
    [
        {"filter": "nothing=1"},
        {"filter": "status.state="},
        {"order_by": "uid"},
        {"page_size": -1},
        {"page_token": "invented"},
        {"parent": "projects/local-project"},
        {"parent": "projects/local-project/locations/us-central1/jobs"},
    ],
    ids=str,
)
def test_what_cannot_be_listed_is_an_invalid_argument(reader: Client, request_: dict[str, object]) -> None:
    """Never an empty list."""
    if reader.transport == "rest" and "parent" in request_:
        pytest.skip("the client itself finds no URL for it")
    with pytest.raises(exceptions.BadRequest):
        reader.list_jobs(**{"parent": PARENT, **request_})


def test_tasks_are_filtered_by_state(reader: Client) -> None:
    """In the documented form."""
    parent = f"{name_of('job-1')}/taskGroups/group0"
    assert len(reader.list_tasks(parent=parent, filter="State=FAILED")) == 1
    assert reader.list_tasks(parent=parent, filter="State=RUNNING") == []


def test_a_field_mask_makes_lists_small(reader: Client) -> None:
    """The X-Goog-FieldMask header leaves names and states, and none of the specs."""
    mask = [("x-goog-fieldmask", "jobs.name,jobs.status.state,next_page_token")]
    found = reader.list_jobs(parent=PARENT, metadata=mask)
    assert [job.status.state for job in found] == [
        State.SUCCEEDED,
        State.FAILED,
        State.SUCCEEDED,
        State.RUNNING,
    ]
    assert not any(job.task_groups or job.status.status_events or job.uid for job in found)


def rest(
    stack: LocalStack, path: str, method: str = "GET", body: object = None, raw: bytes | None = None
) -> tuple[int, dict[str, object]]:
    """Status and JSON of a plain REST call."""
    data = raw if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{stack.batch_endpoint}{path}",
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_rest_speaks_json_with_names_of_enums(filled: LocalStack) -> None:
    """As the API does for whoever does not ask for numbers."""
    status, job = rest(filled, f"/v1/{name_of('job-1')}")
    assert (status, job["status"]["state"]) == (200, "FAILED")
    assert job["taskGroups"][0]["taskCount"] == "1"


def test_rest_errors_have_googles_form(filled: LocalStack) -> None:
    """Code, message and status, and the field that is to blame."""
    status, answer = rest(filled, f"/v1/{name_of('none')}")
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (404, 404, "NOT_FOUND")
    status, answer = rest(filled, f"/v1/{PARENT}/jobs?jobId=Bad", "POST", {"taskGroups": []})
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert answer["error"]["details"][0]["fieldViolations"][0]["field"] == "job_id"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/v1/{PARENT}/jobs?jobId=a", {"noSuchField": 1}),
        (f"/v1/{PARENT}/jobs?jobId=a", {"priority": "high"}),
        (f"/v1/{PARENT}/jobs?jobId=a&noSuchParameter=1", {}),
    ],
)
def test_rest_refuses_what_the_api_does_not_know(filled: LocalStack, path: str, body: object) -> None:
    """Unknown fields and parameters and wrong types are errors, not ignored."""
    status, answer = rest(filled, path, "POST", body)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_job_of_more_than_a_megabyte_is_refused_over_every_transport(reader: Client) -> None:
    """As an invalid argument, whatever limits the transport has itself."""
    with pytest.raises(exceptions.BadRequest, match="bytes"):
        reader.submit(job_of(script("x" * 2_000_000)), "big")


@pytest.mark.parametrize(
    "path", [f"{PARENT}/jobs", f"{name_of('job-1')}/taskGroups/group0/tasks", f"{PARENT}/operations"]
)
@pytest.mark.parametrize("size", ["abc", "1.5", "true", "99999999999", ""])
def test_a_page_size_that_is_no_number_is_an_invalid_argument(
    filled: LocalStack, path: str, size: str
) -> None:
    """In the words of the cloud, with the field that is to blame."""
    status, answer = rest(filled, f"/v1/{path}?pageSize={size}")
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert answer["error"]["message"] == f"Invalid value at 'page_size' (TYPE_INT32), \"{size}\""
    assert answer["error"]["details"][0]["fieldViolations"][0]["field"] == "page_size"


@pytest.mark.parametrize(
    ("body", "name", "at"),
    [
        ({"bogus": 1}, "bogus", "job"),
        ({"taskGroups": [{"taskSpec": {"x": 1}}]}, "x", "job.task_groups[0].task_spec"),
        ({"allocationPolicy": {"instances": [{"policy": {"accelerators": [{"type_x": 1}]}}]}}, "type_x", ""),
    ],
)
def test_an_unknown_name_in_a_body_is_told_with_its_place(
    filled: LocalStack, body: object, name: str, at: str
) -> None:
    """As the cloud tells it, also as details."""
    at = at or "job.allocation_policy.instances[0].policy.accelerators[0]"
    status, answer = rest(filled, f"/v1/{PARENT}/jobs?jobId=a", "POST", body)
    text = f"Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field."
    violations = [{"field": at, "description": text}]
    assert (status, answer["error"]["message"]) == (400, text)
    assert answer["error"]["details"] == [
        {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
    ]


@pytest.mark.parametrize("body", [b"[]", b"", b"null", b"5", b'{"a"', b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("path", [f"{PARENT}/jobs?jobId=a", f"{name_of('job-1')}:cancel"])
def test_a_body_that_is_no_object_is_an_invalid_argument(filled: LocalStack, path: str, body: bytes) -> None:
    """No error of the server's own program is told."""
    status, answer = rest(filled, f"/v1/{path}", "POST", raw=body)
    assert (status, answer["error"]["code"]) == (400, 400)
    assert "object" not in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v2/projects/p/locations/us-central1/jobs", "/v1", "/status"])
def test_what_is_no_method_is_not_found_in_googles_form(filled: LocalStack, path: str) -> None:
    """Whatever the path is."""
    status, answer = rest(filled, path)
    assert (status, answer["error"]["code"]) == (404, 404)


def test_an_error_of_the_servers_own_is_json_too(filled: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the cloud's INTERNAL, without what went wrong."""
    monkeypatch.setattr(fieldmask, "apply", lambda _answer, _tree: 1 / 0)
    status, answer = rest(filled, f"/v1/{PARENT}/jobs")
    assert (status, answer["error"]["status"]) == (500, "INTERNAL")
    assert "division" not in answer["error"]["message"]


@pytest.mark.parametrize("location", ["nowhere1", "mars-north1", "US-CENTRAL1"])
def test_an_unknown_location_is_not_found_whatever_is_asked(reader: Client, location: str) -> None:
    """Listed, read or created in: the name has the right form, but there is no such place."""
    parent = f"projects/local-project/locations/{location}"
    asked = [
        lambda: reader.list_jobs(parent=parent),
        lambda: reader.create_job(parent=parent, job_id="a", job=job_of(script("true"))),
        lambda: reader.get_job(name=f"{parent}/jobs/a"),
    ]
    for ask in asked:
        with pytest.raises(exceptions.NotFound):
            ask()
