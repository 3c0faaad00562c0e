"""Metadata, versions, copies, compositions, deletion, batches; bucket settings."""

from __future__ import annotations

import os

import obstore
import pytest
from crc32c import crc32c
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound, PreconditionFailed

NAMES = [
    "a",
    "a/",
    "a/b",
    "a//b",
    "/a",
    " ",
    "sp ace",
    "per%cent",
    "%2F",
    "[foo]",
    "#tag?.pt",
    "+&=;,",
    "quote\"'<>",
    "ünï→中文🙂",
    "tab\there",
    "back\\slash",
    "../../etc/passwd",
    "a/../../b",
    "x" * 300,
    "ü" * 512,
    "con",
    ".hidden",
    "a.tmp",
    "~tilde",
    "*",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_byte_exact(bucket, gcs, name):
    """Every legal name is written, listed, read, copied and deleted as it is, and stays inside the root."""
    bucket.blob(name).upload_from_string(name)
    assert [blob.name for blob in bucket.list_blobs()] == [name]
    assert bucket.get_blob(name).download_as_bytes() == name.encode()
    bucket.copy_blob(bucket.blob(name), bucket, name + "2" if len(name) < 500 else "short")
    bucket.blob(name).delete()
    assert bucket.get_blob(name) is None
    outside = {path.name for path in gcs.server.root.parent.iterdir()}
    assert outside == {gcs.server.root.name} or not any("passwd" in other for other in outside)


def test_a_file_and_a_directory_of_one_name_coexist(bucket):
    """`a`, `a/` and `a/b` are three objects."""
    for name in ("a", "a/", "a/b"):
        bucket.blob(name).upload_from_string(name)
    assert [blob.name for blob in bucket.list_blobs()] == ["a", "a/", "a/b"]
    assert all(bucket.blob(name).download_as_bytes() == name.encode() for name in ("a", "a/", "a/b"))


@pytest.mark.parametrize(
    "name", [".", "..", "x" * 1025, "ü" * 513, "new\nline", "cr\r", ".well-known/acme-challenge/x"]
)
def test_illegal_names_are_refused(http, bucket, name):
    """What Cloud Storage does not allow is 400."""
    path = f"/upload/storage/v1/b/{bucket.name}/o"
    answer = http("POST", path, params={"uploadType": "media", "name": name}, data=b"")
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "name", ["ab", "A-b", "-ab", "ab-", "a..b", "a_b_", "192.168.5.4", "goog-x", "my-google-x", "x" * 64]
)
def test_illegal_bucket_names_are_refused(http, name):
    """Bucket naming rules hold."""
    assert http("POST", "/storage/v1/b?project=p", json={"name": name}).status_code == 400


# Metadata


def test_metadata_changes_count_the_metageneration(bucket):
    """patch merges, update replaces; generation stays, metageneration, updated and etag move."""
    blob = bucket.blob("x")
    blob.metadata = {"a": "1", "b": "2"}
    blob.upload_from_string("data", content_type="text/plain")
    before = (blob.generation, blob.etag, blob.updated, blob.time_created)
    blob.metadata = {"a": None, "c": "3"}
    blob.cache_control = "no-cache"
    blob.patch()
    assert blob.metadata == {"b": "2", "c": "3"}
    assert (blob.generation, blob.metageneration) == (before[0], 2)
    assert blob.etag != before[1]
    assert blob.updated >= before[2]
    assert blob.time_created == before[3]
    blob.metadata = {"only": "this"}
    blob.update()
    assert (blob.metadata, blob.metageneration) == ({"only": "this"}, 3)
    with pytest.raises(PreconditionFailed):
        blob.patch(if_metageneration_match=1)


