"""gcsfs, unmodified, on everything that a training's scripts do with it."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture
def fs(gcs, monkeypatch):
    """A file system; its newer bucket probe would stall for a minute on any plain HTTP server."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    return gcsfs.GCSFileSystem(
        token="anon",
        endpoint_url=gcs.endpoint,
        project="p",
        skip_instance_cache=True,
        use_listings_cache=False,
    )


@pytest.fixture
def root(bucket):
    """A directory in a new bucket."""
    return f"{bucket.name}/dir"


def test_files_are_written_in_chunks_and_read_anywhere(fs, root):
    """open() for writing uses a resumable upload, open() for reading ranged requests."""
    data = os.urandom((5 << 20) + 3)
    with fs.open(f"{root}/big", "wb", block_size=1 << 20) as file:
        for start in range(0, len(data), 700_000):
            file.write(data[start : start + 700_000])
    with fs.open(f"{root}/big", "rb", block_size=1 << 20) as file:
        file.seek(4 << 20)
        assert file.read() == data[4 << 20 :]
        file.seek(0)
        assert file.read(10) == data[:10]
    assert fs.size(f"{root}/big") == len(data)


@pytest.mark.parametrize("consistency", ["md5", "size", "none"])
def test_its_own_consistency_checks_pass(gcs, root, consistency, monkeypatch):
    """Checksums in answers are those that gcsfs calculates."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    fs = gcsfs.GCSFileSystem(
        token="anon", endpoint_url=gcs.endpoint, consistency=consistency, skip_instance_cache=True
    )
    fs.pipe(f"{root}/x", b"data")
    with fs.open(f"{root}/y", "wb") as file:
        file.write(os.urandom(300_000))
    assert fs.cat(f"{root}/x") == b"data"


def test_trees_go_up_and_come_down(fs, root, tmp_path):
    """put and get of a directory, find, glob, walk, du."""
    (tmp_path / "up" / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b c.bin", "sub/[x]#%.pt"):
        (tmp_path / "up" / name).write_bytes(name.encode())
    fs.put(str(tmp_path / "up") + "/", root, recursive=True)
    assert fs.find(root) == sorted(f"{root}/{name}" for name in ("a.txt", "sub/b c.bin", "sub/[x]#%.pt"))
    assert fs.glob(f"{root}/*.txt") == [f"{root}/a.txt"]
    assert fs.glob(f"{root}/**/*.bin") == [f"{root}/sub/b c.bin"]
    assert next((where, sorted(files)) for where, _, files in fs.walk(root)) == (root, ["a.txt"])
    assert fs.du(root) == sum(len(name) for name in ("a.txt", "sub/b c.bin", "sub/[x]#%.pt"))
    fs.get(root, str(tmp_path / "down"), recursive=True)
    assert (tmp_path / "down" / "sub" / "[x]#%.pt").read_bytes() == b"sub/[x]#%.pt"


def test_questions_are_answered(fs, root, bucket):
    """exists, isdir, isfile, info, ls with detail, checksum, modified."""
    fs.pipe(f"{root}/x", b"data")
    assert fs.exists(f"{root}/x")
    assert not fs.exists(f"{root}/none")
    assert fs.isdir(root)
    assert fs.isfile(f"{root}/x")
    info = fs.info(f"{root}/x")
    assert (info["size"], info["type"], info["name"]) == (4, "file", f"{root}/x")
    assert fs.ls(bucket.name) == [root]
    assert fs.modified(f"{root}/x").year > 2000
    assert fs.checksum(f"{root}/x")
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{root}/none")


def test_copying_moving_and_deleting(fs, root):
    """cp, mv, rm of one and of many, which is a batch request."""
    for number in range(25):
        fs.pipe(f"{root}/n{number}", b"x")
    fs.cp(f"{root}/n0", f"{root}/copy")
    fs.mv(f"{root}/n1", f"{root}/moved")
    assert fs.cat([f"{root}/copy", f"{root}/moved"]) == {f"{root}/copy": b"x", f"{root}/moved": b"x"}
    fs.rm(f"{root}/moved")
    fs.rm(root, recursive=True)
    assert fs.find(root) == []


def test_merging_and_attributes(fs, root):
    """merge is a composition; setxattrs and getxattr change and read metadata."""
    fs.pipe({f"{root}/a": b"1", f"{root}/b": b"2"})
    fs.merge(f"{root}/both", [f"{root}/a", f"{root}/b"])
    assert fs.cat(f"{root}/both") == b"12"
    fs.setxattrs(f"{root}/a", content_type="text/x", color="red")
    assert fs.getxattr(f"{root}/a", "color") == "red"
    assert fs.info(f"{root}/a")["contentType"] == "text/x"


def test_creating_only_what_is_not_there(fs, root):
    """mode="create" is refused when somebody was first."""
    fs.pipe(f"{root}/x", b"1", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe(f"{root}/x", b"2", mode="create")
    assert fs.cat(f"{root}/x") == b"1"


def test_buckets_are_directories(fs):
    """mkdir and rmdir of buckets."""
    fs.mkdir("gcsfs-made")
    assert "gcsfs-made" in [name.strip("/") for name in fs.ls("")]
    fs.rmdir("gcsfs-made")
    assert not fs.exists("gcsfs-made")


def test_versions_are_addressed_by_generation(fs, bucket, gcs, monkeypatch):
    """With version_aware, `name#generation` reads what was replaced."""
    import gcsfs

    bucket.versioning_enabled = True
    bucket.patch()
    aware = gcsfs.GCSFileSystem(
        token="anon", endpoint_url=gcs.endpoint, version_aware=True, skip_instance_cache=True
    )
    blob = bucket.blob("x")
    blob.upload_from_string("old")
    first = blob.generation
    blob.upload_from_string("new")
    assert aware.cat(f"{bucket.name}/x#{first}") == b"old"
    assert aware.cat(f"{bucket.name}/x") == b"new"
