"""Servers that answer oddly, or over TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkpoint_world import DisturbedServer


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
