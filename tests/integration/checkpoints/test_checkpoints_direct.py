"""Ranges over sockets of our own: the unusual is left to obstore, and the bytes are right all the same."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from checkpoint_world import BUCKET, DisturbedServer, Raw, refuse

from airflow_resume_provider.checkpoints import StoreOptions
from airflow_resume_provider.checkpoints.direct import Declined, DirectReader, Refused
from airflow_resume_provider.checkpoints.gcs_store import GcsStore
from airflow_resume_provider.errors import PermissionDenied

NAME = "d/ü [0] %20.bin"
BYTES = os.urandom(3_000_001)
RANGES = [(0, len(BYTES)), (1, 70_000), (len(BYTES) - 1, 1), (262_144, 262_144), (5, 262_143)]


@pytest.fixture
def store(server: DisturbedServer, patient: StoreOptions) -> GcsStore:
    """A bucket with one object."""
    Raw(f"gs://{BUCKET}/p", server.endpoint).put(NAME, BYTES)
    server.calm()
    return GcsStore(f"gs://{BUCKET}/p", patient)


@pytest.fixture
def patient(server: DisturbedServer) -> StoreOptions:
    """Options to reach the server."""
    return StoreOptions(emulator=server.endpoint)


def read(store: GcsStore, start: int = 0, length: int = len(BYTES)) -> bytes:
    """What the store yields; every piece is copied before the next one is asked for."""
    return b"".join(bytes(piece) for piece in store.stream(NAME, start, length))


@pytest.mark.parametrize(("start", "length"), RANGES)
def test_ranges(store: GcsStore, start: int, length: int) -> None:
    """Aligned or not, of one byte or all."""
    for _ in range(3):
        assert read(store, start, length) == BYTES[start : start + length]


def test_one_connection_serves_many_ranges(store: GcsStore, server: DisturbedServer) -> None:
    """Connecting, and over TLS shaking hands, costs more than a small range."""
    store = GcsStore(store.uri, StoreOptions(emulator=server.without_proxy))
    ports: list[object] = []
    server.answer = lambda request: ports.append(request.transport.get_extra_info("peername"))  # type: ignore[func-returns-value, union-attr]
    for start in range(0, 50_000, 1000):
        assert read(store, start, 1000) == BYTES[start : start + 1000]
    assert (len(ports), len(set(ports))) == (50, 1)


def whole(request: web.Request) -> web.Response:
    """The range is not looked at."""
    return web.Response(body=BYTES)


def elsewhere(request: web.Request) -> web.Response:
    """A redirect to the same object."""
    return web.Response(status=307, headers={"Location": str(request.url)})


def compressed(request: web.Request) -> web.Response:
    """Bytes that are not the object's own."""
    headers = {"Content-Encoding": "gzip", "Content-Range": f"bytes 0-{len(BYTES) - 1}/{len(BYTES)}"}
    return web.Response(status=206, body=BYTES, headers=headers)


def other_range(request: web.Request) -> web.Response:
    """The right length from the wrong place."""
    headers = {"Content-Range": f"bytes 1-{len(BYTES)}/{len(BYTES) + 1}"}
    return web.Response(status=206, body=BYTES, headers=headers)


def short(request: web.Request) -> web.Response:
    """Less than was asked for."""
    headers = {"Content-Range": f"bytes 0-{len(BYTES) - 1}/{len(BYTES)}"}
    return web.Response(status=206, body=BYTES[:-1], headers=headers)


@pytest.mark.parametrize("odd", [whole, elsewhere, compressed, other_range, short])
def test_an_unusual_answer_is_left_to_obstore(
    store: GcsStore, server: DisturbedServer, odd: Callable[[web.Request], web.Response]
) -> None:
    """The first answer is odd, the second one, to obstore, is not: the bytes are right."""
    answers = iter([odd])
    server.answer = lambda request: next(answers, lambda _: None)(request)
    assert read(store) == BYTES
    assert server.count("GET", "bin") == 2


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection one answer, whatever was asked, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 206 Partial Content\r\nX: " + b"x" * 70_000,
        b"HTTP/1.0 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/3\r\n\r\nabc",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/3\r\n\r\nabcd",
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3x\r\nContent-Range: bytes 0-2/3\r\n\r\nabc",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: " + b"3" * 5000 + b"\r\n\r\nabc",
        b"HTTP/1.1 x06 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/3\r\n\r\nabc",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"\r\n\r\n",
    ],
    ids=[
        "endless head",
        "1.0",
        "too long",
        "chunked",
        "no length",
        "endless length",
        "no status",
        "ssh",
        "nothing",
    ],
)
def test_what_is_not_understood_is_declined(answer: bytes) -> None:
    """Nothing of it is taken for the object's bytes."""
    with answering(answer) as endpoint:
        reader = DirectReader("b", StoreOptions(emulator=endpoint), endpoint)
        with pytest.raises(Declined):
            list(reader.stream("x", 0, 3))


