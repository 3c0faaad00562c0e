"""The three clients at their plainest."""

from __future__ import annotations

import os

import pytest


def test_google_cloud_storage_reads_what_it_wrote(bucket):
    """A blob uploaded by google-cloud-storage downloads unchanged and shows its checksums."""
    blob = bucket.blob("a/b c%[1]#?+ü.bin")
    blob.upload_from_string(b"hello", content_type="text/plain")
    again = bucket.get_blob(blob.name)
    assert again.download_as_bytes() == b"hello"
    assert (again.size, again.md5_hash, again.crc32c) == (5, "XUFAKrxLKna5cZ2REBfFkg==", "mnG7TA==")
    assert [b.name for b in bucket.list_blobs(prefix="a/")] == [blob.name]
    blob.delete()
    assert bucket.get_blob(blob.name) is None


def test_google_cloud_storage_resumes_uploads(bucket):
    """A chunked upload arrives whole."""
    data = os.urandom(3 * 262144 + 17)
    blob = bucket.blob("big", chunk_size=262144)
    with blob.open("wb", ignore_flush=True) as file:
        file.write(data)
    assert bucket.blob("big").download_as_bytes() == data


def test_obstore_reads_what_it_wrote(store):
    """put, get, ranges, list, head, copy, rename and delete of obstore."""
    import obstore

    data = os.urandom(20 << 20)
    obstore.put(store, "dir/x", data, chunk_size=5 << 20)
    assert obstore.get(store, "dir/x").bytes() == data
    assert bytes(obstore.get_range(store, "dir/x", start=5 << 20, length=100)) == data[5 << 20 :][:100]
    obstore.put(store, "dir/new", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "dir/new", b"2", mode="create")
    assert [o["path"] for o in obstore.list(store, "dir").collect()] == ["dir/new", "dir/x"]
    obstore.copy(store, "dir/x", "y")
    obstore.rename(store, "y", "z")
    assert obstore.head(store, "z")["size"] == len(data)
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["dir"]
    obstore.delete(store, ["z", "dir/x"])
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "z")


@pytest.mark.filterwarnings("ignore:Sending a large body")
def test_gcsfs_reads_what_it_wrote(gcs, bucket, monkeypatch, tmp_path):
    """put, cat, ls, find, mv and rm of gcsfs."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=gcs.endpoint, project="p", skip_instance_cache=True)
    data = os.urandom(1 << 20)
    (tmp_path / "x").write_bytes(data)
    fs.put(str(tmp_path / "x"), f"{bucket.name}/d/x")
    assert fs.cat(f"{bucket.name}/d/x") == data
    assert fs.cat_file(f"{bucket.name}/d/x", 10, 20) == data[10:20]
    fs.pipe(f"{bucket.name}/d/y", b"y")
    fs.mv(f"{bucket.name}/d/y", f"{bucket.name}/d/z")
    assert fs.ls(f"{bucket.name}/d") == [f"{bucket.name}/d/x", f"{bucket.name}/d/z"]
    fs.rm(f"{bucket.name}/d", recursive=True)
    fs.invalidate_cache()
    assert fs.find(bucket.name) == []
