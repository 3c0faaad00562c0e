"""Multipart uploads over the XML API, by obstore, google-cloud-storage and by hand."""

from __future__ import annotations

import os
import re

import obstore
import pytest
from google.cloud.storage import transfer_manager

MIB = 1 << 20
PART = 5 * MIB


@pytest.fixture
def multipart(http, bucket):
    """An upload under way, as (path, upload id)."""
    path = f"/{bucket.name}/obj"
    text = http("POST", f"{path}?uploads", headers={"Content-Type": "a/b", "x-goog-meta-k": "v"}).text
    return path, re.search("<UploadId>(.*?)</UploadId>", text)[1]


@pytest.fixture
def put_part(http, multipart):
    """Upload a part, return its entity tag."""
    path, identity = multipart

    def put(number: int, data: bytes, **headers: str) -> str:
        response = http("PUT", f"{path}?partNumber={number}&uploadId={identity}", data=data, headers=headers)
        assert response.status_code == 200, response.text
        return response.headers["ETag"]

    return put


@pytest.fixture
def complete(http, multipart):
    """Complete with [(number, tag), …]."""
    path, identity = multipart

    def send(parts, headers=None):
        entries = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, tag in parts)
        body = f"<CompleteMultipartUpload>{entries}</CompleteMultipartUpload>"
        return http("POST", f"{path}?uploadId={identity}", data=body, headers=headers or {})

    return send


def code(response) -> str:
    return re.search("<Code>(.*?)</Code>", response.text)[1]


def test_parts_become_one_object(bucket, put_part, complete):
    """In the order of their numbers, with the settings of the start, the crc32c of the whole and no md5."""
    data = [os.urandom(PART), os.urandom(PART), b"end"]
    tags = {n: put_part(n, part) for n, part in ((3, data[2]), (1, data[0]), (2, data[1]))}
    assert bucket.get_blob("obj") is None
    response = complete(sorted(tags.items()))
    assert response.status_code == 200
    assert "<ETag>" in response.text
    blob = bucket.get_blob("obj")
    assert blob.download_as_bytes(checksum="crc32c") == b"".join(data)
    assert (blob.content_type, blob.metadata, blob.md5_hash) == ("a/b", {"k": "v"}, None)
    assert blob.download_as_bytes(start=PART - 5, end=PART + 4) == data[0][-5:] + data[1][:5]


def test_a_completed_upload_is_over(put_part, complete):
    """A second completion and later parts are NoSuchUpload."""
    tag = put_part(1, b"x")
    assert complete([(1, tag)]).status_code == 200
    again = complete([(1, tag)])
    assert (again.status_code, code(again)) == (404, "NoSuchUpload")


def test_a_part_sent_twice_counts_once(bucket, put_part, complete):
    """The later one replaces the earlier, whose tag is no longer good."""
    old, new = put_part(1, b"old"), put_part(1, b"new")
    refused = complete([(1, old)])
    assert (refused.status_code, code(refused)) == (400, "InvalidPart")
    assert complete([(1, new)]).status_code == 200
    assert bucket.blob("obj").download_as_bytes() == b"new"


def test_parts_that_are_not_named_are_left_out(bucket, put_part, complete):
    """Only what the completion lists is in the object."""
    put_part(1, os.urandom(PART))
    tag = put_part(2, b"only")
    assert complete([(2, tag)]).status_code == 200
    assert bucket.blob("obj").download_as_bytes() == b"only"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(1, "wrong")], "InvalidPart"),
        ([(9, None)], "InvalidPart"),
        ([(2, None), (1, None)], "InvalidPartOrder"),
        ([(1, None), (1, None)], "InvalidPartOrder"),
        ([(1, None), (2, None)], "EntityTooSmall"),
        ([], "MalformedXML"),
    ],
)
def test_what_cannot_be_completed_is_refused(bucket, put_part, complete, parts, expected):
    """Wrong tags, unknown parts, bad order, small parts, no parts: 400, and nothing appears."""
    tags = {n: put_part(n, b"x") for n in (1, 2)}
    response = complete([(n, tag or tags.get(n, "none")) for n, tag in parts])
    assert (response.status_code, code(response)) == (400, expected)
    assert bucket.get_blob("obj") is None


def test_bad_xml_is_refused(http, multipart):
    """MalformedXML."""
    path, identity = multipart
    assert code(http("POST", f"{path}?uploadId={identity}", data=b"<Complete")) == "MalformedXML"


