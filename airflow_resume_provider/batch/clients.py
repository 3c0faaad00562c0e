"""Clients of Google Cloud Batch: Google's endpoint, another one, or an emulator on loopback.

The client library is imported when a client is made, never when a DAG is parsed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.batch_v1 import BatchServiceAsyncClient, BatchServiceClient

UNIVERSE = "GOOGLE_CLOUD_UNIVERSE_DOMAIN"  # as the Google provider's own hooks read it
EMULATOR_HOST = "BATCH_EMULATOR_HOST"  # host:port of a Batch emulator, with or without http://
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 4
_PROBE_SECONDS = 5.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Endpoint:
    """Where the API is; an empty address is Google's own, `insecure` is plain text for emulators."""

    address: str = ""
    insecure: bool = False

    @property
    def emulated(self) -> bool:
        """Whether no credentials are needed."""
        return self.insecure


def endpoint(extra: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint from `BATCH_EMULATOR_HOST` or else the connection's extra `batch_endpoint`."""
    environ = os.environ if environ is None else environ
    if emulator := environ.get(EMULATOR_HOST, "").strip():
        return _parsed(emulator, insecure=not emulator.startswith("https://"))
    configured = str((extra or {}).get("batch_endpoint") or "").strip()
    return _parsed(configured, insecure=_plain(configured)) if configured else Endpoint()


def _plain(address: str) -> bool:
    host = urlsplit(address if "//" in address else f"//{address}").hostname
    return address.startswith("http://") or ("://" not in address and host in _LOOPBACK)


def _parsed(text: str, *, insecure: bool) -> Endpoint:
    return Endpoint(text.split("://", 1)[-1].rstrip("/"), insecure)


class SilentServer(Exception):
    """A server took the connection and said nothing."""


@lru_cache(maxsize=64)
def speaks_grpc(address: str) -> bool:
    """Ask a plain-text server whether it answers HTTP/2; one that does not speaks REST only.

    An answer holds for the process. Silence raises, and so is asked about again.
    """
    parts = urlsplit(f"//{address}")
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=_PROBE_SECONDS) as probe:
        probe.sendall(_PREFACE)
        try:
            head = probe.recv(9)
        except TimeoutError as error:
            raise SilentServer(address) from error
    return len(head) >= 4 and head[3] == _SETTINGS


def _grpc(address: str) -> bool:
    try:
        return speaks_grpc(address)
    except SilentServer:
        return False  # HTTP/2 servers greet at once, an HTTP/1.1 one may wait for more
    except OSError:
        return True  # nobody there yet: the client's own error is the clearer one


def probe(where: Endpoint) -> None:
    """Find out what an emulator speaks, ahead of `async_client`; this blocks, so not on a loop."""
    _grpc(where.address)


def client(credentials: Credentials | None, where: Endpoint) -> BatchServiceClient:
    """Return a synchronous client."""
    from google.cloud.batch_v1 import BatchServiceClient

    if not where.insecure:
        return BatchServiceClient(credentials=credentials, client_options=_options(where))
    if not _grpc(where.address):
        return BatchServiceClient(**_rest(where))
    import grpc
    from google.cloud.batch_v1.services.batch_service.transports import BatchServiceGrpcTransport

    channel = grpc.insecure_channel(where.address)
    return BatchServiceClient(transport=BatchServiceGrpcTransport(channel=channel))


def async_client(credentials: Credentials | None, where: Endpoint) -> BatchServiceAsyncClient | None:
    """Return an asynchronous client of the running loop, `None` where only REST is spoken."""
    from google.cloud.batch_v1 import BatchServiceAsyncClient

    if not where.insecure:
        return BatchServiceAsyncClient(credentials=credentials, client_options=_options(where))
    if not _grpc(where.address):
        return None
    from google.cloud.batch_v1.services.batch_service.transports import BatchServiceGrpcAsyncIOTransport
    from grpc import aio

    channel = aio.insecure_channel(where.address)
    return BatchServiceAsyncClient(transport=BatchServiceGrpcAsyncIOTransport(channel=channel))


def _options(where: Endpoint) -> Any:
    from google.api_core.client_options import ClientOptions

    if where.address:
        return ClientOptions(api_endpoint=where.address)
    return ClientOptions(universe_domain=os.environ.get(UNIVERSE) or None)


def _rest(where: Endpoint) -> dict[str, Any]:
    from google.api_core.client_options import ClientOptions
    from google.auth import credentials

    anonymous: Any = credentials.AnonymousCredentials
    options = ClientOptions(api_endpoint=f"http://{where.address}")
    return {"transport": "rest", "credentials": anonymous(), "client_options": options}
