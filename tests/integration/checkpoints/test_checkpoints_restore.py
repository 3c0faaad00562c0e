"""Restoring: exactly the committed bytes and names, whole or not at all, on both kinds of store."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, Raw, eventually, listed, read_tree, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, StoreOptions
from airflow_resume_provider.checkpoints.placing import Place
from airflow_resume_provider.errors import (
    CheckpointBroken,
    CheckpointNotFound,
    InvalidInput,
    NoSpace,
    ResumeError,
)
from airflow_resume_provider.testing.gcs import Fault

AWKWARD = {
    "a b%20c/ü.bin": b"1",
    "[0]": b"2",
    "#tag?.pt": b"3",
    "shard[0].bin": b"4",
    "x#1": b"5",
    ".hidden/.metadata": b"6",
    "empty": b"",
    "empty-directory/": b"",
    "deep/empty directory/": b"",
    "e\u0301": b"decomposed",
    "\u00e9": b"composed",
    "back\\slash": b"7",
    '*"<>|': b"8",
    "manifest.json": b"natural",
    "deeper/manifest.json": b"natural, too",
    "claims": b"9",
    "/".join(["p" * 99] * 3): b"300 characters",
}


def test_awkward_names_survive(lineage: Lineage, tmp_path: Path) -> None:
    """Names are byte-exact, with spaces, percent, brackets, dots, and empty things (arrow-rs#7148)."""
    lineage.commit(write_tree(tmp_path / "in", AWKWARD), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == AWKWARD


def test_paging(lineage: Lineage, tmp_path: Path) -> None:
    """2,500 files, more than one page of a listing, are all there (AutoMQ#2666)."""
    files = {f"{number % 7}/f{number:05d}": str(number).encode() for number in range(2500)}
    lineage.commit(write_tree(tmp_path / "in", files), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == files


def test_placeholder_objects_become_directories(gs_raw: Raw, tmp_path: Path) -> None:
    """A zero-byte object `ckpt/` beside `ckpt/a` is no obstacle (gcsfs#248)."""
    import requests

    files = {"ckpt/a": b"a"}
    gs_raw.checkpoint(1, 0, files)
    endpoint = os.environ["STORAGE_EMULATOR_HOST"]
    for name in ("attempts/", "attempts/0001/checkpoints/000000/", "attempts/0001/checkpoints/000000/ckpt/"):
        key = f"{gs_raw.uri.removeprefix('gs://b/')}/{name}".replace("/", "%2F")
        requests.put(f"{endpoint}/b/{key}", data=b"", timeout=10).raise_for_status()
    restored = Lineage.open(gs_raw.uri).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert read_tree(tmp_path / "out") == files


def test_objects_with_empty_segments_do_not_blind(gs_raw: Raw, tmp_path: Path) -> None:
    """An object like `…/000000//x`, which obstore cannot list, does not hide the checkpoint beside it."""
    import requests

    gs_raw.checkpoint(1, 0, {"a": b"a"})
    key = f"{gs_raw.uri.removeprefix('gs://b/')}/attempts/0001/checkpoints/000000//x".replace("/", "%2F")
    requests.put(f"{os.environ['STORAGE_EMULATOR_HOST']}/b/{key}", data=b"", timeout=10).raise_for_status()
    assert Lineage.open(gs_raw.uri).restore(2, tmp_path / "out").reference is not None


def test_overlong_component_is_a_clear_error(gs_raw: Raw, tmp_path: Path) -> None:
    """A name that the object store holds and no disk does is refused in words; nothing is left."""
    gs_raw.checkpoint(1, 0, {"n" * 300: b"x"})
    with pytest.raises(InvalidInput, match="longer than this file system allows"):
        Lineage.open(gs_raw.uri).restore(2, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil"])
def test_escaping_names_are_never_written(raw: Raw, tmp_path: Path, path: str) -> None:
    """A manifest that points out of its directory is passed over, and nothing is written outside."""
    raw.checkpoint(1, 0, {"a": b"good"})
    entry = {"path": path, "size": 1, "crc32c": "AAAAAA=="}
    raw.put(
        "attempts/0001/checkpoints/000001/manifest.json",
        {"schema": 1, "training_id": "t", "attempt": 1, "index": 1, "step": 1, "files": [entry]},
    )
    restored = Lineage.open(raw.uri).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert restored.reference.index == 0
    assert "not a relative path" in restored.choice.passed_over[0].reason
    assert not (tmp_path / "evil").exists()


def test_replaces_what_was_there(lineage: Lineage, tmp_path: Path) -> None:
    """Old files do not survive beside restored ones: a directory holds exactly the checkpoint."""
    lineage.commit(write_tree(tmp_path / "in", {"new": b"n"}), attempt=1, step=1)
    write_tree(tmp_path / "out", {"old": b"o", "new": b"other"})
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"new": b"n"}


def test_fresh_start_keeps_what_the_person_put_there(lineage: Lineage, tmp_path: Path) -> None:
    """Without a checkpoint the directory exists and is left as it is."""
    write_tree(tmp_path / "out", {"mine": b"m"})
    assert lineage.restore(1, tmp_path / "out").reference is None
    assert read_tree(tmp_path / "out") == {"mine": b"m"}
    assert lineage.restore(1, tmp_path / "new").directory.is_dir()


def test_fresh_start_after_a_restore_is_fresh(raw: Raw, tmp_path: Path) -> None:
    """What an earlier restore put there does not pass for a fresh start."""
    raw.checkpoint(1, 0, {"a": b"a"})
    lineage = Lineage.open(raw.uri)
    lineage.restore(2, tmp_path / "out")
    lineage.quarantine(f"{raw.uri}/attempts/0001/checkpoints/000000", "does not load")
    assert lineage.restore(2, tmp_path / "out").reference is None
    assert read_tree(tmp_path / "out") == {}


def test_second_restore_does_not_rewrite(lineage: Lineage, tmp_path: Path) -> None:
    """A second restore of the same checkpoint leaves the files of the first alone (ray#48726)."""
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    before = (tmp_path / "out" / "a").stat()
    lineage.restore(2, tmp_path / "out")
    assert (tmp_path / "out" / "a").stat() == before


def test_touched_directory_is_restored_again(lineage: Lineage, tmp_path: Path) -> None:
    """What a trainer has changed since is no longer the checkpoint."""
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a", "b/c": b"c"}), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    for change in (
        lambda d: (d / "a").write_bytes(b"b"),
        lambda d: (d / "b/c").unlink(),
        lambda d: (d / "z").touch(),
    ):
        change(tmp_path / "out")
        lineage.restore(2, tmp_path / "out")
        assert read_tree(tmp_path / "out") == {"a": b"a", "b/c": b"c"}


def test_nothing_beside_the_natural_files(lineage: Lineage, tmp_path: Path) -> None:
    """The restored directory holds no file of ours that a framework could trip over."""
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    assert listed(tmp_path / "out") == ["a"]
    assert sorted(name for name in listed(tmp_path) if "out" in name) == [".out.ready.json", "out"]


def test_walks_back_from_a_wrong_checksum(raw: Raw, tmp_path: Path) -> None:
    """M6: a file that turns out to be broken when it is fetched sends the restore one older."""
    raw.checkpoint(1, 0, {"a": b"good"})
    uri = raw.checkpoint(1, 1, {"a": b"evil"})
    raw.put("attempts/0001/checkpoints/000001/a", b"bits")
    restored = Lineage.open(raw.uri).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert restored.reference.index == 0
    assert restored.choice.passed_over[0].uri == uri
    assert "crc32c" in restored.choice.passed_over[0].reason
    assert read_tree(tmp_path / "out") == {"a": b"good"}


def test_failure_leaves_nothing(raw: Raw, tmp_path: Path) -> None:
    """A restore that fails leaves the directory as it was, and nothing beside it."""
    raw.checkpoint(1, 0, {"a": b"x" * 1000, "b": b"y"})
    raw.put("attempts/0001/checkpoints/000000/b", b"z")
    write_tree(tmp_path / "out" / "dir", {"mine": b"m"})
    uri = f"{raw.uri}/attempts/0001/checkpoints/000000"
    with pytest.raises(CheckpointBroken, match="crc32c"):
        Checkpoint.from_uri(uri).to_directory(tmp_path / "out" / "dir")
    assert read_tree(tmp_path / "out") == {"dir/mine": b"m"}


def test_explicit_source_that_is_broken_is_an_error(raw: Raw, tmp_path: Path) -> None:
    """A checkpoint that a person named and that cannot be used is an error, an empty root is not."""
    other = raw.checkpoint(1, 0, {"a": b"a"}, directory="elsewhere/attempts/0001/checkpoints/000000")
    raw.delete("elsewhere/attempts/0001/checkpoints/000000/a")
    lineage = Lineage.open(f"{raw.uri}/own")
    assert lineage.restore(1, tmp_path / "a").reference is None
    with pytest.raises(CheckpointBroken, match="a is missing"):
        lineage.restore(1, tmp_path / "b", fallback=other, explicit=True)
    with pytest.raises(CheckpointNotFound):
        lineage.restore(1, tmp_path / "b", fallback=f"{raw.uri}/nowhere", explicit=True)
    assert lineage.restore(1, tmp_path / "b", fallback=other).reference is None


def test_warm_start_begins_at_index_zero(raw: Raw, tmp_path: Path) -> None:
    """R6: a new training that starts from another one's checkpoint counts from 0, and goes on counting."""
    other = raw.checkpoint(3, 41, {"a": b"a"}, directory="x/attempts/0003/checkpoints/000041")
    lineage = Lineage.open(f"{raw.uri}/own")
    restored = lineage.restore(1, tmp_path / "out", fallback=other, explicit=True)
    assert restored.reference is not None
    assert restored.reference.index == 41
    assert lineage.commit(tmp_path / "out", attempt=1, step=1).index == 0
    assert lineage.commit(tmp_path / "out", attempt=1, step=2).index == 1
    assert lineage.commit(tmp_path / "out", attempt=2, step=3).index == 2


def test_too_little_space_is_found_first(raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room is an error with both figures before a byte is fetched (open_lm#154)."""
    raw.checkpoint(1, 0, {"a": b"x" * 5000})
    usage = type("Usage", (), {"free": 4000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(NoSpace) as caught:
        Lineage.open(raw.uri).restore(2, tmp_path / "out")
    assert caught.value.free == 4000
    assert caught.value.required >= 5000
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_disk_while_restoring(raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC on the way is the same named error, and what was downloaded is gone (SimpleTuner#2353)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        raw.checkpoint(1, 0, {"a": os.urandom(3 << 20)})
        monkeypatch.setattr("airflow_resume_provider.checkpoints.restore._check_space", lambda *_: None)
        with pytest.raises(NoSpace):
            Lineage.open(raw.uri).restore(2, disk / "out")
        assert not [name for name in listed(disk) if "restoring" in name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("broken", ["b" * 300, "b"], ids=["name", "size"])
def test_a_large_file_that_cannot_be_made_is_an_error(
    raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A name that the disk does not take, a size that it does not: never a checkpoint with a hole."""
    if broken == "b" * 300 and not raw.uri.startswith("gs://"):
        broken = "b"  # no such name can lie in a directory store
    raw.checkpoint(1, 0, {"a": os.urandom(9000), broken: os.urandom(5000), "c": os.urandom(9000)})
    whole = os.ftruncate

    def refused(fd: int, length: int) -> None:
        if length == 5000:
            raise OSError(28, "No space left on device")
        whole(fd, length)

    monkeypatch.setattr(os, "ftruncate", refused)
    options = StoreOptions(range_bytes=4000)
    with pytest.raises((NoSpace, InvalidInput)):
        Lineage.open(raw.uri, options=options).restore(2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("is_work", [True, False])
def test_a_directory_of_an_images_layer_is_filled(raw: Raw, tmp_path: Path, is_work: bool) -> None:
    """What a container image brings cannot be renamed as a whole; it is replaced all the same."""
    layers = {name: tmp_path / name for name in ("lower", "upper", "work", "merged")}
    for path in layers.values():
        path.mkdir()
    write_tree(layers["lower"] / "out", {"old/deep": b"o", "old2": b"p"} if is_work else {})
    (layers["lower"] / "out").mkdir(exist_ok=True)
    said = ",".join(f"{name}dir={layers[name]}" for name in ("lower", "upper", "work"))
    out = layers["merged"] / "out"
    if subprocess.run(
        ["mount", "-t", "overlay", "-o", said, "overlay", str(layers["merged"])], capture_output=True
    ).returncode:
        pytest.skip("cannot mount an overlay here")
    try:
        raw.checkpoint(1, 0, {"a/b": b"x", "c": b"y"})
        lineage = Lineage.open(raw.uri)
        lineage.restore(2, out)
        assert read_tree(out) == {"a/b": b"x", "c": b"y"}
        before = (out / "a/b").stat()
        lineage.restore(2, out)
        assert (out / "a/b").stat() == before
        kept = [read_tree(path) for path in layers["merged"].glob("out.replaced-*")]
        assert kept == ([{"old/deep": b"o", "old2": b"p"}] if is_work else [])
        assert not [name for name in listed(layers["merged"]) if "restoring" in name]
    finally:
        subprocess.run(["umount", str(layers["merged"])], check=True)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS])
@pytest.mark.parametrize("there", [{}, {"old": b"o"}], ids=["nothing", "work"])
def test_where_directories_cannot_be_renamed_files_are(
    raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, there: dict[str, bytes]
) -> None:
    """Some mounted buckets rename files and no directories (gcsfuse#324)."""
    whole = os.rename

    def refused(source: object, target: object, **options: object) -> None:
        if Path(str(source)).is_dir():
            raise OSError(code, os.strerror(code), str(source))
        whole(source, target, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "rename", refused)
    monkeypatch.setattr("airflow_resume_provider.checkpoints.placing._exchange", lambda *_: False)
    raw.checkpoint(1, 0, {"a/b": b"x", "c": b"y"})
    if there:
        write_tree(tmp_path / "out", there)
    lineage = Lineage.open(raw.uri)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"a/b": b"x", "c": b"y"}
    kept = [read_tree(path) for path in tmp_path.glob("out.replaced-*")]
    assert kept == ([there] if there else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_mount_point_is_filled_inside(raw: Raw, tmp_path: Path) -> None:
    """A mount point cannot be renamed; it is filled, and what was in it is set aside inside."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=9m", "none", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount here")
    try:
        raw.checkpoint(1, 0, {"a/b": b"x"})
        write_tree(disk, {"old": b"o"})
        lineage = Lineage.open(raw.uri)
        lineage.restore(2, disk)
        assert {name for name in read_tree(disk) if not name.startswith(".resume")} == {"a/b"}
        assert [path.read_bytes() for path in disk.glob(".resume-replaced-*/old")] == [b"o"]
        before = (disk / "a/b").stat()
        lineage.restore(2, disk)
        assert (disk / "a/b").stat() == before
        again = lineage.commit(disk, attempt=2, step=1)
        assert [entry.path for entry in Checkpoint.from_uri(again.uri).manifest.files] == ["a/b"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_swap_without_exchange(lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system cannot exchange two names, the directory is renamed aside instead."""
    monkeypatch.setattr("airflow_resume_provider.checkpoints.placing._exchange", lambda *_: False)
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)
    write_tree(tmp_path / "out", {"old": b"o"})
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"a": b"a"}
    assert sorted(listed(tmp_path)).count("out") == 1


def test_symlinked_directory_is_followed(lineage: Lineage, tmp_path: Path) -> None:
    """A link to the directory stays a link; what it points to is replaced."""
    lineage.commit(write_tree(tmp_path / "in", {"a": b"a"}), attempt=1, step=1)
    write_tree(tmp_path / "real", {"old": b"o"})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lineage.restore(2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_tree(tmp_path / "real") == {"a": b"a"}


RESTORE = """
import sys
from airflow_resume_provider.checkpoints import Lineage
Lineage.open(sys.argv[1]).restore(2, sys.argv[2])
"""


@pytest.mark.parametrize("kills", [12])
def test_killed_at_any_moment(uri: str, tmp_path: Path, server: DisturbedServer, kills: int) -> None:
    """After kill -9 at any moment the directory is old or new as a whole, and the next restore is right."""
    rng = random.Random(3)
    files = {f"{n % 5}/{n}": rng.randbytes(200_000) for n in range(60)}
    Lineage.open(uri).commit(write_tree(tmp_path / "in", files), attempt=1, step=1)
    old = {"old": b"o"}
    server.plan.add(Fault(bandwidth=2_000_000), method="GET")
    for _ in range(kills):
        write_tree(tmp_path / "out", old) if not (tmp_path / "out").exists() else None
        process = subprocess.Popen([sys.executable, "-c", RESTORE, uri, str(tmp_path / "out")])
        try:
            process.wait(timeout=0.3 + rng.random() * 0.7)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert read_tree(tmp_path / "out") in (old, files)
    server.calm()
    Lineage.open(uri).restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == files
    assert not [name for name in listed(tmp_path) if "restoring" in name]


def test_half_a_ready_mark_goes_and_nothing_else(raw: Raw, tmp_path: Path) -> None:
    """What a restore that was killed while it wrote its mark has left is removed by the next one."""
    raw.checkpoint(1, 0, {"a": b"x"})
    for name in (".out.ready.json.0123abcd", ".out.ready.json.backup"):
        (tmp_path / name).write_text("{")
    Lineage.open(raw.uri).restore(2, tmp_path / "out")
    marks = {name for name in listed(tmp_path) if name.startswith(".out")}
    assert marks == {".out.ready.json", ".out.ready.json.backup"}


def test_two_restores_share_one_download(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> None:
    """Two that start together fetch each object once, and the second does not rewrite (openpi#846)."""
    lineage = Lineage.open(gs_uri)
    lineage.commit(write_tree(tmp_path / "in", {"a": b"x" * 100_000}), attempt=1, step=1)
    server.requests.clear()
    failures: list[BaseException] = []

    def restore() -> None:
        try:
            Lineage.open(gs_uri).restore(2, tmp_path / "out")
        except ResumeError as error:
            failures.append(error)

    threads = [threading.Thread(target=restore) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert server.count("GET", "000000%2Fa") == 1


def test_large_files_are_ranged(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> None:
    """A file larger than a range comes in several requests, whose checksums combine to the file's."""
    options = StoreOptions(range_bytes=1 << 20, chunk_bytes=1 << 18)
    data = random.Random(1).randbytes(5_300_001)
    lineage = Lineage.open(gs_uri, options=options)
    lineage.commit(write_tree(tmp_path / "in", {"big": data}), attempt=1, step=1)
    server.requests.clear()
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"big": data}
    assert server.count("GET", "000000%2Fbig") == 6


def test_lock_of_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    """A process that dies while it holds the place leaves nothing to wait for."""
    code = (
        "import sys,time\nfrom airflow_resume_provider.checkpoints.placing import Place\n"
        "with Place(sys.argv[1]).locked():\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.communicate()
    entered = threading.Event()

    def enter() -> None:
        with Place(tmp_path / "out").locked():
            entered.set()

    threading.Thread(target=enter).start()
    assert eventually(entered.is_set)