def test_checksums_of_parts_are_checked(http, multipart):
    """x-goog-hash and Content-MD5 of a part that do not fit are BadDigest."""
    path, identity = multipart
    for headers in ({"x-goog-hash": "crc32c=AAAAAA=="}, {"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}):
        response = http("PUT", f"{path}?partNumber=1&uploadId={identity}", data=b"x", headers=headers)
        assert (response.status_code, code(response)) == (400, "BadDigest")
        assert "<Details>" in response.text
    assert "<Part>" not in http("GET", f"{path}?uploadId={identity}").text


@pytest.mark.parametrize("number", ["0", "10001", "x", ""])
def test_part_numbers_have_limits(http, multipart, number):
    """1 to 10,000."""
    path, identity = multipart
    assert http("PUT", f"{path}?partNumber={number}&uploadId={identity}", data=b"x").status_code == 400


def test_parts_and_uploads_are_listed(http, bucket, multipart, put_part):
    """With sizes and tags, in pages."""
    path, identity = multipart
    tags = [put_part(n, b"x" * n) for n in (1, 2, 3)]
    text = http("GET", f"{path}?uploadId={identity}&max-parts=2").text
    assert re.findall("<PartNumber>(.*?)</PartNumber>", text) == ["1", "2"]
    assert re.findall("<Size>(.*?)</Size>", text) == ["1", "2"]
    assert re.findall("<ETag>(.*?)</ETag>", text) == [tag.replace('"', "&quot;") for tag in tags[:2]] or (
        re.findall("<ETag>(.*?)</ETag>", text) == tags[:2]
    )
    assert "<IsTruncated>true" in text
    text = http("GET", f"{path}?uploadId={identity}&part-number-marker=2").text
    assert re.findall("<PartNumber>(.*?)</PartNumber>", text) == ["3"]
    assert identity in http("GET", f"/{bucket.name}?uploads").text
    assert identity not in http("GET", f"/{bucket.name}?uploads&prefix=zzz").text


def test_an_aborted_upload_leaves_nothing(http, gcs, multipart, put_part):
    """Its id is unknown and its bytes are off the disk."""
    path, identity = multipart
    put_part(1, b"x" * 100)
    assert http("DELETE", f"{path}?uploadId={identity}").status_code == 204
    assert http("GET", f"{path}?uploadId={identity}").status_code == 404
    assert http("PUT", f"{path}?partNumber=1&uploadId={identity}", data=b"x").status_code == 404


def test_an_upload_belongs_to_its_object(http, bucket, multipart):
    """The id is not good for another name."""
    _, identity = multipart
    response = http("PUT", f"/{bucket.name}/other?partNumber=1&uploadId={identity}", data=b"x")
    assert (response.status_code, code(response)) == (404, "NoSuchUpload")


def test_completion_can_be_create_only(bucket, put_part, complete):
    """x-goog-if-generation-match: 0 is honoured at the end, and the parts stay for another try."""
    tag = put_part(1, b"late")
    bucket.blob("obj").upload_from_string("first")
    condition = {"x-goog-if-generation-match": "0"}
    assert complete([(1, tag)], condition).status_code == 412
    assert bucket.blob("obj").download_as_bytes() == b"first"
    bucket.blob("obj").delete()
    assert complete([(1, tag)], condition).status_code == 200


@pytest.mark.parametrize("checksum", ["auto", "crc32c", "md5", None])
def test_the_transfer_manager_uploads_in_chunks(bucket, tmp_path, checksum):
    """google-cloud-storage's multipart uploads pass its own checks of every part."""
    data = os.urandom(12 * MIB)
    (tmp_path / "x").write_bytes(data)
    transfer_manager.upload_chunks_concurrently(
        str(tmp_path / "x"),
        bucket.blob("x"),
        chunk_size=PART,
        max_workers=2,
        worker_type=transfer_manager.THREAD,
        checksum=checksum,
    )
    assert bucket.blob("x").download_as_bytes() == data
    transfer_manager.download_chunks_concurrently(
        bucket.blob("x"),
        str(tmp_path / "y"),
        chunk_size=3 * MIB,
        max_workers=2,
        worker_type=transfer_manager.THREAD,
    )
    assert (tmp_path / "y").read_bytes() == data


def test_obstore_uploads_many_parts_at_once(store, bucket):
    """A file of many parts from a stream, with attributes."""
    pieces = [os.urandom(2 * MIB) for _ in range(16)]
    obstore.put(
        store, "big", iter(pieces), chunk_size=PART, max_concurrency=6, attributes={"Content-Type": "a/b"}
    )
    assert obstore.get(store, "big").bytes() == b"".join(pieces)
    assert bucket.get_blob("big").content_type == "a/b"


def test_xml_resumable_sessions_work(http, bucket):
    """POST with x-goog-resumable: start opens a session whose Location takes the bytes."""
    opened = http("POST", f"/{bucket.name}/x y", headers={"x-goog-resumable": "start", "Content-Type": "a/b"})
    assert opened.status_code == 201
    assert http("PUT", opened.headers["Location"], data=b"data").status_code == 200
    blob = bucket.get_blob("x y")
    assert (blob.size, blob.content_type) == (4, "a/b")
