"""Reading: ranges, conditions, checksums in headers, gzip, generations."""

from __future__ import annotations

import gzip
import os

import obstore
import pytest
from google.api_core.exceptions import NotFound, NotModified, PreconditionFailed

DATA = os.urandom(100_000)


@pytest.fixture
def blob(bucket):
    """An object of 100,000 bytes."""
    blob = bucket.blob("x")
    blob.upload_from_string(DATA)
    return blob


@pytest.fixture
def media(http, bucket, blob):
    """GET the object's bytes over either API."""

    def get(api: str, headers: dict | None = None, method: str = "GET", query: str = ""):
        json_path = f"/download/storage/v1/b/{bucket.name}/o/x?alt=media{query}"
        xml_path = f"/{bucket.name}/x?{query.lstrip('&')}"
        return http(method, json_path if api == "json" else xml_path, headers=headers or {})

    return get


@pytest.mark.parametrize("api", ["json", "xml"])
@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=99990-", 99_990, 100_000),
        ("bytes=99990-200000", 99_990, 100_000),
        ("bytes=-7", 99_993, 100_000),
        ("bytes=-200000", 0, 100_000),
    ],
)
def test_ranges_give_exactly_their_bytes(media, api, header, start, end):
    """206 with Content-Range, in every form of Range."""
    response = media(api, {"Range": header})
    assert response.status_code == 206
    assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/100000"
    assert response.content == DATA[start:end]


@pytest.mark.parametrize("api", ["json", "xml"])
@pytest.mark.parametrize("header", ["bytes=100000-", "bytes=100000-100010", "bytes=-0"])
def test_a_range_behind_the_end_is_416(media, api, header):
    """No byte in the range is an error that tells the size."""
    response = media(api, {"Range": header})
    assert (response.status_code, response.headers["Content-Range"]) == (416, "bytes */100000")


@pytest.mark.parametrize("header", ["items=0-1", "bytes=5-2", "bytes=a-b", "bytes=0-1,5-6", "bytes=-"])
def test_what_is_no_range_is_ignored(media, header):
    """HTTP says to serve the whole object then."""
    response = media("xml", {"Range": header})
    assert (response.status_code, response.content) == (200, DATA)


def test_any_range_of_an_empty_object_is_416(bucket, http):
    """An empty object has no byte to give, and downloads as empty."""
    bucket.blob("empty").upload_from_string("")
    assert http("GET", f"/{bucket.name}/empty", headers={"Range": "bytes=0-"}).status_code == 416
    assert http("GET", f"/{bucket.name}/empty").content == b""
    assert bucket.blob("empty").download_as_bytes() == b""