def test_all_settings_of_an_object_are_kept_and_served(http, bucket):
    """Content-*, Cache-Control, custom time, storage class and custom metadata come back on downloads."""
    blob = bucket.blob("x")
    blob.content_disposition = 'attachment; filename="x"'
    blob.content_language = "de"
    blob.cache_control = "max-age=5"
    blob.storage_class = "COLDLINE"
    blob.metadata = {"key": "välue"}
    blob.upload_from_string("data", content_type="text/x-y")
    headers = http("GET", f"/{bucket.name}/x").headers
    assert headers["Content-Type"] == "text/x-y"
    assert headers["Content-Language"] == "de"
    assert headers["Cache-Control"] == "max-age=5"
    assert headers["Content-Disposition"] == 'attachment; filename="x"'
    assert headers["x-goog-storage-class"] == "COLDLINE"
    assert headers["x-goog-meta-key"].encode("latin-1").decode() == "välue"


def test_obstore_attributes_are_metadata(store, bucket):
    """What obstore sends as attributes is what google-cloud-storage sees."""
    obstore.put(store, "x", b"1", attributes={"Content-Type": "a/b", "color": "red"})
    blob = bucket.get_blob("x")
    assert (blob.content_type, blob.metadata) == ("a/b", {"color": "red"})
    attributes = obstore.get(store, "x").attributes
    assert (attributes["Content-Type"], attributes["color"]) == ("a/b", "red")


def test_fields_and_projection(http, bucket):
    """fields= selects, also nested and with wildcards; projection=full adds the access lists."""
    bucket.blob("x").upload_from_string("1")
    path = f"/storage/v1/b/{bucket.name}/o"
    assert http("GET", path, params={"fields": "items(name,size),nextPageToken"}).json() == {
        "items": [{"name": "x", "size": "1"}]
    }
    assert http("GET", path, params={"fields": "items/name"}).json() == {"items": [{"name": "x"}]}
    assert http("GET", f"{path}/x", params={"fields": "*"}).json()["name"] == "x"
    assert http("GET", path, params={"fields": "items("}).status_code == 400
    assert "acl" not in http("GET", f"{path}/x").json()
    assert "acl" in http("GET", f"{path}/x", params={"projection": "full"}).json()
    assert http("GET", f"{path}/x", params={"projection": "odd"}).status_code == 400


# Deletion and versions


def test_deleting_needs_the_object_and_the_condition(bucket):
    """404 without the object, 412 against the condition."""
    blob = bucket.blob("x")
    with pytest.raises(NotFound):
        blob.delete()
    blob.upload_from_string("1")
    with pytest.raises(PreconditionFailed):
        blob.delete(if_generation_match=1)
    blob.delete(if_generation_match=blob.generation)
    assert bucket.get_blob("x") is None


def test_versions_are_kept_where_the_bucket_says_so(bucket):
    """Replaced and deleted generations stay listed and readable, until they are deleted by number."""
    bucket.versioning_enabled = True
    bucket.patch()
    generations = []
    for text in ("1", "2"):
        blob = bucket.blob("x")
        blob.upload_from_string(text)
        generations.append(blob.generation)
    bucket.blob("x").delete()
    assert bucket.get_blob("x") is None
    listed = list(bucket.list_blobs(versions=True))
    assert [blob.generation for blob in listed] == generations
    assert all(blob._properties["timeDeleted"] for blob in listed)
    assert bucket.blob("x", generation=generations[0]).download_as_bytes() == b"1"
    assert list(bucket.list_blobs()) == []
    restored = bucket.copy_blob(bucket.blob("x"), bucket, "x", source_generation=generations[0])
    assert restored.download_as_bytes() == b"1"
    with pytest.raises(Conflict):
        bucket.delete()
    for generation in [*generations, restored.generation]:
        bucket.blob("x", generation=generation).delete()
    assert list(bucket.list_blobs(versions=True)) == []
    bucket.delete()


