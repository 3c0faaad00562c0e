"""The thin edges to Airflow: the listener, the credentials, the provider's description, the endpoints."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime
from importlib import import_module
from types import SimpleNamespace

import pytest

from airflow_resume_provider.batch import clients
from airflow_resume_provider.batch.clients import Endpoint, endpoint
from airflow_resume_provider.get_provider_info import get_provider_info
from airflow_resume_provider.hooks.credentials import ConnectionCredentials
from airflow_resume_provider.plugin import EndedByHand
from airflow_resume_provider.triggers import by_hand


@pytest.fixture
def cancelled(monkeypatch):
    """Task instances whose job is looked for."""
    found = []
    monkeypatch.setattr(by_hand, "cancel_soon", found.append)
    return found


def test_a_persons_act_is_heard_in_the_api_server(cancelled):
    """There the task instance is a row with the operator's name, and no state before is named."""
    row = SimpleNamespace(operator="ResumableTrainOperator", task_id="train")
    EndedByHand().on_task_instance_failed(None, row)
    EndedByHand().on_task_instance_success(None, row)
    assert cancelled == [row, row]


def test_a_workers_own_end_is_not_a_persons_act(cancelled):
    """A worker names the state before, and its task instance is no row."""
    EndedByHand().on_task_instance_failed("running", SimpleNamespace(operator="ResumableTrainOperator"))
    EndedByHand().on_task_instance_failed(None, SimpleNamespace(task=object()))
    assert cancelled == []


@pytest.mark.parametrize(
    ("state", "calls"), [("RUNNING", ["job"]), ("SUCCEEDED", []), (None, [])], ids=["runs", "over", "unknown"]
)
def test_only_a_job_that_runs_is_cancelled(monkeypatch, state, calls):
    """What is over, or was never made, is left alone."""
    from airflow_resume_provider.attempts.observation import JobSeen
    from airflow_resume_provider.hooks import batch

    seen = JobSeen(name="job", state=state) if state else None
    done = []
    hook = SimpleNamespace(look=lambda name: seen, cancel=done.append)
    monkeypatch.setattr(batch, "ResumableBatchHook", lambda conn, chain: hook)
    by_hand._cancel_held({"job_name": "job", "gcp_conn_id": "c", "impersonation_chain": None})
    assert done == calls


def test_the_connections_token_is_handed_to_the_store():
    """A token that has run out is refreshed; its expiry is told with a time zone."""
    credentials = SimpleNamespace(valid=False, token="old", expiry=datetime(2026, 11, 30, 12))

    def refresh(request):
        credentials.token, credentials.valid = "new", True

    credentials.refresh = refresh
    given = ConnectionCredentials(credentials)()
    assert given == {"token": "new", "expires_at": datetime(2026, 11, 30, 12, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("extra", "environ", "found"),
    [
        ({}, {}, Endpoint()),
        ({}, {"BATCH_EMULATOR_HOST": "127.0.0.1:8080"}, Endpoint("127.0.0.1:8080", insecure=True)),
        ({}, {"BATCH_EMULATOR_HOST": "http://batch:8080/"}, Endpoint("batch:8080", insecure=True)),
        ({}, {"BATCH_EMULATOR_HOST": "https://batch:8080"}, Endpoint("batch:8080", insecure=False)),
        ({"batch_endpoint": "http://10.0.0.1:80"}, {}, Endpoint("10.0.0.1:80", insecure=True)),
        ({"batch_endpoint": "localhost:80"}, {}, Endpoint("localhost:80", insecure=True)),
        ({"batch_endpoint": "batch-psc.p.googleapis.com"}, {}, Endpoint("batch-psc.p.googleapis.com")),
        ({"batch_endpoint": "x:1"}, {"BATCH_EMULATOR_HOST": "y:2"}, Endpoint("y:2", insecure=True)),
    ],
)
def test_endpoints_with_and_without_scheme(extra, environ, found):
    """The variable wins over the connection; plain text is spoken to emulators only."""
    assert endpoint(extra, environ) == found


@pytest.mark.parametrize(
    ("greeting", "grpc"),
    [
        (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", False),
        (None, False),
    ],
    ids=["http2", "http1", "hangs up", "silent"],
)
def test_what_an_emulator_speaks_is_found_out(monkeypatch, greeting, grpc):
    """SETTINGS means gRPC, anything else REST; silence is not remembered."""
    monkeypatch.setattr(clients, "_PROBE_SECONDS", 0.3)
    clients.speaks_grpc.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = threading.Event()

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                if greeting:
                    connection.sendall(greeting)
                elif greeting is None:
                    done.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        assert clients._grpc(address) is grpc
        done.set()
        thread.join()
    assert clients.speaks_grpc.cache_info().currsize == (0 if greeting is None else 1)


def test_nobody_there_is_left_to_the_client():
    """Without a server the client's own error is the clearer one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert clients._grpc(address) is True


def test_all_that_the_provider_names_exists():
    """A typing error there would only show in the log of the provider's discovery."""
    info = get_provider_info()
    paths = [*info["extra-links"], *(d["class-name"] for d in info["task-decorators"])]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name)
    for part in ("operators", "hooks", "triggers"):
        for entry in info[part]:
            for module in entry["python-modules"]:
                import_module(module)
