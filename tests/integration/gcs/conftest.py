"""A running object store and the unmodified clients that the tests drive it with."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from obstore.store import GCSStore

from airflow_resume_provider.testing.gcs import GcsServer

_numbers = itertools.count(1)


class Running:
    """A server on an event loop of its own, in a thread."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.server = GcsServer(root, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.server.start())
        self.endpoint = self.server.endpoint

    def run(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(timeout=30)

    def close(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def client(self, project: str = "p") -> storage.Client:
        return storage.Client(
            project=project,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": self.endpoint},
        )

    def obstore(self, bucket: str, **config: Any) -> GCSStore:
        return GCSStore(
            bucket,
            config={"base_url": self.endpoint, "bearer_token": "any"},
            client_options={"allow_http": True},
            **config,
        )


@contextmanager
def running(root: Path, **options: Any) -> Iterator[Running]:
    """Serve `root` while the block runs."""
    server = Running(root, **options)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests; each has a bucket of its own."""
    with running(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def client(gcs: Running) -> Iterator[storage.Client]:
    """google-cloud-storage."""
    client = gcs.client()
    yield client
    client.close()


@pytest.fixture
def bucket(gcs: Running, client: storage.Client) -> storage.Bucket:
    """A new, empty bucket."""
    return client.create_bucket(f"bucket-{next(_numbers)}")


@pytest.fixture
def store(gcs: Running, bucket: storage.Bucket) -> GCSStore:
    """obstore on the same bucket."""
    return gcs.obstore(bucket.name)


@pytest.fixture
def http(gcs: Running) -> Iterator[Callable[..., requests.Response]]:
    """Plain HTTP, for what the clients cannot produce: http("GET", "/storage/v1/b/…", …)."""
    with requests.Session() as session:

        def send(method: str, path: str, **options: Any) -> requests.Response:
            address = path if path.startswith("http") else gcs.endpoint + path
            return session.request(method, address, timeout=30, **options)

        yield send