def test_without_versions_a_replaced_generation_is_gone(bucket):
    """Its number is 404."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    old = blob.generation
    blob.upload_from_string("2")
    with pytest.raises(NotFound):
        bucket.blob("x", generation=old).download_as_bytes()


# Copies and compositions


def test_rewrite_and_copy_keep_bytes_and_settings(client, bucket):
    """Both copy checksums and metadata, unless new metadata is given; conditions on both ends hold."""
    data = os.urandom(3 << 20)
    source = bucket.blob("source")
    source.metadata = {"k": "v"}
    source.upload_from_string(data, content_type="a/b")
    copied = bucket.copy_blob(source, bucket, "copied", if_generation_match=0)
    assert (copied.metadata, copied.content_type, copied.crc32c) == ({"k": "v"}, "a/b", source.crc32c)
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(source, bucket, "copied", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(source, bucket, "other", if_source_generation_match=1)
    target = bucket.blob("rewritten")
    target.storage_class = "NEARLINE"
    token, done, total = target.rewrite(source)
    assert (token, done, total) == (None, len(data), len(data))
    assert bucket.get_blob("rewritten").download_as_bytes() == data
    source.delete()
    assert bucket.get_blob("copied").download_as_bytes() == data


def test_a_long_rewrite_takes_several_calls(http, bucket):
    """maxBytesRewrittenPerCall makes tokens; a changed source ends the rewrite."""
    data = os.urandom(3 << 20)
    bucket.blob("s").upload_from_string(data)
    path = f"/storage/v1/b/{bucket.name}/o/s/rewriteTo/b/{bucket.name}/o/t?maxBytesRewrittenPerCall={1 << 20}"
    answer, calls = http("POST", path).json(), 1
    while not answer["done"]:
        assert bucket.get_blob("t") is None
        answer = http("POST", f"{path}&rewriteToken={answer['rewriteToken']}").json()
        calls += 1
    assert (calls, answer["totalBytesRewritten"], answer["resource"]["name"]) == (3, str(len(data)), "t")
    token = http("POST", path).json()["rewriteToken"]
    bucket.blob("s").upload_from_string(data)
    assert http("POST", f"{path}&rewriteToken={token}").status_code == 400
    assert http("POST", path.replace(str(1 << 20), "1000")).status_code == 400


def test_compose_joins_bytes_and_checksums(bucket):
    """The result has the crc32c of the whole, a component count and no md5; ranges cross its seams."""
    parts = [os.urandom(size) for size in (100, 0, 262144 + 7)]
    blobs = []
    for number, part in enumerate(parts):
        blob = bucket.blob(f"part{number}")
        blob.upload_from_string(part)
        blobs.append(blob)
    whole = bucket.blob("whole")
    whole.content_type = "a/b"
    whole.compose(blobs, if_generation_match=0)
    data = b"".join(parts)
    assert whole.size == len(data)
    assert whole.md5_hash is None
    assert whole.component_count == 3
    import base64

    assert base64.b64decode(whole.crc32c) == crc32c(data).to_bytes(4, "big")
    for blob in blobs:
        blob.delete()
    assert whole.download_as_bytes() == data
    assert whole.download_as_bytes(start=90, end=110) == data[90:111]
    twice = bucket.blob("twice")
    twice.compose([whole, whole])
    assert (twice.download_as_bytes(), twice.component_count) == (data * 2, 6)


def test_compose_refuses_what_the_cloud_refuses(bucket):
    """Missing sources, none at all, more than 32, stale generations, failed conditions."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    with pytest.raises(NotFound):
        bucket.blob("y").compose([blob, bucket.blob("none")])
    with pytest.raises(BadRequest):
        bucket.blob("y").compose([blob] * 33)
    with pytest.raises(PreconditionFailed):
        bucket.blob("y").compose([blob], if_source_generation_match=[1])
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").compose([blob], if_generation_match=0)
    with pytest.raises(BadRequest):
        bucket.blob("y").compose([])


def test_renaming_moves_the_object(bucket, store):
    """rename_blob, obstore's rename and moveTo leave one object."""
    bucket.blob("a").upload_from_string("1")
    bucket.rename_blob(bucket.blob("a"), "b")
    obstore.rename(store, "b", "c")
    bucket.move_blob(bucket.blob("c"), "d")
    assert [blob.name for blob in bucket.list_blobs()] == ["d"]
    assert bucket.blob("d").download_as_bytes() == b"1"


