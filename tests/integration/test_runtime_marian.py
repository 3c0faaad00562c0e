"""The first of the founding behaviours: Marian, preempted twice, continues where it was."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from airflow_resume_provider.runtime.formats.marian import REQUIRED
from tests.integration.runtime_world import World, until

MARIAN = [sys.executable, "-S", "-E", str(Path(__file__).with_name("fake_marian.py"))]
MODE = {"PRETRAINED_MODEL_MODE": "init"}


def test_two_preemptions_in_a_row_and_then_the_end(spot: World) -> None:
    """Seeds M1–M12 in one run: fresh, resumed, resumed again, finished with the undisturbed digest."""
    command = [*MARIAN, "240", "80"]
    starts = []
    for attempt in (1, 2):
        spot.intend(attempt)
        run = spot.start(attempt, command, environ=MODE)
        until(lambda r=run: r.commits() or r.process.poll() is not None, 40)
        run.kill_machine()
        starts.append((run.heard("start"), run.heard("mode")))
    spot.intend(3)
    last = spot.start(3, command, environ=MODE)
    assert last.wait() == 0, last.log
    assert starts == [(0, "init"), (80, "continue")]
    assert (last.heard("start"), last.heard("mode")) == (160, "continue")
    digest = ""
    for step in range(1, 241):
        digest = hashlib.sha256(f"{digest}{step}".encode()).hexdigest()
    assert last.heard("digest") == digest
    newest = spot.checkpoint(spot.attempt(3).checkpoints[-1].uri).manifest
    assert newest.format == "marian"
    assert {entry.path for entry in newest.files} >= REQUIRED | {"vocab.ru.spm", "vocab.en.spm"}


def test_a_save_that_was_cut_short_is_not_taken(spot: World) -> None:
    """Killed in the middle of writing over the model: the commit before is what the next attempt gets."""
    run = spot.start(1, [*MARIAN, "1000", "80"])
    until(run.commits, 40)
    model = spot.root / "disk-1/work/model.npz"
    before = model.stat().st_mtime_ns
    until(lambda: model.stat().st_mtime_ns != before)
    run.kill_machine()
    spot.intend(2)
    second = spot.start(2, [*MARIAN, "90", "80"])
    assert second.wait() == 0, second.log
    assert second.heard("start") == 80
