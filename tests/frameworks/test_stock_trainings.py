"""What the frameworks' own packages ship runs unmodified in sidecar mode.

Lightning ships a command line and demonstration models with their data, Keras a whole training in the
documentation of its BackupAndRestore. The packages of PyTorch, Transformers, Accelerate, JAX and Orbax
ship no training that saves checkpoints and runs without a download.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime_world import World, until, world
from tests.integration.sidecar_job import Job

# The three lines of Lightning's own documentation; everything else are options of its command line.
STOCK = """
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel
LightningCLI(DemoModel, BoringDataModule)
"""


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def fit(job: Job, epochs: int) -> list[str]:
    options = {
        "seed_everything": "7",
        "ckpt_path": "last",
        "trainer.accelerator": "cpu",
        "trainer.max_epochs": str(epochs),
        "trainer.default_root_dir": str(job.directory),
        "trainer.logger": "false",
        "trainer.enable_progress_bar": "false",
        "trainer.callbacks": "ModelCheckpoint",
        "trainer.callbacks.dirpath": str(job.directory),
        "trainer.callbacks.save_last": "true",
    }
    return [sys.executable, "-c", STOCK, "fit", *(f"--{name}={value}" for name, value in options.items())]


def test_lightnings_own_demo_is_preempted_and_resumes(spot: World) -> None:
    """Killed without notice in the first job, at its end in the second; not a line of it is ours."""
    first = Job(spot, 1)
    assert first.ours("restore", "--for-training").wait() == 0
    sync, training = first.ours("sync"), first.training(fit(first, 100_000))
    until(lambda: sync.commits() >= 2, 120)
    for run in (sync, training):
        run.kill_machine()
    newest = spot.attempt(1).checkpoints[-1]
    spot.intend(2)
    second = Job(spot, 2)
    epochs = newest.step // 64 + 2
    code, result, training = second.run(fit(second, epochs))
    assert (code, result) == (0, 0), training.log
    assert f"Restored all states from the checkpoint at {second.directory}" in training.log
    assert spot.attempt(2).checkpoints[-1].step == epochs * 64
    assert spot.end(2) == ("finished", 0)


KERAS = Path(__file__).with_name("trainings") / "keras_docstring.py"


def test_the_example_in_keras_own_documentation_goes_on_in_another_job(spot: World) -> None:
    """Interrupted in its fifth epoch of ten, then the machine is gone: the next job trains the other six."""
    first = Job(spot, 1)
    backup = str(first.directory / "backup")
    assert first.ours("restore", "--for-training").wait() == 0
    sync, training = first.ours("sync"), first.training([sys.executable, str(KERAS), "first", backup])
    until(lambda: sync.commits() or training.process.poll() is not None, 60)
    until(lambda: spot.attempt(1).checkpoints[-1:] and spot.attempt(1).checkpoints[-1].step == 4)
    for run in (sync, training):
        run.kill_machine()
    spot.intend(2)
    second = Job(spot, 2)
    backup = str(second.directory / "backup")
    code, result, training = second.run([sys.executable, str(KERAS), "second", backup])
    assert (code, result) == (0, 0), training.log
    assert training.heard("epochs") == 6
    assert spot.end(2) == ("finished", 0)
