"""Data loaders and launchers fork after the parent has used the store: the child works all the same."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, eventually, read_tree, resume_run, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, StoreOptions
from airflow_resume_provider.errors import ObjectNotFound, StoreMisconfigured, StoreUnavailable, UploadFailed
from airflow_resume_provider.testing.gcs import Fault

FILES = {"model.bin": b"m" * 3_000_000, "s/opt.bin": b"o", "empty": b""}


@pytest.fixture
def remote(gs_uri: str, tmp_path: Path, server: DisturbedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RESUME_CACHE", str(tmp_path / "cache"))
    return Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1).uri


def in_a_fork(work: Callable[[], None]) -> int | None:
    """Run `work` in a forked child and return its exit code; a hang is killed and returns `None`."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def helpers() -> list[str]:
    """Return the helper processes on this machine whose helped process was forked from this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_text()
            marked = f"RESUME_CACHE={os.environ['RESUME_CACHE']}" in (entry / "environ").read_text()
        except OSError:
            continue
        if marked and "airflow_resume_provider.checkpoints.forked" in words:
            found.append(entry.name)
    return found


@pytest.mark.parametrize("how", ["the parent's object", "an object of its own"])
def test_download_in_a_forked_child(remote: str, tmp_path: Path, how: str) -> None:
    """After the parent has talked to the bucket, a forked child downloads with either object."""
    checkpoint = Checkpoint.from_uri(remote)
    assert checkpoint.reference.step == 1

    def child() -> None:
        own = checkpoint if how == "the parent's object" else Checkpoint.from_uri(remote)
        assert read_tree(own.to_directory(tmp_path / "out")) == FILES
        with own.as_directory() as directory:
            assert read_tree(directory) == FILES

    assert in_a_fork(child) == 0
    assert read_tree(tmp_path / "out") == FILES
    eventually(lambda: helpers() == [])


def test_everything_else_in_a_forked_child(remote: str, tmp_path: Path, gs_uri: str) -> None:
    """Commit, list, choose, prune and errors are the same in a forked child."""
    lineage = Lineage.open(gs_uri)
    lineage.history()

    def child() -> None:
        source = write_tree(tmp_path / "more", {"big.bin": os.urandom(20_000_000), "x": b"x"})
        reference = lineage.commit(source, attempt=1, step=2)
        assert lineage.choose(2, contents=True).reference == reference
        assert lineage.restore(2, tmp_path / "out").reference == reference
        assert read_tree(tmp_path / "out") == read_tree(source)
        assert lineage.prune(keep_last=1).deleted == (remote,)
        with pytest.raises(ObjectNotFound):
            lineage.store.read("no/such/object")
        with pytest.raises(UploadFailed):
            lineage.commit(source, attempt=1, step=3, should_stop=lambda: True)

    assert in_a_fork(child) == 0


def test_grandchild(remote: str, tmp_path: Path) -> None:
    """A child of the child has a helper of its own, and neither waits for the other."""
    assert Checkpoint.from_uri(remote).reference.step == 1

    def child() -> None:
        assert Checkpoint.from_uri(remote).manifest.step == 1
        inner = os.fork()
        if inner == 0:
            Checkpoint.from_uri(remote).to_directory(tmp_path / "out")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 0

    assert in_a_fork(child) == 0
    assert read_tree(tmp_path / "out") == FILES
    eventually(lambda: helpers() == [])


def test_store_that_does_not_answer_a_forked_child(
    remote: str, server: DisturbedServer, impatient: StoreOptions
) -> None:
    """Patience has the same end in a forked child: a named error, never a hang."""
    assert Checkpoint.from_uri(remote).reference.step == 1
    server.plan.add(Fault(status=503), method="GET")

    def child() -> None:
        with pytest.raises(StoreUnavailable):
            Checkpoint.from_uri(remote, options=impatient).to_directory()

    assert in_a_fork(child) == 0


def test_credentials_that_cannot_be_handed_over(remote: str) -> None:
    """A credential provider that no other process can have is said to be the reason."""
    assert Checkpoint.from_uri(remote).reference.step == 1
    options = StoreOptions(credential_provider=lambda: {"token": "x", "expires_at": None})

    def child() -> None:
        with pytest.raises(StoreMisconfigured, match="credential_provider"):
            assert Checkpoint.from_uri(remote, options=options).manifest

    assert in_a_fork(child) == 0


def test_forked_child_leaves_the_parents_directory(remote: str) -> None:
    """A child that ends inside the parent's `with` block has never been a reader."""
    parent = os.getpid()
    child = 0
    try:
        with Checkpoint.from_uri(remote).as_directory() as directory:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            assert read_tree(directory) == FILES
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert not directory.exists()


def test_living_child_keeps_no_lock(remote: str, tmp_path: Path) -> None:
    """A child that lives on neither keeps the directory nor the lock that its parent has left."""
    with Checkpoint.from_uri(remote).as_directory() as directory:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
    assert not directory.exists()
    assert list((tmp_path / "cache").iterdir()) == []
    os.close(write)
    os.waitpid(child, 0)


def test_command_line_needs_no_helper(remote: str) -> None:
    """A process that was not forked talks to the bucket itself."""
    assert resume_run("verify", remote).returncode == 0
    assert helpers() == []
