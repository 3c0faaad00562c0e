"""The trainings that the how-to pages show, with the real frameworks: killed, and gone on with."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime_world import Running, World, until, world

CHECKOUT = Path(__file__).parents[2]
TRAINERS = CHECKOUT / "dags" / "trainers"
SHARDED = Path(__file__).with_name("trainings") / "train_dcp.py"
BIN = Path(sys.executable).parent


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, gcs=True) as made:
        yield made


@pytest.mark.parametrize(("name", "framework"), [("hugging_face", "huggingface"), ("lightning", "lightning")])
def test_a_killed_training_goes_on(spot: World, name: str, framework: str) -> None:
    """The second attempt starts from the newest commit, in the framework's own words, and finishes."""
    command = [sys.executable, str(TRAINERS / f"train_{name}.py")]
    first = spot.start(1, command, "--format", framework, environ={"STEPS": "100000"})
    until(lambda: first.commits() or first.process.poll() is not None, 90)
    first.kill_machine()
    newest = spot.attempt(1).checkpoints[-1]
    spot.intend(2)
    steps = newest.step + 40
    second = spot.start(2, command, "--format", framework, environ={"STEPS": str(steps)})
    assert second.wait(90) == 0, second.log
    printed = (spot.root / "run-1.out").read_text()
    assert f"finished at step {steps}" in printed
    assert f"restored step {newest.step}" in second.log
    assert spot.attempt(2).checkpoints[-1].step == steps
    assert spot.end(2) == ("finished", 0)


def start_nodes(spot: World, attempt: int) -> list[Running]:
    """Two nodes with a disk of their own each, as Batch starts them, and the page's launch.sh."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["bash", str(TRAINERS / "launch.sh"), str(SHARDED)]
    shared = {"BATCH_NODE_COUNT": "2", "BATCH_MAIN_NODE_HOSTNAME": "127.0.0.1", "PROCESSES": "1"}
    shared |= {"MASTER_PORT": str(port), "PATH": f"{BIN}:{os.environ['PATH']}", "RESUME_FORMAT": "dcp"}
    return [
        spot.start(
            attempt,
            command,
            environ={**shared, "BATCH_NODE_INDEX": str(node)},
            directory=f"disk-{attempt}-{node}",
        )
        for node in (0, 1)
    ]


def test_sharded_checkpoints_of_two_nodes_make_one(spot: World) -> None:
    """Each node has its own shard only; the next attempt has them all, on both nodes."""
    first = start_nodes(spot, 1)
    until(lambda: first[0].commits() or first[0].process.poll() is not None, 90)
    for run in first:
        run.kill_machine()
    assert spot.attempt(1).checkpoints, first[0].log + first[1].log
    newest = spot.attempt(1).checkpoints[-1]
    names = {entry.path.rpartition("/")[2] for entry in spot.checkpoint(newest.uri).manifest.files}
    assert names >= {".metadata", "__0_0.distcp", "__1_0.distcp"}
    spot.intend(2)
    second = start_nodes(spot, 2)
    assert [run.wait(90) for run in second] == [0, 0], second[0].log + second[1].log
    assert second[0].heard("start") == newest.step
    assert second[0].heard("step") == 40
