"""Several processes on the same buckets and port: to clients they are one server."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from airflow_resume_provider.testing.gcs import GcsServer
from airflow_resume_provider.testing.gcs.workers import Workers


@pytest.fixture
async def workers(tmp_path):
    """Two processes, with a bucket in between."""
    async with GcsServer(tmp_path) as first:
        first.create_bucket("bkt")
    with Workers(tmp_path, 2) as together:
        yield together


@pytest.fixture
def lines(workers):
    """A connection to each of the two."""
    found = {}
    opened = []
    for _ in range(200):
        line = http.client.HTTPConnection("127.0.0.1", workers.port, timeout=60)
        line.request("GET", "/storage/v1/b/bkt")  # it has been taken once it has been answered
        line.getresponse().read()
        opened.append(line)
        mine = line.sock.getsockname()
        for pid in workers.pids:
            if any(c.raddr == mine for c in psutil.Process(pid).net_connections("tcp")):
                found.setdefault(pid, line)
        if len(found) == 2:
            break
    assert len(found) == 2, "all connections went to one process"
    yield list(found.values())
    for line in opened:
        line.close()


def send(line, method, path, body=None, **headers):
    """Send a request on this connection, return status, headers and body."""
    line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = line.getresponse()
    return answer.status, answer.headers, answer.read()


def test_what_one_writes_the_other_sees_at_once(lines):
    """Objects that are made, replaced, described and deleted; buckets that are made and changed."""
    generations = []
    for number, (writer, reader) in enumerate([(0, 1), (1, 0)] * 10):
        content = str(number).encode()
        status, headers, _ = send(lines[writer], "PUT", "/bkt/x", content)
        assert status == 200
        generations.append(int(headers["x-goog-generation"]))
        assert send(lines[reader], "GET", "/bkt/x")[2] == content
        assert send(lines[reader], "HEAD", "/bkt/x")[1]["x-goog-generation"] == str(generations[-1])
    assert generations == sorted(set(generations))
    assert send(lines[0], "DELETE", "/bkt/x")[0] == 204
    assert send(lines[1], "GET", "/bkt/x")[0] == 404
    assert send(lines[0], "POST", "/storage/v1/b?project=p", b'{"name": "new-one"}')[0] == 200
    assert send(lines[1], "PUT", "/new-one/y", b"1")[0] == 200
    assert send(lines[0], "GET", "/new-one/y")[2] == b"1"


def test_changes_of_a_bucket_are_not_lost(lines):
    """Each process sees the settings that the other one has just made."""
    for number, line in enumerate(lines * 3):
        body = f'{{"labels": {{"l{number}": "x"}}}}'.encode()
        assert send(line, "PATCH", "/storage/v1/b/bkt", body)[0] == 200
    told = json.loads(send(lines[0], "GET", "/storage/v1/b/bkt")[2])
    assert sorted(told["labels"]) == [f"l{number}" for number in range(6)]
    assert told["metageneration"] == "7"


def test_nothing_is_written_to_a_bucket_that_has_gone(lines, workers):
    """The bytes are on their way to one process while the other one deletes the bucket."""
    assert send(lines[0], "POST", "/storage/v1/b?project=p", b'{"name": "short-lived"}')[0] == 200
    lines[0].putrequest("PUT", "/short-lived/x")
    lines[0].putheader("Content-Length", "4")
    lines[0].endheaders()
    lines[0].send(b"ab")
    assert send(lines[1], "DELETE", "/storage/v1/b/short-lived")[0] == 204
    lines[0].send(b"cd")
    answer = lines[0].getresponse()
    assert (answer.status, b"NoSuchBucket" in answer.read()) == (404, True)


def test_an_upload_in_parts_may_go_to_both(lines):
    """A client's connections are spread over the processes."""
    started = send(lines[0], "POST", "/bkt/big?uploads")[2].decode()
    identity = started.partition("<UploadId>")[2].partition("<")[0]
    parts = [os.urandom(5 << 20), os.urandom(5 << 20), b"end"]
    tags = []
    for number, (line, part) in enumerate(zip(itertools.cycle(lines), parts, strict=False), start=1):
        path = f"/bkt/big?partNumber={number}&uploadId={identity}"
        tags.append(send(line, "PUT", path, part)[1]["ETag"])
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        for number, tag in enumerate(tags, start=1)
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    assert send(lines[1], "POST", f"/bkt/big?uploadId={identity}", body)[0] == 200
    assert send(lines[0], "GET", "/bkt/big")[2] == b"".join(parts)


def test_only_one_may_create_an_object(lines):
    """Also when both processes are asked at the same time."""

    def create(line):
        return [
            send(line, "PUT", f"/bkt/race-{number}", b"x" * 1000, x_goog_if_generation_match="0")[0]
            for number in range(200)
        ]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(create, lines)
    assert {tuple(sorted(pair)) for pair in zip(first, second, strict=True)} == {(200, 412)}
    listed = send(lines[0], "GET", "/bkt?prefix=race-")[2].decode()
    generations = [part.partition("<")[0] for part in listed.split("<Generation>")[1:]]
    assert len(set(generations)) == 200


def test_googles_client_finds_one_server(workers):
    """Thousands of requests from several of them at once."""
    client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": workers.endpoint})
    bucket = client.bucket("bkt")

    def round_trip(number):
        bucket.blob(f"n/{number}").upload_from_string(str(number))
        return bucket.blob(f"n/{number}").download_as_bytes() == str(number).encode()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(200)))
    assert len(list(client.list_blobs("bkt", prefix="n/"))) == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_they_end_with_whoever_started_them(tmp_path, number):
    """Nothing goes on serving a directory that the next server will have."""
    command = [sys.executable, "-m", "airflow_resume_provider.testing.gcs", str(tmp_path), "--workers", "2"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline().startswith("export STORAGE_EMULATOR_HOST=http://127.0.0.1:")
    children = psutil.Process(server.pid).children(recursive=True)
    assert len(children) == 2
    server.send_signal(number)
    server.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


async def test_a_directory_that_a_single_server_has_is_refused(tmp_path, capfd):
    """The single one keeps in memory what the others would change."""
    async with GcsServer(tmp_path):
        with pytest.raises(RuntimeError, match="did not start"), Workers(tmp_path, 2):
            pass
    assert "in use by another server" in capfd.readouterr().err
