"""A running object store and the unmodified clients that the tests drive it with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from gcs_world import Running, running
from google.cloud import storage
from obstore.store import GCSStore

_numbers = itertools.count(1)


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
            return session.request(method, address, timeout=120, **options)

        yield send
