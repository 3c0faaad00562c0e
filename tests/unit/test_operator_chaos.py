"""A worker may die between any two of its steps: there is never a second job, a lost job or a lost step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_resume_provider.checkpoints import Lineage
from airflow_resume_provider.errors import AttemptFailed
from airflow_resume_provider.operators.conductor import Finished
from tests.unit.operator_world import Crash, FakeBatch, FakeStateStore, FakeTaskInstance, World

EXAMPLES = int(os.environ.get("RESUME_CHAOS_EXAMPLES", "60"))
# Whatever touches the world outside; a worker may die before each, and after each.
STEPS = (
    (FakeBatch, "submit"),
    (FakeBatch, "cancel"),
    (FakeBatch, "look"),
    (FakeTaskInstance, "xcom_push"),
    (FakeStateStore, "set"),
    (Lineage, "ensure_training"),
    (Lineage, "write_intent"),
)
OUTCOMES = st.sampled_from(["finish", "preempt", "preempt before anything", "error", "platform", "runs on"])


class Fuse:
    """Burns down with each step, and then the worker is gone."""

    def __init__(self):
        self.left = None

    def step(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Crash

    def wrap(self, kind, name):
        original = getattr(kind, name)

        def stepped(*arguments, **named):
            self.step()
            done = original(*arguments, **named)
            self.step()
            return done

        return mock.patch.object(kind, name, stepped)


@pytest.fixture
def fuse():
    """A fuse in every step."""
    burning = Fuse()
    patches = [burning.wrap(kind, name) for kind, name in STEPS]
    for patch in patches:
        patch.start()
    yield burning
    for patch in patches:
        patch.stop()


def leg(world, fuse, left, work):
    """One leg: its step, or None when the worker died or the try failed."""
    fuse.left = left
    try:
        return work()
    except (Crash, AttemptFailed):
        world.next_try()
        return None
    finally:
        fuse.left = None
        assert len(world.batch.alive) <= 1, "two jobs are paid for"


def happen(world, step, outcome):
    """What becomes of the attempt's container."""
    if world.batch.jobs[step.job_name].over:
        return
    codes = {"finish": 0, "preempt": 50001, "error": 1, "platform": 50002}
    if outcome == "runs on":
        world.running(step)
    elif outcome == "preempt before anything":
        world.end(step, 50001)
    else:
        world.run(step, commits=1, code=codes[outcome])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    legs=st.lists(st.tuples(st.none() | st.integers(0, 30), OUTCOMES), max_size=12),
    stateful=st.booleans(),
)
def test_no_death_of_a_worker_costs_a_job_or_a_step(fuse, legs, stateful):
    """Any sequence of deaths and outcomes: one job at a time, one job an attempt, and the end is reached."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), state_store=stateful)
        step, furthest, ran = None, 0, set()
        for left, outcome in [*legs, *[(None, "finish")] * 3]:
            work = world.begin if step is None else lambda step=step: world.proceed(step)
            step = leg(world, fuse, left, work)
            if step is None:
                continue
            if isinstance(step, Finished):
                break
            assert world.ti.xcoms["job_name"] == step.job_name
            offered = (world.ti.xcoms["checkpoint"] or {}).get("step", 0)
            assert offered >= furthest, "a committed step was lost"
            happen(world, step, outcome)
            ran.add(step.job_name)
            if world.batch.jobs[step.job_name].over and outcome not in ("preempt before anything", "runs on"):
                furthest = max(furthest, _committed(step))
        assert isinstance(step, Finished)
        assert world.batch.alive == []
        assert ran <= set(world.batch.created)
        assert step.summary["attempts"] == len(world.batch.created), "an attempt without a job, or two of one"


def _committed(step):
    history = Lineage.open(step.lineage).history()
    return max((c.step for a in history.attempts for c in a.checkpoints), default=0)


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(left=st.integers(0, 30), cleared=st.booleans())
def test_a_death_at_each_step_of_a_resubmission(fuse, left, cleared):
    """Around the second attempt's birth in particular, with a clear or a retry after it."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        first = world.begin()
        world.run(first, commits=2, code=50001)
        fuse.left = left
        try:
            world.proceed(first)
        except Crash:
            pass
        finally:
            fuse.left = None
        world.next_try(cleared=cleared)
        step = world.begin()
        assert world.batch.alive == [step.job_name]
        assert world.ti.xcoms["checkpoint"]["step"] == 20
        assert len(world.batch.created) <= (3 if cleared else 2)
