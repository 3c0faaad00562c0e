"""A lineage that only a newer version reads, as the operator meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_resume_provider.operators.failures import TrainingFailed
from tests.unit.operator_world import World


def test_operator_fails_for_good(tmp_path):
    """The next attempt is not submitted over what a newer version has committed, nor tried by a retry."""
    world = World(tmp_path)
    step = world.begin()
    world.run(step, commits=2, code=50001)
    newest = max(Path(step.lineage.removeprefix("file://")).glob("attempts/0001/checkpoints/*/manifest.json"))
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "schema": 2}))
    with pytest.raises(TrainingFailed, match=r"newer version.*Upgrade"):
        world.proceed(step)
    assert len(world.batch.created) == 1
