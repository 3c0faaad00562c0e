"""What the server must not do: act on a request as if a part of it were not there."""

from __future__ import annotations

import re

import pytest


@pytest.fixture
def loaded(bucket):
    """The path of a bucket with one object in it."""
    bucket.blob("obj").upload_from_string("content")
    return f"/{bucket.name}"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        *((name, 501, "NotImplemented") for name in ("tagging", "cors", "lifecycle", "website", "retention")),
        *((name, 501, "NotImplemented") for name in ("logging", "encryption", "billing", "policy", "acl")),
        *((name, 400, "InvalidArgument") for name in ("torrent", "bogus", "versionId=5", "partNumber=1")),
        ("acl&cors", 400, "InvalidArgument"),
        ("tagging&uploads", 400, "InvalidArgument"),
    ],
)
def test_subresources_are_never_overlooked(http, bucket, loaded, query, status, code):
    """Writing or deleting one that is not there touches neither the object nor the bucket."""
    for method in ("PUT", "DELETE"):
        for path in (f"{loaded}/obj", f"{loaded}/new", loaded):
            refused = http(method, f"{path}?{query}", data=b"<x/>")
            assert (refused.status_code, f"<Code>{code}</Code>" in refused.text) == (status, True), path
    assert [blob.name for blob in bucket.list_blobs()] == ["obj"]
    assert bucket.blob("obj").download_as_bytes() == b"content"


def test_an_empty_bucket_survives_the_deletion_of_its_parts(http, bucket):
    """DELETE of a subresource, or of an upload without an object, is not a deletion of the bucket."""
    for query in ("lifecycle", "cors", "uploads", "uploadId=x", "bogus"):
        assert http("DELETE", f"/{bucket.name}?{query}").status_code in (400, 405, 501)
    assert bucket.exists()


def test_parameters_of_a_request_are_no_subresources(http, bucket, loaded):
    """Signatures, projects that pay, empty and unknown parameters with a value leave the meaning as it is."""
    query = (
        "GoogleAccessId=a&Signature=b&Expires=9999999999&userProject=p&response-content-type=&x=1&alt=&key="
    )
    assert http("PUT", f"{loaded}/obj?{query}", data=b"new").status_code == 200
    assert http("GET", f"{loaded}/obj?{query}").content == b"new"
    assert "<Key>obj</Key>" in http("GET", f"{loaded}?prefix=&delimiter=&marker=&encoding-type=").text
    assert http("DELETE", f"{loaded}/obj?{query}").status_code == 204


def test_settings_of_a_bucket_are_shown(http, bucket, loaded):
    """Location, storage class and versioning, which can be set as well."""
    assert ">US</LocationConstraint>" in http("GET", f"{loaded}?location").text
    assert ">STANDARD</StorageClass>" in http("GET", f"{loaded}?storageClass").text
    assert "<Status>" not in http("GET", f"{loaded}?versioning").text
    for status, enabled in (("Enabled", True), ("Suspended", False)):
        body = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>"
        assert http("PUT", f"{loaded}?versioning", data=body).status_code == 200
        assert f"<Status>{status}</Status>" in http("GET", f"{loaded}?versioning").text
        bucket.reload()
        assert bucket.versioning_enabled is enabled
    assert http("PUT", f"{loaded}?versioning", data="<x/>").status_code == 400


def test_access_lists_are_shown(http, bucket, loaded):
    """?acl of a bucket and of an object lists what was granted."""
    acl = bucket.blob("obj").acl
    acl.all().grant_read()
    acl.user("a@b.example").grant_owner()
    acl.save()
    text = http("GET", f"{loaded}/obj?acl").text
    assert "<Permission>READ</Permission><Scope type='AllUsers'/>" in text
    owner = "<Scope type='UserByEmail'><EmailAddress>a@b.example</EmailAddress></Scope>"
    assert f"<Permission>FULL_CONTROL</Permission>{owner}" in text
    assert "<Entries></Entries>" in http("GET", f"{loaded}?acl").text
    assert http("GET", f"{loaded}/none?acl").status_code == 404


def test_objects_are_composed(http, bucket, loaded):
    """?compose makes one object of others, under their preconditions; bad requests make none."""
    bucket.blob("b").upload_from_string("+more")
    generation = bucket.get_blob("b").generation
    body = ("<ComposeRequest><Component><Name>obj</Name></Component><Component><Name>b</Name>"
            "<Generation>{0}</Generation><IfGenerationMatch>{0}</IfGenerationMatch></Component>"
            "</ComposeRequest>")  # fmt: skip
    path = f"{loaded}/whole?compose"
    for bad in ("", "<x/>", "<ComposeRequest/>", body.format("x"), body.format("9" * 25)):
        assert http("PUT", path, data=bad).status_code == 400
    assert http("PUT", path, data=body.format(1)).status_code == 404
    assert bucket.get_blob("whole") is None
    made = http("PUT", path, data=body.format(generation), headers={"Content-Type": "a/b"})
    assert made.status_code == 200
    blob = bucket.get_blob("whole")
    assert (blob.download_as_bytes(), blob.content_type, blob.component_count) == (b"content+more", "a/b", 2)


def test_all_versions_are_listed_in_pages(http, bucket):
    """?versions shows every generation once, also where a page ends within a name."""
    bucket.versioning_enabled = True
    bucket.patch()
    for _ in range(3):
        bucket.blob("a").upload_from_string("x")
    bucket.blob("b/c").upload_from_string("x")
    expected = [str(blob.generation) for blob in bucket.list_blobs(versions=True)]
    seen, prefixes, query = [], [], "versions&max-keys=2&delimiter=/"
    more: re.Match[str] | None = re.match("()()", "")
    while more:
        marked = f"&marker={more[1]}&generation-marker={more[2] or ''}"
        text = http("GET", f"/{bucket.name}?{query}{marked}").text
        seen += re.findall("<Version>.*?<Generation>(.*?)</Generation>.*?</Version>", text)
        prefixes += re.findall("<CommonPrefixes><Prefix>(.*?)</Prefix>", text)
        more = re.search("<NextMarker>(.*?)</NextMarker>(?:<NextGenerationMarker>(.*?)<)?", text)
    assert (seen, prefixes) == (expected[:3], ["b/"])
    assert text.count("<IsLatest>true") == 1


@pytest.mark.parametrize("number", ["9" * 23, str(2**63), "-1", "1_0", " 1", "²", "x", ""])
def test_numbers_have_64_bits(http, bucket, loaded, number):
    """What is no 64-bit integer is refused by name, wherever one may stand."""
    path = f"/storage/v1/b{loaded}/o"
    for name in ("generation", "ifGenerationMatch", "ifMetagenerationMatch", "ifGenerationNotMatch"):
        refused = http("GET", f"{path}/obj", params={name: number})
        assert (refused.status_code, name in refused.text) == (400, True)
    assert http("GET", path, params={"maxResults": number}).status_code == 400
    for name in ("max-keys", "generation-marker"):
        assert http("GET", f"{loaded}?versions", params={name: number or "x"}).status_code == 400
    assert http("DELETE", f"{loaded}/obj", params={"generation": number}).status_code == 400
    assert bucket.blob("obj").exists()


def test_versions_of_the_listing_that_are_not_there_are_refused(http, loaded):
    """Only list-type=2 has a meaning."""
    for kind in ("3", "1", ""):
        assert http("GET", f"{loaded}?list-type={kind}").status_code == 400