@pytest.mark.parametrize("api", ["json", "xml"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_downloads_carry_what_is_needed_to_verify_them(media, blob, api, method):
    """x-goog-hash, generation, metageneration, stored length, ETag and Last-Modified are there."""
    response = media(api, method=method)
    headers = response.headers
    assert headers["x-goog-hash"] == f"crc32c={blob.crc32c},md5={blob.md5_hash}"
    assert headers["x-goog-generation"] == str(blob.generation)
    assert headers["x-goog-metageneration"] == "1"
    assert headers["x-goog-stored-content-length"] == headers["Content-Length"] == "100000"
    assert headers["Last-Modified"].endswith("GMT")
    assert headers["ETag"]
    assert len(response.content) == (100_000 if method == "GET" else 0)


def test_the_xml_etag_is_the_md5(media, blob):
    """For objects from one upload, as many tools rely on."""
    import base64

    assert media("xml").headers["ETag"] == f'"{base64.b64decode(blob.md5_hash).hex()}"'


def test_conditions_on_reading(blob, bucket):
    """412 for what must match, 304 for what must not, for bytes and metadata."""
    generation = blob.generation
    for read in (bucket.blob("x").download_as_bytes, bucket.blob("x").reload):
        read(if_generation_match=generation, if_metageneration_match=1)
        with pytest.raises(PreconditionFailed):
            read(if_generation_match=generation + 1)
        with pytest.raises(PreconditionFailed):
            read(if_metageneration_match=2)
        with pytest.raises(NotModified):
            read(if_generation_not_match=generation)
        with pytest.raises(NotModified):
            read(if_metageneration_not_match=1)


def test_conditions_by_entity_tag(media, blob, store):
    """If-Match and If-None-Match, by hand and from obstore."""
    etag = media("xml").headers["ETag"]
    assert media("xml", {"If-Match": etag}).status_code == 200
    assert media("xml", {"If-Match": '"other"'}).status_code == 412
    assert media("xml", {"If-None-Match": etag}).status_code == 304
    assert media("xml", {"If-None-Match": '"other"'}).status_code == 200
    assert media("json", {"If-None-Match": blob.etag}).status_code == 304
    with pytest.raises(obstore.exceptions.NotModifiedError):
        obstore.get(store, "x", options={"if_none_match": etag})
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.get(store, "x", options={"if_match": '"other"'})


def test_conditions_by_date(media, blob):
    """If-Modified-Since and If-Unmodified-Since, against Last-Modified."""
    changed, old = media("xml").headers["Last-Modified"], "Mon, 01 Jan 2001 00:00:00 GMT"
    assert media("xml", {"If-Modified-Since": changed}).status_code == 304
    assert media("xml", {"If-Modified-Since": old}).status_code == 200
    assert media("xml", {"If-Unmodified-Since": old}).status_code == 412
    assert media("xml", {"If-Unmodified-Since": changed}).status_code == 200
    assert media("xml", {"If-Modified-Since": "not a date"}).status_code == 200


@pytest.mark.parametrize("api", ["json", "xml"])
def test_xml_conditions_and_generations(media, blob, api):
    """x-goog-if-generation-match on the XML API, and ?generation= on both."""
    right, wrong = str(blob.generation), str(blob.generation + 1)
    if api == "xml":
        assert media(api, {"x-goog-if-generation-match": right}).status_code == 200
        assert media(api, {"x-goog-if-generation-match": wrong}).status_code == 412
        assert media(api, {"x-goog-if-metageneration-match": "2"}).status_code == 412
    assert media(api, query=f"&generation={right}").content == DATA
    assert media(api, query=f"&generation={wrong}").status_code == 404
    assert media(api, query="&generation=abc").status_code == 400


def test_the_client_reads_parts_of_an_object(blob, tmp_path):
    """start, end, raw and chunked downloads and file-like reading of google-cloud-storage."""
    assert blob.download_as_bytes(start=10, end=19) == DATA[10:20]
    assert blob.download_as_bytes(start=-10) == DATA[-10:]
    assert blob.download_as_bytes(raw_download=True) == DATA
    blob.chunk_size = 262144
    blob.download_to_filename(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    with blob.open("rb") as file:
        file.seek(99_000)
        assert file.read() == DATA[99_000:]


def test_obstore_reads_parts_of_an_object(store, blob):
    """get_range, get_ranges, suffixes, streams and versions of obstore."""
    assert bytes(obstore.get_range(store, "x", start=5, end=9)) == DATA[5:9]
    ranges = obstore.get_ranges(store, "x", starts=[0, 99_999], lengths=[2, 1])
    assert [bytes(part) for part in ranges] == [DATA[:2], DATA[-1:]]
    assert obstore.get(store, "x", options={"range": {"suffix": 3}}).bytes() == DATA[-3:]
    assert obstore.get(store, "x", options={"range": {"offset": 99_998}}).bytes() == DATA[-2:]
    assert b"".join(obstore.get(store, "x").stream(min_chunk_size=1000)) == DATA
    assert obstore.get(store, "x", options={"version": str(blob.generation)}).bytes() == DATA
    meta = obstore.head(store, "x")
    assert (meta["size"], meta["version"]) == (100_000, str(blob.generation))


# Compression


@pytest.fixture
def zipped(bucket):
    """An object that is stored as gzip and says so."""
    blob = bucket.blob("z")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(DATA), content_type="text/plain")
    return blob


def test_gzip_objects_are_unzipped_for_clients_that_do_not_take_gzip(http, bucket, zipped):
    """Decompressive transcoding: plain bytes, no Content-Encoding, the stored one in its own header."""
    response = http("GET", f"/{bucket.name}/z", headers={"Accept-Encoding": "identity"})
    assert response.content == DATA
    assert "Content-Encoding" not in response.headers
    assert response.headers["x-goog-stored-content-encoding"] == "gzip"
    assert response.headers["Warning"] == "214 UploadServer gunzipped"
    assert "Content-Length" not in response.headers


def test_gzip_objects_go_out_as_stored_to_clients_that_take_gzip(http, bucket, zipped):
    """Content-Encoding: gzip and the stored bytes, on which ranges work."""
    path = f"/{bucket.name}/z"
    response = http("GET", path, headers={"Accept-Encoding": "gzip"}, stream=True)
    assert response.headers["Content-Encoding"] == "gzip"
    stored = response.raw.read(decode_content=False)
    assert gzip.decompress(stored) == DATA
    part = http("GET", path, headers={"Accept-Encoding": "gzip", "Range": "bytes=0-1"}, stream=True)
    assert (part.status_code, part.raw.read(decode_content=False)) == (206, stored[:2])


def test_no_transform_keeps_gzip_as_it_is(http, bucket, zipped):
    """Cache-Control: no-transform switches transcoding off."""
    zipped.cache_control = "no-transform"
    zipped.patch()
    response = http("GET", f"/{bucket.name}/z", headers={"Accept-Encoding": "identity"}, stream=True)
    assert gzip.decompress(response.raw.read(decode_content=False)) == DATA


def test_a_range_of_an_unzipped_object_is_ignored(http, bucket, zipped):
    """The whole plain object comes instead, as the cloud documents it."""
    headers = {"Accept-Encoding": "identity", "Range": "bytes=0-9"}
    response = http("GET", f"/{bucket.name}/z", headers=headers)
    assert (response.status_code, response.content) == (200, DATA)


def test_the_client_sees_plain_and_raw_gzip(zipped):
    """download_as_bytes unzips, raw_download does not; both verify checksums."""
    assert zipped.download_as_bytes() == DATA
    assert gzip.decompress(zipped.download_as_bytes(raw_download=True)) == DATA


def test_gzip_uploads_over_xml_are_stored_as_sent(http, bucket):
    """The server must not unzip a body because of its Content-Encoding."""
    body = gzip.compress(DATA)
    http("PUT", f"/{bucket.name}/up", data=body, headers={"Content-Encoding": "gzip"})
    blob = bucket.get_blob("up")
    assert (blob.size, blob.content_encoding) == (len(body), "gzip")


def test_what_is_not_there_is_not_found(http, bucket, store):
    """404 for objects and buckets, in the format of each API."""
    with pytest.raises(NotFound, match="No such object"):
        bucket.blob("none").download_as_bytes()
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "none")
    answer = http("GET", f"/{bucket.name}/none")
    assert (answer.status_code, "<Code>NoSuchKey</Code>" in answer.text) == (404, True)
    answer = http("GET", "/no-such-bucket-at-all/x")
    assert (answer.status_code, "<Code>NoSuchBucket</Code>" in answer.text) == (404, True)
    answer = http("GET", f"/storage/v1/b/{bucket.name}/o/none")
    assert answer.json()["error"]["errors"][0]["reason"] == "notFound"
    assert http("GET", f"/storage/v1/b/{bucket.name}/o/none?alt=media").text == (
        f"No such object: {bucket.name}/none"
    )


def test_a_reader_keeps_its_bytes_when_the_object_is_replaced(gcs, bucket):
    """A download that has begun ends with the generation it began with."""
    import requests

    data = os.urandom(32 << 20)
    bucket.blob("x").upload_from_string(data)
    with requests.get(f"{gcs.endpoint}/{bucket.name}/x", stream=True, timeout=120) as response:
        first = response.raw.read(10)
        bucket.blob("x").upload_from_string("new")
        bucket.blob("x").delete()
        assert first + response.raw.read() == data
