"""What the server must not do: act on a request as if a part of it were not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import googleapiclient
import pytest

from airflow_resume_provider.testing.gcs.fields import FIELDS


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


@pytest.mark.parametrize(
    "given",
    [
        {"versioning": "x"},
        {"versioning": {"enabled": "false"}},
        {"billing": ["x"]},
        {"labels": "x"},
        {"labels": {"a": 1}},
        {"lifecycle": {"rule": "x"}},
        {"lifecycle": {"rule": ["x"]}},
        {"cors": {"origin": "x"}},
        {"storageClass": ["STANDARD"]},
        {"location": 5},
        {"acl": "x"},
        {"acl": [{"role": "READER"}]},
        {"defaultObjectAcl": ["x"]},
        {"iamConfiguration": "x"},
    ],
)
def test_settings_of_a_bucket_have_types(http, bucket, loaded, given):
    """A value of another type is refused, and the bucket works on."""
    path = f"/storage/v1/b{loaded}"
    for method, address in (("PATCH", path), ("PUT", path), ("POST", "/storage/v1/b?project=p")):
        refused = http(method, address, json={"name": f"{bucket.name}-2", **given})
        assert (refused.status_code, next(iter(given)) in refused.text) == (400, True)
    bucket.reload()
    assert bucket.metageneration == 1
    assert http("PUT", f"{loaded}/obj", data=b"over").status_code == 200


def test_policies_have_types(http, loaded):
    """An IAM policy is bindings of roles to members."""
    path = f"/storage/v1/b{loaded}/iam"
    for bindings in ("x", ["x"], [{"role": 1}], [{"role": "r", "members": "m"}]):
        assert http("PUT", path, json={"bindings": bindings}).status_code == 400
    assert http("PUT", path, json={"bindings": [{"role": "r", "members": ["m"]}]}).status_code == 200
    assert http("GET", path).json()["bindings"] == [{"role": "r", "members": ["m"]}]


@pytest.mark.parametrize("given", [{"acl": "x"}, {"acl": [{}]}, {"temporaryHold": "x"}, {"contexts": "x"}])
def test_settings_of_an_object_have_types(http, loaded, given):
    """As those of a bucket."""
    assert http("PATCH", f"/storage/v1/b{loaded}/o/obj", json=given).status_code == 400
    assert http("GET", f"{loaded}/obj?acl").status_code == 200


def test_custom_metadata_has_a_limit(http, bucket, loaded):
    """8 KiB of keys and values in UTF-8, over all ways to set it; patches count what is there already."""
    objects = f"/storage/v1/b{loaded}/o"
    fits, over = {"key": "ü" * 4094 + "x"}, {"key": "ü" * 4095}
    sources = [{"name": "obj"}]
    for metadata, status in ((over, 400), (fits, 200)):
        resource = {"metadata": metadata}
        answers = [
            http("PATCH", f"{objects}/obj", json=resource),
            http("PUT", f"{objects}/obj", json=resource),
            http("POST", f"{objects}/obj/rewriteTo/b{loaded}/o/y", json=resource),
            http("POST", f"{objects}/z/compose", json={"destination": resource, "sourceObjects": sources}),
            http("POST", f"/upload{objects}?uploadType=resumable&name=r", json=resource),
            http("PUT", f"{loaded}/x", headers={"x-goog-meta-key": "x" * (8189 + (status == 400))}),
        ]
        assert [answer.status_code for answer in answers] == [status] * len(answers)
    assert "MetadataTooLarge" in http("PUT", f"{loaded}/x", headers={"x-goog-meta-k": "x" * 9000}).text
    assert http("PATCH", f"{objects}/obj", json={"metadata": {"k": "v"}}).status_code == 400
    assert bucket.get_blob("obj").metadata == fits


def test_custom_time_only_goes_forward(http, bucket, loaded):
    """Once set it can be neither removed nor set earlier; a rewrite begins anew."""
    path = f"/storage/v1/b{loaded}/o/obj"
    assert http("PATCH", path, json={"customTime": "2024-13-01T00:00:00Z"}).status_code == 400
    assert http("PATCH", path, json={"customTime": "2024-06-01T00:00:00Z"}).status_code == 200
    for time in (None, "2024-05-31T23:59:59Z", "2024-06-01T00:30:00+01:00"):
        assert http("PATCH", path, json={"customTime": time}).status_code == 400
        assert http("PUT", path, json={"customTime": time}).status_code == 400
    assert http("PUT", path, json={}).status_code == 400
    assert http("PATCH", path, json={"customTime": "2024-06-01T00:30:00-01:00"}).status_code == 200
    rewritten = http("POST", f"{path}/rewriteTo/b{loaded}/o/obj", json={"contentType": "a/b"})
    assert "customTime" not in rewritten.json()["resource"]


def test_globs_that_do_not_end_are_refused(http, loaded):
    """An open bracket or brace is 400; an escaped one is a character."""
    path = f"/storage/v1/b{loaded}/o"
    for glob, status in (("[", 400), ("a[b", 400), ("{a", 400), ("\\[", 200)):
        assert http("GET", path, params={"matchGlob": glob}).status_code == status


def test_pages_of_other_origins_may_use_the_json_api(http, bucket, loaded):
    """Preflights are granted what they ask, answers of all sizes and errors say the origin; not in XML."""
    bucket.blob("big").upload_from_string(b"x" * 300_000)
    origin, objects = {"Origin": "http://page.example"}, f"/storage/v1/b{loaded}/o"
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-a, content-type"}
    granted = http("OPTIONS", f"/upload{objects}?uploadType=resumable&name=x", headers=origin | asked)
    assert granted.status_code == 200
    assert granted.headers["Access-Control-Allow-Origin"] == "http://page.example"
    assert granted.headers["Access-Control-Allow-Methods"] == "PUT"
    assert granted.headers["Access-Control-Allow-Headers"] == "x-a, content-type"
    for path in (objects, f"{objects}/obj?alt=media", f"{objects}/big?alt=media", f"{objects}/none"):
        answer = http("GET", path, headers=origin)
        assert answer.headers["Access-Control-Allow-Origin"] == "http://page.example"
        assert "Access-Control-Allow-Origin" not in http("GET", path).headers
    for method in ("OPTIONS", "GET"):
        answer = http(method, f"{loaded}/big", headers=origin | asked)
        assert (answer.status_code, "Access-Control-Allow-Origin" in answer.headers) == (200, False)


def test_unknown_fields_cannot_be_selected(http, bucket, loaded):
    """They are refused by name before anything is done, at the top and within lists, bare or in brackets."""
    path, upload = f"/storage/v1/b{loaded}", f"/upload/storage/v1/b{loaded}/o?uploadType=media&name=new"
    rewrite = f"{path}/o/obj/rewriteTo/b{loaded}/o/new?fields=resource/bogus"
    for method, address in (
        ("GET", f"{path}?fields=name,bogus"),
        ("GET", "/storage/v1/b?project=p&fields=items/bogus"),
        ("GET", f"{path}/o?fields=items(name,bogus),nextPageToken"),
        ("GET", f"{path}/o?fields=bogus"),
        ("GET", f"{path}/o/obj?fields=name,bogus"),
        ("POST", f"{upload}&fields=bogus"),
        ("POST", rewrite),
    ):
        refused = http(method, address, data=b"")
        assert (refused.status_code, "Invalid field selection bogus" in refused.text) == (400, True), address
    assert bucket.get_blob("new") is None


def test_every_field_that_there_is_can_be_selected(http, loaded):
    """Those of Google's own description of the API, which comes with its client."""
    description = Path(googleapiclient.__file__).parent / "discovery_cache/documents/storage.v1.json"
    schemas = json.loads(description.read_text())["schemas"]
    assert {name: set(schemas[name]["properties"]) - known for name, known in FIELDS.items()} == {
        name: set() for name in FIELDS
    }
    path, every = f"/storage/v1/b{loaded}", {name: ",".join(known) for name, known in FIELDS.items()}
    for address, fields in (
        (path, every["Bucket"]),
        (f"{path}/o/obj", every["Object"]),
        (f"{path}/o", f"kind,prefixes,nextPageToken,items({every['Object']})"),
        (f"{path}/o/obj", "metadata/key,owner(entity,entityId),acl(*),*"),
    ):
        assert http("GET", address, params={"fields": fields}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/storage/v1/b/B/notificationConfigs", 405),
        ("GET", "/storage/v1/b/B/notificationConfigs/1", 404),
        ("POST", "/storage/v1/b/B/folders", 405),
        ("POST", "/storage/v1/b/B/managedFolders", 405),
        ("POST", "/storage/v1/b/B/o/watch", 405),
        ("POST", "/storage/v1/channels/stop", 404),
        ("POST", "/storage/v1/b/B/o/obj/restore?generation=1", 404),
        ("POST", "/storage/v1/b/B/o/bulkRestore", 405),
        ("POST", "/storage/v1/b/B/lockRetentionPolicy", 404),
        ("POST", "/storage/v1/b/B/relocate", 404),
        ("GET", "/storage/v1/projects/p/hmacKeys", 404),
        ("GET", "/storage/v1/b/B/anywhereCaches", 404),
        ("GET", "/storage/v1/b/B/o/obj/iam", 404),
        ("POST", "/B", 405),
        ("POST", "/B/obj", 400),
    ],
)
def test_methods_that_are_not_there_are_refused(http, bucket, loaded, method, path, status):
    """With the status that the page on conformance says."""
    assert http(method, path.replace("B", bucket.name, 1)).status_code == status
    assert bucket.blob("obj").download_as_bytes() == b"content"
