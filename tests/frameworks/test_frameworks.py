"""For each framework a small real training, killed three times, ends as if nothing had happened."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airflow_resume_provider.errors import ExitCode
from tests.integration.runtime_world import Running, World, until, world

TRAININGS = Path(__file__).with_name("trainings")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FRAMEWORKS = {
    "huggingface": [],
    "lightning": [],
    "dcp": TORCHRUN,
    "orbax": [],
    "keras": [],
}
KILLS = 3


def command(framework: str) -> list[str]:
    return [sys.executable, *FRAMEWORKS[framework], str(TRAININGS / f"train_{framework}.py")]


def sample_ids(runs: list[Running]) -> list[list[list[int]]]:
    return [[line["ids"] for line in run.said if "ids" in line] for run in runs]


@cache
def undisturbed(framework: str) -> tuple[str, list[list[int]]]:
    """The digest of the parameters and the sample ids of one run without anything of ours but the names."""
    with TemporaryDirectory() as root, world(Path(root)) as plain:
        run = plain.start(1, command(framework), environ={"TEST_STEP_SECONDS": "0"})
        assert run.wait(120) == 0, run.log
        return run.heard("digest"), sample_ids([run])[0]


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_neither_airflow_nor_the_batch_client_is_here() -> None:
    """The container side runs, and is tested, without them."""
    for name in ("airflow", "google.cloud.batch_v1"):
        with pytest.raises(ImportError):
            import_module(name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_three_kills_change_neither_parameters_nor_samples(spot: World, framework: str) -> None:
    """Bit-equal parameters, and at each step the sample ids of the uninterrupted training.

    Nobody names the format: `auto` finds it out.
    """
    dice = random.Random(framework)
    runs = []
    for attempt in range(1, KILLS + 2):
        spot.intend(attempt)
        run = spot.start(attempt, command(framework), directory="same")
        runs.append(run)
        if attempt <= KILLS:
            until(lambda r=run: r.commits() or r.process.poll() is not None, 60)
            time.sleep(dice.uniform(0.0, 0.15))  # the moment of the kill is the input here
            run.kill_machine()
        if attempt == 1:
            is_recognised(spot, framework)
    assert run.wait(120) == 0, run.log
    digest, ids = undisturbed(framework)
    assert run.heard("digest") == digest
    assert "Traceback" not in run.log
    for number, seen in enumerate(sample_ids(runs)):
        start = len(ids) - len(seen) if number == KILLS else first_step(spot, framework, number + 1)
        assert seen == ids[start : start + len(seen)], f"attempt {number + 1} from step {start}"


def first_step(spot: World, framework: str, attempt: int) -> int:
    """The number of batches that came before this attempt's first one."""
    started = spot.attempt(attempt).started
    assert started is not None
    return started.resumed_step * (8 if framework == "keras" else 1)


def is_recognised(spot: World, framework: str) -> None:
    """The manifest names the format that `auto` has found out, and every file in it is whole."""
    reference = spot.attempt(1).checkpoints[-1]
    checkpoint = spot.checkpoint(reference.uri)
    assert checkpoint.manifest.format == framework
    assert reference.step > 0
    checkpoint.verify()


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_the_callback_saves_and_stops_at_the_step_of_the_notice(spot: World, framework: str) -> None:
    """Not one step is lost to a notice, and the end is the uninterrupted one."""
    environ = {"TEST_CALLBACK": "1"}
    first = spot.start(1, command(framework), environ=environ, directory="same")
    until(lambda: first.commits() or first.process.poll() is not None, 60)
    first.terminate()
    assert first.wait(60) == ExitCode.PREEMPTED, first.log
    steps = len(sample_ids([first])[0])
    assert spot.attempt(1).checkpoints[-1].step == steps
    spot.intend(2)
    second = spot.start(2, command(framework), environ=environ, directory="same")
    assert second.wait(120) == 0, second.log
    digest, ids = undisturbed(framework)
    assert second.heard("digest") == digest
    assert sample_ids([second])[0] == ids[steps:]
    assert spot.end(2) == ("finished", 0)


def test_dcp_resumes_on_another_number_of_processes(spot: World) -> None:
    """Two shards are read by one process, with a visible warning and no refusal (DeepSpeed#7628)."""
    run = spot.start(1, command("dcp"), "--world-size", "2")
    until(lambda: run.commits() or run.process.poll() is not None, 60)
    run.kill_machine()
    spot.intend(2)
    alone = [sys.executable, *TORCHRUN[:-1], "1", str(TRAININGS / "train_dcp.py")]
    second = spot.start(2, alone, "--world-size", "1")
    assert second.wait(60) == 0, second.log
    assert second.heard("start") == spot.attempt(1).checkpoints[-1].step
    assert "number of processes was 2, is 1" in second.log
    assert second.heard("step") == 40
