"""A stack that a whole module shares, and clients of it over each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stack_clients import TRANSPORTS, Client

from airflow_resume_provider.testing import LocalStack, Settings

QUICK = Settings(
    grace_seconds=2.0, stop_grace_seconds=0.5, background_grace_seconds=0.3, report_timeout_seconds=0.3
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack for all tests of a module."""
    with LocalStack(tmp_path_factory.mktemp("stack"), settings=QUICK) as stack:
        yield stack


@pytest.fixture
def stack(shared: LocalStack) -> Iterator[LocalStack]:
    """The module's stack, without jobs and without faults."""
    shared.reset()
    yield shared
    from airflow_resume_provider.testing import Plan

    shared.set_plan(Plan())


@pytest.fixture
def client(stack: LocalStack) -> Iterator[Client]:
    """A synchronous gRPC client."""
    made = Client(stack.batch_endpoint)
    yield made
    made.close()


@pytest.fixture(params=TRANSPORTS)
def any_client(request: pytest.FixtureRequest, stack: LocalStack) -> Iterator[Client]:
    """A client over each transport in turn."""
    made = Client(stack.batch_endpoint, request.param)
    yield made
    made.close()