def test_where_nobody_listens_obstore_says_so(server: DisturbedServer) -> None:
    """One refused connection, then none from here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    reader = DirectReader("b", StoreOptions(emulator=endpoint), endpoint)
    for _ in range(2):
        with pytest.raises(Declined):
            list(reader.stream("x", 0, 3))


def test_a_connection_that_was_closed_meanwhile_is_no_failure(
    store: GcsStore, server: DisturbedServer
) -> None:
    """A server ends idle connections when it likes."""
    store = GcsStore(store.uri, StoreOptions(emulator=server.without_proxy))
    assert read(store, 0, 1000) == BYTES[:1000]
    assert len(store._direct._idle) == 1
    for connection in store._direct._idle:
        connection._socket.shutdown(socket.SHUT_RDWR)
    assert read(store, 0, 1000) == BYTES[:1000]


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    store: GcsStore, server: DisturbedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between may have forgotten it without a word: the next answer would never come."""
    store = GcsStore(store.uri, StoreOptions(emulator=server.without_proxy))
    ports: list[object] = []
    server.answer = lambda request: ports.append(request.transport.get_extra_info("peername"))  # type: ignore[func-returns-value, union-attr]
    assert read(store, 0, 1000) == BYTES[:1000]
    monkeypatch.setattr("airflow_resume_provider.checkpoints.direct._IDLE_SECONDS", 0.0)
    assert read(store, 0, 1000) == BYTES[:1000]
    assert len(set(ports)) == 2


class Provider:
    """Gives a new token each time that it is asked."""

    def __init__(self, lasts: float) -> None:
        self.asked, self._lasts = 0, lasts

    def __call__(self) -> dict[str, object]:
        """Return the next token."""
        self.asked += 1
        expires = datetime.now(UTC) + timedelta(seconds=self._lasts)
        return {"token": f"t{self.asked}", "expires_at": expires}


@contextmanager
def secured(server: DisturbedServer, tmp_path: Path) -> Iterator[str]:
    """The same server behind TLS, on a name that only its own certificate vouches for."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    behind = ("127.0.0.1", int(server.endpoint.rpartition(":")[2]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_terminate, args=(listener, context, behind), daemon=True).start()
        yield f"https://localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _terminate(listener: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            raw, _ = listener.accept()
            threading.Thread(target=_serve_one, args=(raw, context, behind), daemon=True).start()


def _serve_one(raw: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    """Carry one request after the other; a client that hangs up ends it."""
    with (
        suppress(OSError),
        context.wrap_socket(raw, server_side=True) as front,
        socket.create_connection(behind) as back,
    ):
        upwards = threading.Thread(target=_carry, args=(back, front), daemon=True)
        upwards.start()
        _carry(front, back)
        upwards.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_over_tls(
    server: DisturbedServer, store: GcsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes come with a certificate that the machine trusts, and with no other."""
    with secured(server, tmp_path) as endpoint:
        reader = DirectReader(BUCKET, StoreOptions(emulator=endpoint), endpoint)
        with pytest.raises(Declined, match="certificate"):
            list(reader.stream(f"p/{NAME}", 0, 10))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        reader = DirectReader(BUCKET, StoreOptions(emulator=endpoint), endpoint)
        for start, length in RANGES:
            pieces = reader.stream(f"p/{NAME}", start, length)
            assert b"".join(bytes(piece) for piece in pieces) == BYTES[start : start + length]


def test_one_token_serves_until_it_is_nearly_over_or_refused(
    server: DisturbedServer, store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider may be slow, so it is asked once; a token that is refused is not used again."""
    seen: list[str] = []
    monkeypatch.setattr("airflow_resume_provider.checkpoints.direct._SERVICE", server.endpoint)
    server.answer = lambda request: seen.append(request.headers["Authorization"])  # type: ignore[func-returns-value]
    provider = Provider(lasts=600)
    reader = DirectReader(BUCKET, StoreOptions(credential_provider=provider), "")

    def fetch() -> bytes:
        return b"".join(bytes(piece) for piece in reader.stream(f"p/{NAME}", 0, 10))

    assert [fetch(), fetch()] == [BYTES[:10]] * 2
    server.answer = refuse(401, "Invalid Credentials")
    with pytest.raises(Refused, match="401"):
        fetch()
    server.answer = lambda request: seen.append(request.headers["Authorization"])  # type: ignore[func-returns-value]
    assert fetch() == BYTES[:10]
    assert seen == ["Bearer t1", "Bearer t1", "Bearer t2"]
    short_lived = Provider(lasts=30)
    reader = DirectReader(BUCKET, StoreOptions(credential_provider=short_lived), "")
    assert [fetch(), fetch()] == [BYTES[:10]] * 2
    assert short_lived.asked == 2


def test_what_the_service_refuses_is_named(store: GcsStore, server: DisturbedServer) -> None:
    """Its own words are kept, with the permission that is missing."""
    server.answer = refuse(403, "x does not have storage.objects.get access to the object.")
    with pytest.raises(PermissionDenied, match=r"storage\.objects\.get"):
        read(store)


def no_token() -> dict[str, object]:
    """A provider that has none."""
    raise OSError("the metadata server gives no token")


def no_zone() -> dict[str, object]:
    """A provider whose token ends at a time of nobody knows where."""
    return {"token": "t", "expires_at": datetime(2999, 1, 1)}


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (StoreOptions(credential_provider=no_zone), {}),
        (StoreOptions(), {}),
        (StoreOptions(credential_provider=no_token), {}),
        (StoreOptions(credential_provider=Provider(600)), {"https_proxy": "http://127.0.0.1:9"}),
        (StoreOptions(credential_provider=Provider(600), user_project="p\r\nX: y"), {}),
    ],
    ids=["no zone", "other credentials", "no token", "proxy", "header in a header"],
)
def test_what_only_obstore_can_do_is_declined_before_anything_is_sent(
    options: StoreOptions, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials of files, proxies: they are obstore's."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("connected"))
    with pytest.raises(Declined):
        list(DirectReader("b", replace(options, emulator=""), "").stream("x", 0, 3))
