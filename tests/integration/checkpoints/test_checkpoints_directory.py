"""One download per node for any number of processes and threads, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, Raw, eventually, read_tree, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage
from airflow_resume_provider.errors import CheckpointBroken, CheckpointNotFound, StoreUnavailable
from airflow_resume_provider.testing.gcs import Fault

FILES = {"model.bin": b"m" * 300_000, "s/opt.bin": b"o"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESUME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def remote(gs_uri: str, tmp_path: Path, cache: Path, server: DisturbedServer) -> str:
    reference = Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    return reference.uri


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_a_reference_moves_no_bytes(remote: str, server: DisturbedServer) -> None:
    """R1, R2: naming a checkpoint asks nothing, its reference is one small read, bytes move on demand."""
    checkpoint = Checkpoint.from_uri(remote)
    assert server.requests == []
    assert len(str(checkpoint.reference.to_dict())) < 400
    assert [path.rpartition("%2F")[2] for _, path in server.requests] == ["manifest%2Ejson"]


def test_to_directory_takes_exactly_the_path(remote: str, tmp_path: Path) -> None:
    """R3: a path, as str or PathLike, is used as it is."""
    for number, kind in enumerate((str, Path)):
        target = tmp_path / f"target {number}"
        assert Checkpoint.from_uri(remote).to_directory(kind(target)) == target
        assert read_tree(target) == FILES


READ = """
import sys, time
from pathlib import Path
from airflow_resume_provider.checkpoints import Checkpoint
how, uri, mark, go = sys.argv[1:]
checkpoint = Checkpoint.from_uri(uri)
Path(mark).touch()
while not Path(go).exists():
    time.sleep(0.001)
if how == "to":
    print(checkpoint.to_directory(), flush=True)
else:
    with checkpoint.as_directory() as directory:
        assert (directory / "model.bin").stat().st_size == 300_000
        print(directory, flush=True)
        sys.stdin.read()
        assert (directory / "model.bin").read_bytes() == b"m" * 300_000
