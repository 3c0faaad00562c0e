"""Small objects over sockets of our own: written once, and what is unusual is left to obstore."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from checkpoint_world import BUCKET, DisturbedServer, Raw, refuse
from direct_world import answering, secured

from airflow_resume_provider.checkpoints import StoreOptions
from airflow_resume_provider.checkpoints.connection import Declined, Refused
from airflow_resume_provider.checkpoints.direct import DirectBucket
from airflow_resume_provider.checkpoints.gcs_store import GcsStore
from airflow_resume_provider.errors import PermissionDenied

NAME = "d/ü [0] %20.bin"
BODIES = [b"", b"x", os.urandom(262_144), os.urandom(262_145), os.urandom(6_000_000)]


@pytest.fixture
def store(server: DisturbedServer) -> GcsStore:
    return GcsStore(f"gs://{BUCKET}/put", StoreOptions(emulator=server.endpoint))


@pytest.fixture
def raw(server: DisturbedServer) -> Raw:
    return Raw(f"gs://{BUCKET}/put", server.endpoint)


def upload(store: GcsStore, body: bytes, name: str = NAME) -> None:
    """Write an object as a commit does."""

    def pieces(length: int) -> Iterator[bytes]:
        yield body

    store.upload(name, len(body), pieces)


@pytest.mark.parametrize("body", BODIES, ids=[str(len(body)) for body in BODIES])
def test_what_is_written_is_there(store: GcsStore, raw: Raw, server: DisturbedServer, body: bytes) -> None:
    """Under its exact name, with one request."""
    upload(store, body)
    assert server.count("PUT", "bin") == 1
    assert raw.get(NAME) == body


def test_one_connection_serves_many_objects(server: DisturbedServer, raw: Raw) -> None:
    """Connecting costs more than a small object."""
    store = GcsStore(f"gs://{BUCKET}/put", StoreOptions(emulator=server.without_proxy))
    ports: list[object] = []
    server.answer = lambda request: ports.append(request.transport.get_extra_info("peername"))  # type: ignore[func-returns-value, union-attr]
    for number in range(50):
        upload(store, str(number).encode(), f"many/{number}")
    assert (len(ports), len(set(ports))) == (50, 1)
    server.calm()
    assert [raw.get(f"many/{number}") for number in range(50)] == [str(n).encode() for n in range(50)]


def elsewhere(request: web.Request) -> web.Response:
    """A redirect to the same object."""
    return web.Response(status=307, headers={"Location": str(request.url)})


def created(request: web.Request) -> web.Response:
    """Not the status that this service has for it."""
    return web.Response(status=201)


@pytest.mark.parametrize("odd", [elsewhere, created])
def test_an_unusual_answer_is_left_to_obstore(
    store: GcsStore, raw: Raw, server: DisturbedServer, odd: Callable[[web.Request], web.Response]
) -> None:
    """The first answer is odd, the second one, to obstore, is not: the object is there."""
    answers = iter([odd])
    server.answer = lambda request: next(answers, lambda _: None)(request)
    upload(store, b"content")
    server.calm()
    assert raw.get(NAME) == b"content"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    ids=["1.0", "no length", "chunked", "endless", "continue", "hangs up"],
)
def test_what_is_not_understood_is_declined(answer: bytes) -> None:
    """It may be there or not; nobody takes it for written."""
    with answering(answer) as endpoint:
        bucket = DirectBucket("b", StoreOptions(emulator=endpoint), endpoint)
        with pytest.raises(Declined):
            bucket.put("x", b"content")


def test_a_connection_that_was_closed_meanwhile_is_no_failure(server: DisturbedServer, raw: Raw) -> None:
    """A server ends idle connections when it likes."""
    store = GcsStore(f"gs://{BUCKET}/put", StoreOptions(emulator=server.without_proxy))
    upload(store, b"1")
    assert len(store._direct_writer._idle) == 1
    for connection in store._direct_writer._idle:
        connection._socket.shutdown(socket.SHUT_RDWR)
    upload(store, b"2")
    assert raw.get(NAME) == b"2"


def test_what_the_service_refuses_is_named(store: GcsStore, server: DisturbedServer) -> None:
    """Its own words are kept, with the permission that is missing; however large the object is."""
    server.answer = refuse(403, "x does not have storage.objects.create access to the object.", method="PUT")
    for body in (b"1", os.urandom(6_000_000)):
        with pytest.raises(PermissionDenied, match=r"storage\.objects\.create"):
            upload(store, body)


def test_a_refusal_that_comes_before_the_body_was_read_is_heard(server: DisturbedServer) -> None:
    """The service closes the connection then; obstore is asked to say why."""
    refusal = b"HTTP/1.1 503 Slow down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(refusal) as endpoint:
        bucket = DirectBucket("b", StoreOptions(emulator=endpoint), endpoint)
        with pytest.raises((Declined, Refused)):
            bucket.put("x", os.urandom(20_000_000))


def test_over_tls(server: DisturbedServer, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes go to a certificate that the machine trusts, and to no other."""
    with secured(server, tmp_path) as endpoint:
        with pytest.raises(Declined, match="certificate"):
            DirectBucket(BUCKET, StoreOptions(emulator=endpoint), endpoint).put(f"put/{NAME}", b"1")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        bucket = DirectBucket(BUCKET, StoreOptions(emulator=endpoint), endpoint)
        for body in BODIES:
            bucket.put(f"put/{NAME}", body)
            assert raw.get(NAME) == body
