"""Fixtures: one disturbed server for all tests, and a fresh lineage in each kind of store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_world import BUCKET, DisturbedServer, Raw

from airflow_resume_provider.checkpoints import Lineage, StoreOptions

_numbers = itertools.count()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedServer]:
    server = DisturbedServer(tmp_path_factory.mktemp("store"))
    yield server
    server.close()


@pytest.fixture
def server(running_server: DisturbedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[DisturbedServer]:
    running_server.calm()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", running_server.endpoint)
    monkeypatch.setenv("RESUME_STORE_SECONDS", "3")
    yield running_server
    running_server.calm()


@pytest.fixture(params=["file", "gs"])
def uri(request: pytest.FixtureRequest, server: DisturbedServer, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/lineage"
    return f"gs://{BUCKET}/lineage-{next(_numbers)}"


@pytest.fixture
def gs_uri(server: DisturbedServer) -> str:
    return f"gs://{BUCKET}/lineage-{next(_numbers)}"


@pytest.fixture
def raw(uri: str, server: DisturbedServer) -> Raw:
    return Raw(uri, server.endpoint)


@pytest.fixture
def gs_raw(gs_uri: str, server: DisturbedServer) -> Raw:
    return Raw(gs_uri, server.endpoint)


@pytest.fixture
def lineage(uri: str) -> Lineage:
    return Lineage.open(uri)


@pytest.fixture
def impatient() -> StoreOptions:
    """Options under which a store that does not answer is given up soon."""
    return StoreOptions(max_total_seconds=1, read_seconds=0.3, connect_seconds=0.5)
