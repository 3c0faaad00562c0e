"""Injected faults, and the callbacks of the local stack, seen by unmodified clients."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import obstore
import pytest
import requests
from gcs_world import running

from airflow_resume_provider.testing.gcs import Fault, FaultPlan, Hooks

DATA = os.urandom(1 << 20)


@pytest.fixture
def faulty(tmp_path):
    """A server with an empty plan, a bucket and an object."""
    plan = FaultPlan(seed=7)
    with running(tmp_path, hooks=Hooks(before_request=plan)) as server:
        server.server.create_bucket("bkt")
        obstore.put(server.obstore("bkt"), "x", DATA)
        yield server, plan


def get(server, **options) -> requests.Response:
    return requests.get(f"{server.endpoint}/bkt/x", timeout=options.pop("timeout", 60), **options)


def test_a_status_is_answered_as_often_as_asked(faulty):
    """503 twice, then the truth; obstore's own retries get over it."""
    server, plan = faulty
    plan.add(Fault(status=503, retry_after=0), method="GET", path="/bkt/x", times=2)
    assert [get(server).status_code for _ in range(3)] == [503, 503, 200]
    plan.add(Fault(status=500), method="GET", times=1)
    assert obstore.get(server.obstore("bkt"), "x").bytes() == DATA


def test_faults_hit_only_what_matches(faulty):
    """Method and path choose; `skip` lets the first ones pass."""
    server, plan = faulty
    plan.add(Fault(status=429), method="PUT")
    plan.add(Fault(status=500), path="nothing-like-it")
    plan.add(Fault(status=502), method="GET", skip=1, times=1)
    assert [get(server).status_code for _ in range(3)] == [200, 502, 200]


def test_a_reset_is_a_connection_error(faulty):
    """The client sees no answer at all."""
    server, plan = faulty
    plan.add(Fault(reset=True), times=1)
    with pytest.raises(requests.ConnectionError):
        get(server)
    assert get(server).content == DATA


@pytest.mark.parametrize("after", [0, 1, 500_000])
def test_a_short_body_is_noticed(faulty, after):
    """Content-Length promises more than comes."""
    server, plan = faulty
    plan.add(Fault(after=after), method="GET", times=1)
    with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.ConnectionError)):
        _ = get(server).content
    assert get(server).content == DATA


def test_wrong_bytes_come_with_the_right_checksum(faulty):
    """One bit is flipped, the headers tell the truth: a verifying client must notice."""
    server, plan = faulty
    plan.add(Fault(corrupt=1000), times=1, method="GET")
    data = get(server).content
    assert [i for i in range(len(DATA)) if data[i] != DATA[i]] == [1000]
    from google.cloud.storage.exceptions import DataCorruption

    plan.add(Fault(corrupt=70_000), times=1, path="alt=media")  # the client also asks for the bucket
    with pytest.raises(DataCorruption):
        server.client().bucket("bkt").blob("x").download_as_bytes(retry=None)


def test_a_stall_runs_into_the_read_timeout(faulty):
    """Half the body, then silence; without a timeout the rest would follow."""
    server, plan = faulty
    plan.add(Fault(after=1000, stall=20.0), times=1, method="GET")
    with pytest.raises((requests.exceptions.ConnectionError, requests.exceptions.ReadTimeout)):
        _ = get(server, timeout=0.3).content
    plan.add(Fault(after=1000, stall=0.05), times=1, method="GET")
    assert get(server).content == DATA


def test_bandwidth_and_latency_are_felt(faulty):
    """1 MiB at 4 MiB/s takes a quarter of a second at least, in both directions; latency adds."""
    server, plan = faulty
    for method in ("GET", "PUT"):
        plan.clear()
        plan.add(Fault(bandwidth=4 << 20, latency=0.1), method=method)
        start = time.monotonic()
        body = DATA if method == "PUT" else None
        requests.request(method, f"{server.endpoint}/bkt/x", data=body, timeout=20)
        assert time.monotonic() - start >= 0.34


def test_the_same_seed_gives_the_same_faults(tmp_path):
    """Two runs with probability one half hit the same requests."""

    def run(root, seed: int) -> list[int]:
        plan = FaultPlan(seed=seed)
        plan.add(Fault(status=500), probability=0.5)
        with running(root, hooks=Hooks(before_request=plan)) as server:
            server.server.create_bucket("bkt")
            return [requests.get(f"{server.endpoint}/bkt", timeout=60).status_code for _ in range(30)]

    first = run(tmp_path / "a", 1)
    assert first == run(tmp_path / "b", 1)
    assert set(first) == {200, 500}
    assert first != run(tmp_path / "c", 2)


def test_created_objects_are_announced_before_the_client_knows(tmp_path):
    """Every way of making an object calls on_object_created once; failed ones do not."""
    seen: list[tuple[str, str]] = []

    async def note(bucket: str, name: str) -> None:
        seen.append((bucket, name))

    with running(tmp_path, hooks=Hooks(on_object_created=note)) as server:
        bucket, store = server.client().create_bucket("bkt"), server.obstore("bkt")
        obstore.put(store, "put", b"1")
        assert seen == [("bkt", "put")]
        obstore.put(store, "parts", os.urandom(6 << 20), chunk_size=5 << 20)
        bucket.blob("simple").upload_from_string("1")
        with bucket.blob("resumable", chunk_size=262144).open("wb") as file:
            file.write(DATA)
        bucket.copy_blob(bucket.blob("put"), bucket, "copy")
        bucket.blob("composed").compose([bucket.blob("put")])
        obstore.copy(store, "put", "xml-copy")
        with pytest.raises(obstore.exceptions.AlreadyExistsError):
            obstore.put(store, "put", b"2", mode="create")
        names = ["put", "parts", "simple", "resumable", "copy", "composed", "xml-copy"]
        assert seen == [("bkt", name) for name in names]


def test_a_failing_callback_does_not_fail_the_upload(tmp_path, caplog):
    """It is logged, the object is there."""

    async def fail(bucket: str, name: str) -> None:
        raise RuntimeError("broken callback")

    with running(tmp_path, hooks=Hooks(on_object_created=fail)) as server:
        server.server.create_bucket("bkt")
        obstore.put(server.obstore("bkt"), "x", b"1")
        assert obstore.get(server.obstore("bkt"), "x").bytes() == b"1"
    assert "on_object_created failed for gs://bkt/x" in caplog.text


def test_an_interrupted_resumable_upload_is_continued(faulty):
    """google-cloud-storage recovers from a broken chunk by asking how far it is."""
    server, plan = faulty
    plan.add(Fault(status=503), method="PUT", path="upload_id=", skip=1, times=1)
    blob = server.client().bucket("bkt").blob("r", chunk_size=262144)
    with blob.open("wb") as file:
        file.write(DATA)
    assert server.client().bucket("bkt").blob("r").download_as_bytes() == DATA


def test_obstore_times_out_on_a_stalled_store(faulty):
    """A client with a timeout gives up in bounded time."""
    server, plan = faulty
    plan.add(Fault(latency=30.0), method="GET")
    store = obstore.store.GCSStore(
        "bkt",
        config={"base_url": server.endpoint, "bearer_token": "any"},
        client_options={"allow_http": True, "timeout": timedelta(seconds=0.3)},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.get(store, "x")
