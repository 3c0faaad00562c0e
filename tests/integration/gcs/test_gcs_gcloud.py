"""What `gcloud storage` and gsutil send and others do not: the same bytes, and gcloud where it is."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from gcs_world import Running

BOUNDARY = "===============5918866038313534966=="
# As apitools writes it, in quotes that the standard does not know.
RELATED = f"multipart/related; boundary='{BOUNDARY}'"


def related(data: bytes, name: str, **metadata: object) -> bytes:
    """A multipart upload as apitools' MIME generator lays it out: bare line feeds, version headers."""
    fields = json.dumps({"name": name, **metadata})
    head = f"--{BOUNDARY}\nContent-Type: application/json\nMIME-Version: 1.0\n\n{fields}\n--{BOUNDARY}\n"
    kind = "Content-Type: application/octet-stream\nMIME-Version: 1.0\nContent-Transfer-Encoding: binary\n\n"
    return (head + kind).encode() + data + f"\n--{BOUNDARY}--".encode()


def upload(http, bucket, body: bytes, query: str = "", **headers: str):
    path = f"/upload/storage/v1/b/{bucket.name}/o?alt=json&uploadType=multipart{query}"
    return http("POST", path, data=body, headers={"Content-Type": RELATED, **headers})


@pytest.mark.parametrize("data", [b"", b"x", b"\n--\r\n--" + BOUNDARY.encode()[:-1], os.urandom(300_000)])
def test_multipart_uploads_as_apitools_writes_them_arrive(http, bucket, data):
    """A boundary in single quotes and bare line feeds hold the data, byte by byte."""
    answer = upload(http, bucket, related(data, "a b/ü %[1].txt"), "&ifGenerationMatch=0")
    assert answer.status_code == 200, answer.text
    assert bucket.blob("a b/ü %[1].txt").download_as_bytes() == data


@pytest.mark.parametrize("data", [b"", b"a" * 5_000_000, os.urandom(300_000)])
def test_what_is_zipped_for_the_way_is_stored_as_it_was(http, bucket, data):
    """`cp --gzip-in-flight` zips the whole request; the object has neither that nor an encoding."""
    body = gzip.compress(related(data, "flight"))
    answer = upload(http, bucket, body, **{"Content-Encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    assert "contentEncoding" not in answer.json()
    assert int(answer.json()["size"]) == len(data)
    assert bucket.blob("flight").download_as_bytes() == data


@pytest.mark.parametrize("spoil", [lambda body: body[:-20], lambda body: b"no gzip" + body])
def test_a_broken_zip_on_the_way_leaves_no_object(http, bucket, spoil):
    """It is refused as the client's mistake."""
    body = spoil(gzip.compress(related(os.urandom(5000), "flight")))
    assert upload(http, bucket, body, **{"Content-Encoding": "gzip"}).status_code == 400
    assert not bucket.blob("flight").exists()


def test_soft_deleted_objects_are_never_listed(http, bucket):
    """`ls --soft-deleted` shows what was deleted and kept, here nothing; live ones are not that."""
    bucket.blob("live").upload_from_string(b"x")
    path = f"/storage/v1/b/{bucket.name}/o?alt=json&softDeleted=True&projection=noAcl&maxResults=1000"
    assert "items" not in http("GET", path).json()
    assert http("GET", "/storage/v1/b/no-such-bucket/o?softDeleted=True").status_code == 404


def test_a_flat_bucket_has_no_folders(http, bucket):
    """`rm --recursive` asks for managed folders: none; folders need a hierarchical namespace: refused."""
    path = f"/storage/v1/b/{bucket.name}"
    managed = http("GET", f"{path}/managedFolders?alt=json&pageSize=1000")
    assert (managed.status_code, "items" in managed.json()) == (200, False)
    assert http("GET", f"{path}/folders?alt=json&pageSize=1000").status_code == 409
    assert http("GET", f"{path}/storageLayout?alt=json").json()["hierarchicalNamespace"] == {"enabled": False}
    assert http("GET", "/storage/v1/b/no-such-bucket/managedFolders").status_code == 404


def test_a_listing_of_some_fields_with_prefixes(http, bucket):
    """As gcloud's `ls` asks: a partial answer, folders among the prefixes."""
    for name in ("a/1", "a/b/2", "top"):
        bucket.blob(name).upload_from_string(b"12345")
    fields = "prefixes%2Citems%2Fname%2Citems%2Fsize%2CnextPageToken"
    query = f"alt=json&fields={fields}&delimiter=%2F&includeFoldersAsPrefixes=True&projection=noAcl"
    answer = http("GET", f"/storage/v1/b/{bucket.name}/o?{query}&maxResults=1000").json()
    assert answer == {"prefixes": ["a/"], "items": [{"name": "top", "size": "5"}]}


def gcloud(gcs: Running, config: Path, *arguments: str) -> str:
    """Run a `gcloud storage` command on this server."""
    settings = {
        "CLOUDSDK_CONFIG": str(config),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{gcs.endpoint}/storage/v1/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_PROJECT": "p",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_STORAGE_PROCESS_COUNT": "1",
    }
    command = ["gcloud", "storage", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_itself(gcs, bucket, tmp_path):
    """Copies up, zipped on the way, and down again, and removes the bucket with all that is in it."""
    tree, home = tmp_path / "tree", f"gs://{bucket.name}"
    (tree / "a b").mkdir(parents=True)
    files = {"a b/ü %[1].txt": b"1", "big": os.urandom(9 << 20), "lines.txt": b"line\n" * 10_000}
    for name, data in files.items():
        (tree / name).write_bytes(data)
    config = tmp_path / "config"
    gcloud(gcs, config, "cp", "--recursive", "--gzip-in-flight=txt", str(tree), f"{home}/up")
    assert {name: bucket.blob(f"up/{name}").download_as_bytes() for name in files} == files
    gcloud(gcs, config, "rsync", "--recursive", f"{home}/up", str(tmp_path))
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    gcloud(gcs, config, "rm", "--recursive", home)
    assert not bucket.exists()
