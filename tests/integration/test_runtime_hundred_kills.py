"""The demo trainer, killed a hundred times at seeded random moments on each kind of store."""

from __future__ import annotations

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.runtime_world import Running, World, until, world

TRAINER = Path(__file__).parents[2] / "docker/trainer/train.py"
WORDS = ["--steps", "1000", "--save-every", "6", "--step-seconds", "0.004", "--keep", "3", "--hidden", "32"]
COMMAND = [sys.executable, str(TRAINER), *WORDS]
KILLS = int(os.environ.get("RESUME_TEST_KILLS", "100"))
TRAININGS = 4


def train_to_the_end(spot: World, name: str, kills: int, dice: random.Random) -> str:
    """Kill as many attempts as are given, then let one finish; return the digest of its weights."""
    uri = spot.uri.removesuffix("lineage") + name
    for attempt in range(1, kills + 2):
        run = spot.start(attempt, COMMAND, "--lineage", uri, directory=f"{name}-{attempt % 2}", intent=uri)
        if attempt <= kills:
            await_a_moment(run, dice)
            run.kill_machine()
    assert run.wait() == 0, run.log
    return str(run.heard("sha256"))


def await_a_moment(run: Running, dice: random.Random) -> None:
    """One kill in five comes while it starts and restores, the others while it trains and commits."""
    if dice.random() < 0.8:
        until(lambda: run.said or run.process.poll() is not None)
        time.sleep(dice.uniform(0.0, 0.5))  # the moment of the kill is the input here
    else:
        time.sleep(dice.uniform(0.0, 0.8))


@pytest.mark.parametrize("gcs", [False, True], ids=["file", "gcs"])
def test_a_hundred_kills_change_nothing(tmp_path: Path, gcs: bool) -> None:
    """Whatever the moment: start-up, restore, step, save, upload, commit, the weights' digest is the same."""
    with world(tmp_path, gcs=gcs) as spot, ThreadPoolExecutor(TRAININGS) as pool:
        undisturbed = train_to_the_end(spot, "undisturbed", 0, random.Random(0))
        each = [KILLS // TRAININGS] * TRAININGS
        futures = [
            pool.submit(train_to_the_end, spot, f"training-{n}", kills, random.Random(n))
            for n, kills in enumerate(each)
        ]
        assert [future.result() for future in futures] == [undisturbed] * TRAININGS
