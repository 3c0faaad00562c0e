"""Several nodes, several processes: one reference, one download per node, one checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_resume_provider.errors import ExitCode
from airflow_resume_provider.runtime.nodes import Node
from tests.integration.runtime_world import TOY, Running, World, until, world

TRAINER = [sys.executable, "-S", "-E", str(Path(__file__).with_name("nodes_trainer.py"))]
NODES = 2


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, gcs=True) as made:
        yield made


def start_nodes(spot: World, attempt: int, steps: int, *, meeting: str = "") -> list[Running]:
    """Each node has a disk of its own, and they start in the wrong order."""
    met = spot.root / (meeting or f"meeting-{attempt}")
    runs = []
    for node in reversed(range(NODES)):
        environ = {
            "BATCH_NODE_INDEX": str(node),
            "BATCH_NODE_COUNT": str(NODES),
            "RESUME_STORE_SECONDS": "10",
        }
        command = [*TRAINER, str(steps), str(met)]
        runs.insert(0, spot.start(attempt, command, environ=environ, directory=f"disk-{attempt}-{node}"))
    return runs


def test_shards_of_all_nodes_make_one_checkpoint(spot: World) -> None:
    """Killed and resumed: both nodes start from the same reference with all shards (accelerate#3010)."""
    first = start_nodes(spot, 1, 100000)
    until(lambda: first[0].commits() >= 2, 60)
    for run in first:
        run.kill_machine()
    newest = spot.attempt(1).checkpoints[-1]
    spot.intend(2)
    second = start_nodes(spot, 2, newest.step + 10)
    assert [run.wait(60) for run in second] == [0, 0], second[0].log + second[1].log
    assert [run.heard("source") for run in second] == [newest.uri] * NODES
    assert [run.heard("start") for run in second] == [newest.step] * NODES
    assert [run.heard("all") for run in second] == [[".metadata", "shard-0.txt", "shard-1.txt"]] * NODES
    assert spot.attempt(2).checkpoints[-1].step == newest.step + 10
    assert spot.end(2) == ("finished", 0)


@pytest.mark.parametrize("node", range(NODES))
def test_a_notice_to_one_node_stops_all_at_the_same_step(spot: World, node: int) -> None:
    """The other node hears of it through the lineage, and their last save is one checkpoint."""
    runs = start_nodes(spot, 1, 100000)
    until(lambda: runs[0].commits(), 60)
    runs[node].terminate()
    assert [run.wait() for run in runs] == [ExitCode.PREEMPTED] * NODES, runs[0].log + runs[1].log
    assert f"notice from node {node} (SIGTERM)" in runs[1 - node].log
    stopped = runs[0].heard("stopped")
    assert runs[1].heard("stopped") == stopped
    newest = spot.attempt(1).checkpoints[-1]
    assert newest.step == stopped
    names = {entry.path for entry in spot.checkpoint(newest.uri).manifest.files}
    assert {f"step-{stopped}/shard-{each}.txt" for each in range(NODES)} <= names
    assert spot.end(1)[0] == "preempted"


def test_the_same_attempt_may_start_again_on_all_nodes(spot: World) -> None:
    """Batch repeats a task on the same disks with the same number (nextflow#5223).

    All start from what the attempt itself had committed, and not one byte of that is written again.
    """
    first = start_nodes(spot, 1, 100000, meeting="once")
    until(lambda: first[0].commits() >= 2, 60)
    for run in reversed(first):
        run.kill_machine()
    there = spot.attempt(1).checkpoints
    second = start_nodes(spot, 1, there[-1].step + 20, meeting="again")
    assert [run.wait() for run in second] == [0, 0], second[0].log + second[1].log
    assert [run.heard("source") for run in second] == [there[-1].uri] * NODES
    assert [run.heard("start") for run in second] == [there[-1].step] * NODES
    assert spot.attempt(1).checkpoints[: len(there)] == there
    assert spot.attempt(1).checkpoints[-1].step == there[-1].step + 20
    for reference in spot.attempt(1).checkpoints:
        spot.checkpoint(reference.uri).verify()
    assert spot.end(1) == ("finished", 0)


def test_a_part_that_never_arrives_makes_no_checkpoint(spot: World) -> None:
    """One node is gone: what it did not hand in is incomplete, and the one before is used (ray#66225)."""
    runs = start_nodes(spot, 1, 100000)
    until(lambda: runs[0].commits() >= 1, 60)
    runs[1].process.send_signal(19)
    until(lambda: "did not reach the store" in runs[0].log, 60)
    for run in runs:
        run.kill_machine()
    choice = spot.lineage.choose(2, contents=True)
    assert choice.reference == spot.attempt(1).checkpoints[-1]
    names = {entry.path for entry in spot.checkpoint(choice.reference.uri).manifest.files}
    assert {f"step-{choice.reference.step}/shard-{node}.txt" for node in range(NODES)} <= names


def test_only_one_process_of_a_node_downloads_and_commits(spot: World) -> None:
    """A launcher that starts `resume-run` per rank: the others wait for the first and share its disk."""
    first = spot.start(1, [*TOY, "--steps", "10"])
    assert first.wait() == 0
    spot.intend(2)
    ranks = [
        spot.start(2, [*TOY, "--steps", "10"], environ={"LOCAL_RANK": str(rank)}, directory="shared")
        for rank in (1, 0)
    ]
    assert [run.wait() for run in ranks] == [0, 0], ranks[0].log
    assert [run.heard("start") for run in ranks] == [10, 10]
    assert len({run.heard("environment")["RESUME_FROM"] for run in ranks}) == 1
    assert (spot.root / "shared/work.resume-0-1/checkpoint.json").exists()


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({}, Node(0, 1, 0)),
        ({"BATCH_NODE_INDEX": "1", "BATCH_NODE_COUNT": "3"}, Node(1, 3, 0)),
        ({"BATCH_NODE_INDEX": "1", "BATCH_NODE_COUNT": "3", "LOCAL_RANK": "2"}, Node(1, 3, 2)),
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Node(2, 4, 1)),
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_LOCALID": "0"}, Node(1, 2, 0)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            Node(1, 2, 1),
        ),
    ],
)
def test_batch_and_launchers_say_which_node_this_is(environ: dict[str, str], node: Node) -> None:
    """Batch's own variables come first, then those of torchrun, Slurm and Open MPI."""
    assert Node.here(environ) == node
