"""The metadata server of a VM, as google-auth and training code ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import google.auth.transport.requests
import pytest
from google.auth.compute_engine import _metadata

from airflow_resume_provider.testing.metadata.server import Identity, MetadataServer

IDENTITY = Identity(
    project="local-project",
    project_number="123456789012",
    zone="us-central1-a",
    instance_id="1234567890123456789",
    hostname="job-group0-0.us-central1-a.c.local-project.internal",
    provisioning="SPOT",
    tags=("a", "b"),
)
FLAVOR = {"Metadata-Flavor": "Google"}


@pytest.fixture
async def server() -> AsyncIterator[MetadataServer]:
    """A running metadata server."""
    made = await MetadataServer(IDENTITY).start()
    yield made
    await made.stop()


async def ask(
    server: MetadataServer, path: str, headers: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, text and ETag of a path below the root."""
    url = f"http://{server.address}/computeMetadata/v1/{path}"
    sent = FLAVOR if headers is None else headers
    async with aiohttp.ClientSession() as session, session.get(url, headers=sent) as response:
        assert response.headers["Metadata-Flavor"] == "Google"
        return response.status, await response.text(), response.headers.get("ETag", "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("project/project-id", "local-project"),
        ("project/numeric-project-id", "123456789012"),
        ("instance/id", "1234567890123456789"),
        ("instance/zone", "projects/123456789012/zones/us-central1-a"),
        ("instance/name", "job-group0-0"),
        ("instance/preempted", "FALSE"),
        ("instance/maintenance-event", "NONE"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("instance/service-accounts/default/email", "123456789012-compute@developer.gserviceaccount.com"),
        ("instance/service-accounts/", "default/\n123456789012-compute@developer.gserviceaccount.com/\n"),
    ],
)
async def test_a_value_is_plain_text(server: MetadataServer, path: str, value: str) -> None:
    """Directories list their children, a line each."""
    assert (await ask(server, path))[:2] == (200, value)


async def test_without_the_flavor_header_nothing_is_told(server: MetadataServer) -> None:
    """Nor to a request that came through a proxy: both mark a forged request."""
    assert (await ask(server, "instance/id", {}))[0] == 403
    assert (await ask(server, "instance/id", {**FLAVOR, "X-Forwarded-For": "10.0.0.1"}))[0] == 403


async def test_what_is_not_there_is_404(server: MetadataServer) -> None:
    """Unknown leaves and unknown directories."""
    assert (await ask(server, "instance/nothing"))[0] == 404
    assert (await ask(server, "instance/id/more"))[0] == 404


async def test_recursive_gives_json(server: MetadataServer) -> None:
    """A whole directory at once."""
    status, text, _ = await ask(server, "instance/?recursive=true")
    assert status == 200
    assert json.loads(text)["scheduling"]["preemptible"] == "TRUE"


async def test_a_long_poll_ends_with_the_change(server: MetadataServer) -> None:
    """Whoever waits for the notice hears it at once, on every connection."""
    waiting = [asyncio.create_task(ask(server, "instance/preempted?wait_for_change=true")) for _ in range(3)]
    while len(server.requests) < 3:
        await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    await server.preempt()
    assert [answer[1] for answer in await asyncio.gather(*waiting)] == ["TRUE"] * 3


async def test_a_long_poll_of_something_else_goes_on(server: MetadataServer) -> None:
    """Only the value that is asked for counts."""
    waiting = asyncio.create_task(ask(server, "instance/preempted?wait_for_change=true"))
    while not server.requests:
        await asyncio.sleep(0.01)
    await server.maintain()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await server.preempt()
    await waiting


async def test_last_etag_closes_the_gap_between_two_polls(server: MetadataServer) -> None:
    """A change that came while nobody waited is told at once."""
    etag = (await ask(server, "instance/preempted"))[2]
    await server.preempt()
    answer = await ask(server, f"instance/preempted?wait_for_change=true&last_etag={etag}")
    assert answer[1] == "TRUE"
    assert answer[2] != etag


async def test_a_long_poll_ends_after_its_timeout(server: MetadataServer) -> None:
    """With the unchanged value."""
    assert (await ask(server, "instance/preempted?wait_for_change=true&timeout_sec=1"))[1] == "FALSE"


async def test_google_auth_finds_project_account_and_token(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own client, pointed here by GCE_METADATA_HOST."""
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", server.address, raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", server.address)
    session = google.auth.transport.requests.requests.Session()

    def read() -> tuple[object, object, object]:
        request = google.auth.transport.requests.Request(session)
        root = f"http://{server.address}/computeMetadata/v1/"
        return (
            _metadata.get(request, "project/project-id", root=root),
            _metadata.get_service_account_info(request),
            _metadata.get_service_account_token(request)[0],
        )

    project, account, token = await asyncio.to_thread(read)
    session.close()
    assert project == "local-project"
    assert account["email"].endswith("@developer.gserviceaccount.com")  # type: ignore[index]
    assert str(token).startswith("local-")


@pytest.mark.parametrize("silent", [False, True])
async def test_who_waits_when_the_vm_goes_gets_no_answer(
    server: MetadataServer, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is cut, no task of the server is left behind, and nobody is told of an error."""
    before = asyncio.all_tasks()
    server.silent = silent
    waiting = asyncio.create_task(ask(server, "instance/preempted?wait_for_change=true", FLAVOR))
    while not server.requests:
        await asyncio.sleep(0.01)
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await waiting
    left = asyncio.all_tasks() - before - {waiting}
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 5)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
