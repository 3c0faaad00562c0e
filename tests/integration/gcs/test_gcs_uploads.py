"""Uploads over the JSON API: checksums, preconditions, resumable sessions."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os

import pytest
from crc32c import crc32c
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud.storage.exceptions import InvalidResponse

QUANTUM = 262144


def crc(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


@pytest.fixture
def session(http, bucket):
    """Open a resumable session by hand and return its address."""

    def begin(name: str = "obj", query: str = "", body: dict | None = None, **headers: str) -> str:
        path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name={name}{query}"
        response = http("POST", path, json=body or {}, headers=headers)
        assert response.status_code == 200, response.text
        return response.headers["Location"]

    return begin


def chunk(http, address: str, data: bytes, start: int, total: int | str):
    """PUT one chunk of a session."""
    where = f"bytes {start}-{start + len(data) - 1}/{total}" if data else f"bytes */{total}"
    return http("PUT", address, data=data, headers={"Content-Range": where})


@pytest.mark.parametrize("checksum", ["md5", "crc32c", "auto", None])
@pytest.mark.parametrize("size", [0, 1, 9 << 20])
def test_uploads_of_every_size_and_checksum_arrive(bucket, checksum, size):
    """google-cloud-storage's own checks pass for simple and resumable uploads, and for downloads."""
    data = os.urandom(size)
    blob = bucket.blob("x")
    blob.upload_from_file(io.BytesIO(data), size=size, checksum=checksum)
    assert (blob.size, blob.crc32c, blob.md5_hash) == (size, crc(data), md5(data))
    assert bucket.blob("x").download_as_bytes(checksum=checksum or "auto") == data