"""


def readers(how: str, uri: str, tmp_path: Path, count: int) -> list[subprocess.Popen[str]]:
    """Start processes that ask for the checkpoint at the same moment."""
    go = tmp_path / "go"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", READ, how, uri, str(tmp_path / f"ready-{number}"), str(go)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for number in range(count):
        eventually((tmp_path / f"ready-{number}").exists)
    go.touch()
    return started


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_eight_processes_one_download(
    remote: str, tmp_path: Path, server: DisturbedServer, cache: Path
) -> None:
    """R3: eight processes at once get the same directory, and each object is fetched once."""
    processes = readers("to", remote, tmp_path, 8)
    directories = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert {process.returncode for process in processes} == {0}
    assert len(directories) == 1
    assert read_tree(Path(directories.pop())) == FILES
    assert server.count("GET", "model%2Ebin") == 1
    assert server.count("GET", "opt%2Ebin") == 1


def test_last_reader_removes(remote: str, tmp_path: Path, server: DisturbedServer, cache: Path) -> None:
    """R4: eight readers share one temporary directory; only the last to leave removes it."""
    processes = readers("as", remote, tmp_path, 8)
    directory = Path({first_line(process) for process in processes}.pop())
    assert server.count("GET", "model%2Ebin") == 1
    for process in processes[:-1]:
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert directory.exists()
    processes[-1].communicate(timeout=60)
    assert left(cache) == []


def test_dead_reader_counts_no_longer(remote: str, tmp_path: Path, cache: Path) -> None:
    """A reader that was killed keeps nobody from removing the directory."""
    (process,) = readers("as", remote, tmp_path, 1)
    first_line(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left(cache) != []
    with Checkpoint.from_uri(remote).as_directory() as directory:
        assert read_tree(directory) == FILES
    assert left(cache) == []


def test_killed_downloader_is_replaced(
    remote: str, tmp_path: Path, cache: Path, server: DisturbedServer
) -> None:
    """When the process that downloads dies, a waiting one takes over and gets everything."""
    server.plan.add(Fault(bandwidth=200_000), method="GET", path="model", times=1)
    processes = readers("to", remote, tmp_path, 2)
    eventually(lambda: any("restoring" in name for name in left(cache)))
    # Only one of the two has the staging directory open; it is the one that asked for the bytes.
    busy = eventually(lambda: next((p for p in processes if _downloads(p.pid)), None))
    busy.send_signal(signal.SIGKILL)
    busy.communicate()
    (other,) = [process for process in processes if process is not busy]
    out, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert read_tree(Path(out.strip())) == FILES
    assert not [name for name in left(cache) if "restoring" in name]


def _downloads(pid: int) -> bool:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any("restoring" in str(link.readlink()) for link in links if os.path.lexists(link))


def test_late_reader_does_not_fetch_again(remote: str, cache: Path, server: DisturbedServer) -> None:
    """A reader that comes while another one reads shares its files untouched (ray#48726)."""
    with Checkpoint.from_uri(remote).as_directory() as early:
        before = (early / "model.bin").stat()
        with Checkpoint.from_uri(remote).as_directory() as late:
            assert late == early
        assert (early / "model.bin").stat() == before
    assert server.count("GET", "model%2Ebin") == 1
    assert left(cache) == []


def test_nested_and_threaded_use(remote: str, cache: Path) -> None:
    """Readers are counted one by one, not per process: no reader loses its files to another's end."""
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(3):
                barrier.wait(timeout=30)
                with Checkpoint.from_uri(remote).as_directory() as outer:
                    with Checkpoint.from_uri(remote).as_directory():
                        pass
                    assert read_tree(outer) == FILES
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert left(cache) == []


def test_reader_that_raises_releases(remote: str, cache: Path) -> None:
    """R5: the caller's own exception passes through, and nothing stays."""
    with pytest.raises(ZeroDivisionError), Checkpoint.from_uri(remote).as_directory():
        raise ZeroDivisionError
    assert left(cache) == []


def test_failing_download_leaves_nothing(
    remote: str, cache: Path, server: DisturbedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that fails leaves neither directory nor lock, and the next one works."""
    monkeypatch.setenv("RESUME_STORE_SECONDS", "1")
    for method in ("as", "to"):
        server.plan.add(Fault(status=503), method="GET", path="model")
        with pytest.raises(StoreUnavailable):
            _open(remote, method)
        server.calm()
        server.plan.add(Fault(corrupt=3), method="GET", path="model")
        with pytest.raises(CheckpointBroken):
            _open(remote, method)
        server.calm()
        assert left(cache) == []
    assert read_tree(Checkpoint.from_uri(remote).to_directory()) == FILES


def _open(uri: str, method: str) -> None:
    checkpoint = Checkpoint.from_uri(uri)
    if method == "to":
        checkpoint.to_directory()
        return
    with checkpoint.as_directory():
        pass


def test_local_checkpoint_passes_through(tmp_path: Path, cache: Path) -> None:
    """R4: a checkpoint on this machine is handed out where it lies, and never removed."""
    source = write_tree(tmp_path / "in", {**FILES, "empty/": b""})
    reference = Lineage.open(f"file://{tmp_path}/l").commit(source, attempt=1, step=1)
    with Checkpoint.from_uri(reference.uri).as_directory() as directory:
        assert directory == Path(reference.uri.removeprefix("file://"))
        assert {name for name in read_tree(directory) if name != "manifest.json"} == {*FILES, "empty/"}
    assert directory.exists()
    assert left(cache) == []
    assert Checkpoint.from_uri(reference.uri).to_directory() != directory


def test_absent_checkpoint(uri: str) -> None:
    """A checkpoint that is not there is a named error when it is first needed."""
    with pytest.raises(CheckpointNotFound):
        Checkpoint.from_uri(f"{uri}/attempts/0001/checkpoints/000000").to_directory()


def test_metadata(lineage: Lineage, tmp_path: Path, raw: Raw) -> None:
    """R9: metadata is JSON, empty by default; update merges, set replaces, non-JSON is a TypeError."""
    source = write_tree(tmp_path / "in", FILES)
    checkpoint = Checkpoint.from_uri(lineage.commit(source, attempt=1, step=1).uri)
    assert checkpoint.metadata == {}
    checkpoint.update_metadata({"a": 1, "b": 1})
    checkpoint.update_metadata({"b": 2})
    assert Checkpoint.from_uri(checkpoint.uri).metadata == {"a": 1, "b": 2}
    checkpoint.set_metadata({"c": 3})
    assert checkpoint.metadata == {"c": 3}
    for bad in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(TypeError):
            checkpoint.update_metadata(bad)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES


def test_shards_of_several_ranks(lineage: Lineage, tmp_path: Path) -> None:
    """R7: any rank may commit, and the shards of all ranks are one checkpoint or none."""
    source = write_tree(tmp_path / "in", {f"rank-{rank}.pt": bytes([rank]) for rank in range(4)})
    reference = lineage.commit(source, attempt=1, step=1, world_size=4)
    assert Checkpoint.from_uri(reference.uri).manifest.world_size == 4
    lineage.restore(2, tmp_path / "out")
    assert len(read_tree(tmp_path / "out")) == 4
