"""Kills, restarts, a second server, racing writers: the buckets stay consistent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
import requests
from gcs_world import running
from google.api_core.exceptions import NotFound, PreconditionFailed

from airflow_resume_provider.testing.gcs import RootInUse, Store

ROUNDS = int(os.environ.get("GCS_KILL_ROUNDS", "3"))


class Process:
    """The server as a process of its own, to be killed."""

    def __init__(self, root: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "airflow_resume_provider.testing.gcs", str(root), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip().partition("=")[2]

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def put(self, name: str, data: bytes) -> requests.Response:
        return requests.put(f"{self.endpoint}/bkt/{name}", data=data, timeout=60)


def test_everything_survives_a_restart(tmp_path):
    """Objects, settings, versions, sessions and multipart uploads are there again; generations grow on."""
    with running(tmp_path) as first:
        bucket = first.client().create_bucket("bkt")
        bucket.versioning_enabled = True
        bucket.patch()
        blob = bucket.blob("x")
        blob.metadata = {"k": "v"}
        blob.upload_from_string("1")
        session = bucket.blob("s").create_resumable_upload_session()
        requests.put(session, data=b"a" * 262144, headers={"Content-Range": "bytes 0-262143/*"}, timeout=60)
        started = requests.post(f"{first.endpoint}/bkt/m?uploads", timeout=60).text
        identity = re.search("<UploadId>(.*?)</UploadId>", started)[1]
        part = f"/bkt/m?partNumber=1&uploadId={identity}"
        tag = requests.put(first.endpoint + part, data=b"part", timeout=60).headers["ETag"]
    with running(tmp_path) as second:
        bucket = second.client().get_bucket("bkt")
        again = bucket.get_blob("x")
        assert (again.generation, again.metadata, again.download_as_bytes()) == (
            blob.generation,
            {"k": "v"},
            b"1",
        )
        session = session.replace(first.endpoint, second.endpoint)
        last = requests.put(
            session, data=b"b", headers={"Content-Range": "bytes 262144-262144/262145"}, timeout=60
        )
        assert last.json()["size"] == "262145"
        body = f"<C><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></C>"
        done = requests.post(f"{second.endpoint}/bkt/m?uploadId={identity}", data=body, timeout=60)
        assert done.status_code == 200
        again.upload_from_string("2")
        assert again.generation > blob.generation
        assert len(list(bucket.list_blobs(prefix="x", versions=True))) == 2


def test_a_kill_at_any_moment_leaves_whole_objects(tmp_path):
    """Under SIGKILL while eight writers replace objects, every object is one that was sent, in full."""
    for number in range(ROUNDS):
        server = Process(tmp_path, "--bucket", "bkt")
        acknowledged: dict[str, int] = {}
        stop = threading.Event()

        def write(writer: int, server=server, acknowledged=acknowledged, stop=stop) -> None:
            for count in range(1_000_000):
                if stop.is_set():
                    return
                size = (count * 37 + writer) % 300_000 + 4
                try:
                    server.put(f"w{writer}", count.to_bytes(4, "big") + bytes([writer]) * size)
                except requests.RequestException:
                    return
                acknowledged[f"w{writer}"] = count

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        while sum(acknowledged.values()) < 100 * (number + 1):
            if not any(thread.is_alive() for thread in threads):
                break
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        with running(tmp_path) as after:
            for blob in after.client().bucket("bkt").list_blobs():
                data = blob.download_as_bytes()  # verifies the checksum
                count, writer = int.from_bytes(data[:4], "big"), int(blob.name[1:])
                assert data[4:] == bytes([writer]) * ((count * 37 + writer) % 300_000 + 4)
                assert count >= acknowledged.get(blob.name, 0)
            used = after.server.store.catalogue.files_in_use()
            on_disk = {path.name for path in (tmp_path / "bytes").glob("*/*")}
            assert on_disk == used


def test_generations_grow_even_when_the_clock_goes_back(tmp_path):
    """A generation is never used twice."""
    with running(tmp_path) as server:
        server.server.create_bucket("bkt")
        catalogue = server.server.store.catalogue
        store = server.obstore("bkt")
        first = int(obstore.put(store, "x", b"1")["version"])
        catalogue._now = lambda: 1000.0
        second = int(obstore.put(store, "x", b"2")["version"])
        assert second > first


def test_two_servers_do_not_share_a_directory(tmp_path):
    """The second says so instead of damaging the first one's buckets."""
    with running(tmp_path), pytest.raises(RootInUse, match="in use by another server"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_of_racing_creators_exactly_one_wins(gcs, bucket):
    """Sixteen create-only writers of one name: one success, fifteen refusals, the winner's bytes."""
    store = gcs.obstore(bucket.name)

    def create(number: int) -> int | None:
        try:
            obstore.put(store, "x", str(number).encode(), mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(winners) == 1
    assert bucket.blob("x").download_as_bytes() == str(winners[0]).encode()


def test_compare_and_swap_loses_no_increment(bucket):
    """Eight writers that retry on 412 count to forty together."""
    bucket.blob("n").upload_from_string("0")

    def increment(_: int) -> None:
        while True:
            blob = bucket.get_blob("n")
            try:
                value = int(blob.download_as_bytes())
                bucket.blob("n").upload_from_string(str(value + 1), if_generation_match=blob.generation)
                return
            except (PreconditionFailed, NotFound):  # somebody else was first
                continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(40)))
    assert bucket.blob("n").download_as_bytes() == b"40"


def test_replaced_bytes_leave_the_disk(tmp_path):
    """Overwriting, deleting, failing and aborting leave no files behind."""
    with running(tmp_path) as server:
        server.server.create_bucket("bkt")
        store = server.obstore("bkt")
        for _ in range(5):
            obstore.put(store, "x", os.urandom(12 << 20), chunk_size=5 << 20)
            obstore.put(store, "y", b"1")
        obstore.copy(store, "x", "z")
        obstore.delete(store, ["x", "y", "z"])
        bad = {"x-goog-hash": "crc32c=AAAAAA=="}
        assert requests.put(f"{server.endpoint}/bkt/b", data=b"1", headers=bad, timeout=60).status_code == 400
        assert list((tmp_path / "bytes").glob("*/*")) == []


def test_a_hot_object_can_be_limited(tmp_path):
    """With mutations_per_second the second change of a name within its period is 429."""
    with running(tmp_path, mutations_per_second=0.01) as server:
        server.server.create_bucket("bkt")
        address = f"{server.endpoint}/bkt/hot"
        answers = [requests.put(address, data=b"1", timeout=60) for _ in range(3)]
        assert [answer.status_code for answer in answers][:2] == [200, 429]
        assert "exceeded the rate limit" in answers[1].text
        assert requests.put(f"{server.endpoint}/bkt/other", data=b"1", timeout=60).status_code == 200


def test_an_old_session_is_gone(tmp_path):
    """A week after it was opened a resumable session is 410."""
    with running(tmp_path) as server:
        bucket = server.client().create_bucket("bkt")
        session = bucket.blob("x").create_resumable_upload_session()
        real = server.server.store.catalogue._now
        server.server.store.catalogue._now = lambda: real() + 8 * 24 * 3600
        answer = requests.put(session, headers={"Content-Range": "bytes */*"}, timeout=60)
        assert answer.status_code == 410