@pytest.mark.parametrize("wrong", [{"crc32c": "AAAAAA=="}, {"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}])
def test_a_wrong_checksum_is_refused_and_leaves_no_object(http, bucket, wrong):
    """Bytes that are not what the metadata says are a 400 in the words of the cloud."""
    metadata = json.dumps({"name": "x", **wrong})
    body = f"--B\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n--B\r\n\r\ndata\r\n--B--"
    response = http(
        "POST",
        f"/upload/storage/v1/b/{bucket.name}/o?uploadType=multipart",
        data=body,
        headers={"Content-Type": "multipart/related; boundary=B"},
    )
    assert response.status_code == 400
    assert "doesn't match calculated" in response.json()["error"]["message"]
    assert response.json()["error"]["errors"][0]["reason"] == "invalid"
    assert bucket.get_blob("x") is None


@pytest.mark.parametrize("header", ["crc32c=AAAAAA==", f"crc32c={crc(b'data')},md5=AAAAAAAAAAAAAAAAAAAAAA=="])
def test_x_goog_hash_is_checked(http, bucket, header):
    """The header counts as the metadata does."""
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"
    assert http("POST", path, data=b"data", headers={"x-goog-hash": header}).status_code == 400
    good = f"crc32c={crc(b'data')},md5={md5(b'data')}"
    assert http("POST", path, data=b"data", headers={"x-goog-hash": good}).status_code == 200


def test_a_checksum_that_is_none_is_refused(http, bucket):
    """Text that decodes to no crc32c at all never passes."""
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"
    assert http("POST", path, data=b"data", headers={"x-goog-hash": "crc32c=%%%"}).status_code == 400


@pytest.mark.parametrize("size", [5, 9 << 20], ids=["multipart", "resumable"])
def test_create_only_uploads_come_first_or_fail(bucket, size):
    """ifGenerationMatch=0 holds for both protocols that google-cloud-storage uses."""
    data = os.urandom(size)
    bucket.blob("x").upload_from_file(io.BytesIO(data), size=size, if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").upload_from_file(io.BytesIO(b"other"), size=5, if_generation_match=0)
    with pytest.raises((PreconditionFailed, InvalidResponse)):
        bucket.blob("x").upload_from_file(io.BytesIO(data), size=size, if_generation_match=0)
    assert bucket.blob("x").download_as_bytes() == data


def test_replacing_needs_the_right_generation(bucket):
    """Compare-and-swap on generation and metageneration."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    first = blob.generation
    blob.upload_from_string("2", if_generation_match=first)
    assert blob.generation > first
    for condition in (
        {"if_generation_match": first},
        {"if_generation_not_match": blob.generation},
        {"if_metageneration_match": 7},
        {"if_metageneration_not_match": 1},
    ):
        with pytest.raises(PreconditionFailed):
            bucket.blob("x").upload_from_string("3", **condition)
    assert blob.download_as_bytes() == b"2"
    with pytest.raises(PreconditionFailed):
        bucket.blob("none").upload_from_string("3", if_generation_not_match=0)


def test_a_multipart_body_without_its_end_is_refused(http, bucket):
    """A body cut before the last boundary is no object."""
    body = '--B\r\nContent-Type: application/json\r\n\r\n{"name": "x"}\r\n--B\r\n\r\nda'
    headers = {"Content-Type": "multipart/related; boundary=B"}
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=multipart"
    assert http("POST", path, data=body, headers=headers).status_code == 400
    assert bucket.get_blob("x") is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_multipart_bodies_keep_every_byte(http, bucket, newline):
    """Media that looks like boundaries and ends in newlines arrives unchanged, whatever the line ends."""
    data = b"\r\n--B\r\n--Bx--\n\r\n\r\n"
    head = newline.join(["--B", "Content-Type: application/json", "", '{"name": "x"}', "--B", "A: b", "", ""])
    body = head.encode() + data + f"{newline}--B--{newline}".encode()
    headers = {"Content-Type": 'multipart/related; boundary="B"'}
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=multipart"
    assert http("POST", path, data=body, headers=headers).status_code == 200
    assert bucket.blob("x").download_as_bytes() == data


def test_a_body_that_breaks_off_makes_no_object(gcs, bucket):
    """A client that dies in the middle of an upload leaves nothing."""
    import socket

    host, port = gcs.endpoint.removeprefix("http://").split(":")
    for path in (f"/{bucket.name}/x", f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"):
        method = "POST" if "uploadType" in path else "PUT"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf".encode()
            )
    assert list(bucket.list_blobs()) == []


def test_an_object_needs_a_name_and_a_bucket(http, bucket):
    """No name is 400 required, no bucket is 404."""
    path = "/upload/storage/v1/b/{}/o?uploadType=media"
    assert http("POST", path.format(bucket.name), data=b"").status_code == 400
    assert http("POST", path.format("nowhere-at-all") + "&name=x", data=b"").status_code == 404
    assert http("POST", path.format(bucket.name).replace("media", "odd") + "&name=x").status_code == 400


# Resumable sessions


def test_a_session_tells_how_far_it_is(http, session, bucket):
    """308 with a Range of what is safe; nothing safe has no Range; the last chunk makes the object."""
    address, data = session(), os.urandom(2 * QUANTUM + 10)
    query = chunk(http, address, b"", 0, "*")
    assert (query.status_code, query.headers.get("Range")) == (308, None)
    first = chunk(http, address, data[:QUANTUM], 0, "*")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    second = chunk(http, address, data[QUANTUM : 2 * QUANTUM], QUANTUM, len(data))
    assert (second.status_code, second.headers["Range"]) == (308, f"bytes=0-{2 * QUANTUM - 1}")
    assert bucket.get_blob("obj") is None
    last = chunk(http, address, data[2 * QUANTUM :], 2 * QUANTUM, len(data))
    assert last.status_code == 200
    assert last.json()["md5Hash"] == md5(data)
    assert bucket.blob("obj").download_as_bytes() == data
    assert chunk(http, address, b"", 0, "*").json()["generation"] == last.json()["generation"]


def test_chunks_are_kept_in_whole_quanta(http, session, bucket):
    """What is over a multiple of 256 KiB is not kept and has to be sent again."""
    address, data = session(), os.urandom(QUANTUM + 100)
    answer = chunk(http, address, data, 0, "*")
    assert (answer.status_code, answer.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    assert chunk(http, address, data[QUANTUM:], QUANTUM, len(data)).status_code == 200
    assert bucket.blob("obj").download_as_bytes() == data


def test_a_chunk_below_the_quantum_is_refused(http, session):
    """Only the last chunk may be small."""
    answer = chunk(http, session(), b"x" * 100, 0, "*")
    assert answer.status_code == 400
    assert "equal or greater than 262144" in answer.json()["error"]["message"]


def test_bytes_sent_again_are_ignored(http, session, bucket):
    """A chunk that overlaps what is there adds only what is new."""
    address, data = session(), os.urandom(3 * QUANTUM)
    chunk(http, address, data[: 2 * QUANTUM], 0, "*")
    assert chunk(http, address, data[QUANTUM:], QUANTUM, len(data)).status_code == 200
    assert bucket.blob("obj").download_as_bytes() == data


def test_a_gap_is_refused_and_changes_nothing(http, session):
    """A chunk that begins behind what has arrived cannot be kept."""
    address = session()
    answer = chunk(http, address, b"x" * QUANTUM, QUANTUM, "*")
    assert answer.status_code == 503
    assert "exceeds already uploaded size" in answer.json()["error"]["message"]
    assert "Range" not in chunk(http, address, b"", 0, "*").headers


@pytest.mark.parametrize(
    "where", ["bytes 0-9/5", "bytes 5-2/10", "bytes 0-1000/*", "items 0-9/10", "bytes x"]
)
def test_content_ranges_that_contradict_themselves_are_refused(http, session, where):
    """A Content-Range must fit the body and itself."""
    answer = http("PUT", session(), data=b"0123456789", headers={"Content-Range": where})
    assert answer.status_code == 400


def test_the_announced_length_is_held_to(http, session):
    """X-Upload-Content-Length and the total of a later chunk must agree, and so must two totals."""
    address = session(**{"X-Upload-Content-Length": "10"})
    assert chunk(http, address, b"12345", 0, 5).status_code == 400
    address, data = session(), b"x" * QUANTUM
    assert chunk(http, address, data, 0, 2 * QUANTUM).status_code == 308
    assert chunk(http, address, data, QUANTUM, 3 * QUANTUM).status_code == 400


def test_an_upload_of_unknown_length_ends_with_its_total(http, session, bucket):
    """`bytes */N` when N bytes are there makes the object."""
    address, data = session(), os.urandom(QUANTUM)
    chunk(http, address, data, 0, "*")
    assert chunk(http, address, b"", 0, QUANTUM).status_code == 200
    assert bucket.blob("obj").download_as_bytes() == data


def test_an_empty_object_can_be_resumable(http, session, bucket):
    """A total of zero bytes."""
    assert http("PUT", session(), headers={"Content-Length": "0"}).status_code == 200
    assert bucket.get_blob("obj").size == 0


def test_a_cancelled_session_is_gone(http, session, bucket):
    """DELETE answers 499, and whatever comes later is refused."""
    address = session()
    chunk(http, address, b"x" * QUANTUM, 0, "*")
    assert http("DELETE", address).status_code == 499
    assert chunk(http, address, b"", 0, "*").status_code == 410
    assert bucket.get_blob("obj") is None


def test_an_unknown_session_is_not_found(http, bucket):
    """A made-up upload_id is 404."""
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&upload_id=nothing"
    assert chunk(http, path, b"", 0, "*").status_code == 404


def test_preconditions_are_checked_at_both_ends(http, session, bucket):
    """A session opens only if the condition holds, and the object appears only if it still does."""
    address = session(query="&ifGenerationMatch=0")
    bucket.blob("obj").upload_from_string("came between")
    assert chunk(http, address, b"late", 0, 4).status_code == 412
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name=obj&ifGenerationMatch=0"
    assert http("POST", path, json={}).status_code == 412
    assert bucket.blob("obj").download_as_bytes() == b"came between"


@pytest.mark.parametrize("where", ["metadata", "header"])
def test_checksums_of_sessions_are_checked(http, session, bucket, where):
    """At the start in the metadata or at the end in x-goog-hash; wrong means no object."""
    body = {"crc32c": "AAAAAA=="} if where == "metadata" else {}
    headers = {"x-goog-hash": "crc32c=AAAAAA=="} if where == "header" else {}
    answer = http("PUT", session(body=body), data=b"data", headers=headers)
    assert answer.status_code == 400
    assert bucket.get_blob("obj") is None


def test_session_metadata_reaches_the_object(http, session, bucket):
    """Settings given when the session opens are the object's."""
    address = session(
        body={"metadata": {"k": "v"}, "cacheControl": "no-store", "storageClass": "NEARLINE"},
        **{"X-Upload-Content-Type": "text/x"},
    )
    http("PUT", address, data=b"data")
    blob = bucket.get_blob("obj")
    assert (blob.metadata, blob.cache_control) == ({"k": "v"}, "no-store")
    assert (blob.storage_class, blob.content_type) == ("NEARLINE", "text/x")


def test_links_use_the_address_that_the_client_used(http, bucket):
    """Location, selfLink and mediaLink are made of the Host header, never of a wildcard address."""
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name=x"
    opened = http("POST", path, json={}, headers={"Host": "store.local:99"})
    assert opened.headers["Location"].startswith("http://store.local:99/upload/storage/v1/")
    bucket.blob("y").upload_from_string("1")
    resource = http("GET", f"/storage/v1/b/{bucket.name}/o/y", headers={"Host": "store.local:99"}).json()
    assert resource["selfLink"].startswith("http://store.local:99/storage/v1/b/")
    assert resource["mediaLink"].startswith("http://store.local:99/download/storage/v1/b/")


def test_a_chunked_writer_and_a_signed_session_of_the_client_work(bucket, client):
    """blob.open(), create_resumable_upload_session and a client-side chunk size."""
    data = os.urandom(5 * QUANTUM + 3)
    blob = bucket.blob("w", chunk_size=2 * QUANTUM)
    with blob.open("wb") as file:
        file.write(data)
    address = bucket.blob("s").create_resumable_upload_session(content_type="a/b", size=4)
    assert client._http.put(address, data=b"four").status_code == 200
    assert bucket.blob("w").download_as_bytes() == data
    assert bucket.get_blob("s").content_type == "a/b"


def test_metadata_must_be_what_the_api_says(http, bucket):
    """Numbers as metadata values, unknown storage classes and broken JSON are 400."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    path = f"/storage/v1/b/{bucket.name}/o/x"
    for wrong in ({"metadata": {"n": 1}}, {"storageClass": "WARM"}, {"customTime": "yesterday"}):
        assert http("PATCH", path, json=wrong).status_code == 400
    assert http("PATCH", path, data=b"{", headers={"Content-Type": "application/json"}).status_code == 400


def test_uploading_to_no_bucket_is_not_found(client):
    """The client sees NotFound with the cloud's sentence."""
    with pytest.raises(NotFound, match="The specified bucket does not exist"):
        client.bucket("no-such-bucket-here").blob("x").upload_from_string("1")


@pytest.mark.parametrize("total", ["*", "300007"])
def test_a_stream_of_unknown_length_ends_with_its_body(http, session, bucket, total):
    """The Node.js client sends `bytes N-*/*`, chunked: whatever comes, and that is the object."""
    data = os.urandom(300_007)
    address = session()
    assert chunk(http, address, data[:QUANTUM], 0, "*").status_code == 308
    rest = (data[at : at + 1000] for at in range(QUANTUM, len(data), 1000))
    done = http("PUT", address, data=rest, headers={"Content-Range": f"bytes {QUANTUM}-*/{total}"})
    assert done.status_code == 200, done.text
    assert bucket.blob("obj").download_as_bytes() == data


def test_a_stream_that_is_not_as_long_as_announced_is_no_object(http, session, bucket):
    """What has arrived is kept, the object is not made."""
    address = session()
    broken = http("PUT", address, data=iter([b"x" * 1000]), headers={"Content-Range": "bytes 0-*/300007"})
    assert broken.status_code == 400
    assert not bucket.blob("obj").exists()
    assert chunk(http, address, b"", 0, 300_007).status_code == 308


def test_a_client_that_wants_no_308_gets_none(http, session, bucket):
    """Google's Go client is told by a header what the status would have been."""
    data, address = os.urandom(QUANTUM + 5), session()
    headers = {"X-GUploader-No-308": "yes", "Content-Range": f"bytes 0-{QUANTUM - 1}/*"}
    going = http("PUT", address, data=data[:QUANTUM], headers=headers)
    assert (going.status_code, going.headers["X-Http-Status-Code-Override"]) == (200, "308")
    assert going.headers["Range"] == f"bytes=0-{QUANTUM - 1}"
    headers["Content-Range"] = f"bytes {QUANTUM}-{QUANTUM + 4}/{QUANTUM + 5}"
    done = http("PUT", address, data=data[QUANTUM:], headers=headers)
    assert "X-Http-Status-Code-Override" not in done.headers
    assert bucket.blob("obj").download_as_bytes() == data


def test_an_absent_resource_may_be_null(http, bucket):
    """As the Go client copies without changing metadata."""
    bucket.blob("a").upload_from_string(b"x", content_type="text/x")
    path = f"/storage/v1/b/{bucket.name}/o/a/rewriteTo/b/{bucket.name}/o/b?alt=json&prettyPrint=false"
    done = http("POST", path, data=b"null\n", headers={"Content-Type": "application/json"})
    assert done.status_code == 200, done.text
    assert done.json()["resource"]["contentType"] == "text/x"