def test_obstore_copies_only_over_nothing_when_asked(store):
    """copy(overwrite=False) is create-only."""
    obstore.put(store, "a", b"1")
    obstore.copy(store, "a", "b", overwrite=False)
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.copy(store, "a", "b", overwrite=False)


# Batches


def test_batches_answer_each_call(client, bucket):
    """Deletions and patches in one request; a failing one does not stop the others."""
    blobs = [bucket.blob(f"x{number}") for number in range(5)]
    for blob in blobs:
        blob.upload_from_string("1")
    with client.batch():
        blobs[0].metadata = {"k": "v"}
        blobs[0].patch()
        blobs[1].delete()
    assert blobs[0].metadata == {"k": "v"}
    batch = client.batch()
    client._push_batch(batch)
    bucket.blob("none").delete()
    blobs[2].delete()
    client._pop_batch()
    with pytest.raises(NotFound):
        batch.finish()
    assert [blob.name for blob in bucket.list_blobs()] == ["x0", "x3", "x4"]


def test_a_batch_holds_a_hundred_calls(client, bucket):
    """More are refused as a whole."""
    batch = client.batch()
    client._push_batch(batch)
    for number in range(101):
        bucket.blob(f"x{number}").delete()
    client._pop_batch()
    with pytest.raises(BadRequest):
        batch.finish()


# Buckets


def test_buckets_come_and_go(client):
    """Create, show, list with paging, change, delete; what the cloud refuses is refused."""
    names = [f"life-{number}" for number in range(3)]
    for name in names:
        client.create_bucket(name, location="europe-west4")
    with pytest.raises(Conflict):
        client.create_bucket(names[0])
    assert [b.name for b in client.list_buckets(prefix="life-", page_size=1)] == names
    bucket = client.get_bucket(names[0])
    assert (bucket.location, bucket.storage_class, bucket.metageneration) == ("EUROPE-WEST4", "STANDARD", 1)
    bucket.labels = {"a": "b"}
    bucket.storage_class = "NEARLINE"
    bucket.patch()
    assert (client.get_bucket(names[0]).labels, bucket.metageneration) == ({"a": "b"}, 2)
    bucket.blob("x").upload_from_string("1")
    assert bucket.get_blob("x").storage_class == "NEARLINE"
    with pytest.raises(Conflict):
        bucket.delete()
    bucket.blob("x").delete()
    bucket.delete()
    with pytest.raises(NotFound):
        client.get_bucket(names[0])
    assert client.lookup_bucket(names[0]) is None
    for name in names[1:]:
        client.bucket(name).delete()


def test_bucket_metageneration_conditions_hold(client, bucket):
    """Bucket changes can be conditional too."""
    with pytest.raises(PreconditionFailed):
        bucket.patch(if_metageneration_match=9)
    with pytest.raises(PreconditionFailed):
        bucket.delete(if_metageneration_match=9)


def test_permissions_can_be_asked_for(client, bucket):
    """testPermissions, getIamPolicy and the service account answer."""
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
    policy = bucket.get_iam_policy()
    policy.bindings = [{"role": "roles/storage.objectViewer", "members": {"allUsers"}}]
    bucket.set_iam_policy(policy)
    assert bucket.get_iam_policy().bindings[0]["role"] == "roles/storage.objectViewer"
    assert client.get_service_account_email()


