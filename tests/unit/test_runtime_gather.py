"""One checkpoint of several nodes' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_resume_provider.checkpoints import FileEntry
from airflow_resume_provider.checkpoints.store import open_store
from airflow_resume_provider.errors import UploadFailed
from airflow_resume_provider.runtime.gather import Gathering
from airflow_resume_provider.runtime.peers import say

PREFIX = "attempts/0001/checkpoints/000000"
NEEDS = {"step-5/__0_0.distcp": 10, "step-5/__1_0.distcp": 10}


def _collected(tmp_path: Path, *brought: FileEntry) -> list[str]:
    """Return what the first node gathers when the only other node brings these files."""
    store = open_store(f"file://{tmp_path}/lineage")
    gathering = Gathering(store, 2, "step-5", "s", NEEDS)
    gathering.announce(PREFIX, 5, ["step-5/.metadata", "step-5/__0_0.distcp"])
    part = {"files": [entry.to_dict() for entry in brought]}
    say(store, "attempts/0001/parts/000000/node-0001.json", part)
    return [entry.path for entry in gathering.collect(PREFIX)]


def _shard(name: str, size: int) -> FileEntry:
    return FileEntry(path=f"step-5/{name}", size=size, crc32c="AAAAAA==")


def test_a_checkpoint_whose_shards_all_came_is_complete(tmp_path: Path) -> None:
    """What the metadata names is on the first node, or was brought."""
    assert _collected(tmp_path, _shard("__1_0.distcp", 10)) == ["step-5/__1_0.distcp"]


@pytest.mark.parametrize("brought", [[], [_shard("__1_1.distcp", 10)], [_shard("__1_0.distcp", 9)]])
def test_a_shard_that_no_node_has_whole_makes_no_checkpoint(tmp_path: Path, brought: list[FileEntry]) -> None:
    """Every node has answered, but what they brought could not be loaded."""
    with pytest.raises(UploadFailed, match=r"no node has the whole of step-5/__1_0\.distcp"):
        _collected(tmp_path, *brought)