def test_requester_pays_needs_a_project(gcs, client, bucket):
    """Every call without userProject is 400 UserProjectMissing; with it all is as usual."""
    bucket.blob("x").upload_from_string("1")
    bucket.requester_pays = True
    bucket.patch()
    with pytest.raises(BadRequest, match="requester pays"):
        bucket.blob("x").download_as_bytes()
    with pytest.raises(obstore.exceptions.BaseError, match="UserProjectMissing"):
        obstore.get(gcs.obstore(bucket.name), "x")
    paying = client.bucket(bucket.name, user_project="p")
    assert paying.blob("x").download_as_bytes() == b"1"
    paying.blob("y").upload_from_string("2")
    assert [blob.name for blob in paying.list_blobs()] == ["x", "y"]


def test_addresses_that_mean_nothing_are_refused(http, bucket):
    """Unknown paths are 404, wrong methods 405; a slash in a JSON path must be encoded."""
    assert http("GET", "/storage/v1/nonsense").status_code == 404
    assert http("POST", f"/storage/v1/b/{bucket.name}/o/x").status_code == 405
    assert http("GET", f"/storage/v1/b/{bucket.name}/o/a/b").status_code == 404
    assert http("PATCH", f"/{bucket.name}/x").status_code == 405


# Access


def test_held_objects_can_be_neither_replaced_nor_deleted(bucket):
    """A temporary or event-based hold is 403 until it is taken off."""
    for hold in ("temporary_hold", "event_based_hold"):
        blob = bucket.blob(hold)
        blob.upload_from_string("1")
        setattr(blob, hold, True)
        blob.patch()
        with pytest.raises(Forbidden, match="hold"):
            bucket.blob(hold).upload_from_string("2")
        with pytest.raises(Forbidden, match="hold"):
            bucket.blob(hold).delete()
        setattr(blob, hold, False)
        blob.patch()
        blob.delete()


def test_access_lists_are_kept(client, bucket):
    """make_public, granting and revoking are shown again; nothing is enforced."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    blob.make_public()
    again = bucket.get_blob("x")
    again.acl.reload()
    assert list(again.acl) == [{"entity": "allUsers", "role": "READER"}]
    assert "acl" not in again._properties
    again.make_private()
    again.acl.reload()
    assert list(again.acl) == []
    bucket.acl.user("a@b.c").grant_owner()
    bucket.acl.save()
    assert {"entity": "user-a@b.c", "role": "OWNER"} in list(client.get_bucket(bucket.name).acl)


def test_signed_addresses_end(http, bucket):
    """Before its end a signed address works, after it it is ExpiredToken."""
    bucket.blob("x").upload_from_string("1")
    signed = "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature=00&X-Goog-Date={}&X-Goog-Expires={}"
    path = f"/{bucket.name}/x?{signed}"
    assert http("GET", path.format("20200101T000000Z", 604800)).status_code == 400
    assert "ExpiredToken" in http("GET", path.format("20200101T000000Z", 604800)).text
    assert http("GET", path.format("20990101T000000Z", 60)).content == b"1"


def test_obstore_updates_only_the_version_it_saw(store):
    """PutMode update is compare-and-swap on the generation."""
    first = obstore.put(store, "x", b"1")
    second = obstore.put(store, "x", b"2", mode={"version": first["version"], "e_tag": first["e_tag"]})
    assert second["version"] > first["version"]
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "x", b"3", mode={"version": first["version"], "e_tag": first["e_tag"]})
    assert obstore.get(store, "x").bytes() == b"2"


def test_the_storage_class_can_be_changed(bucket):
    """update_storage_class rewrites the object in place."""
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    blob.update_storage_class("COLDLINE")
    assert bucket.get_blob("x").storage_class == "COLDLINE"
    assert blob.download_as_bytes() == b"1"


def test_bucket_configurations_are_kept(client, bucket):
    """Lifecycle rules, CORS, default holds and autoclass come back as they were set."""
    bucket.add_lifecycle_delete_rule(age=3)
    bucket.cors = [{"origin": ["*"], "method": ["GET"]}]
    bucket.patch()
    again = client.get_bucket(bucket.name)
    assert next(iter(again.lifecycle_rules))["action"] == {"type": "Delete"}
    assert again.cors == [{"origin": ["*"], "method": ["GET"]}]
