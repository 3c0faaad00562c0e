"""How long it takes from a preempted job to the next one, and whose time that is.

A real Airflow runs a training that is preempted again and again. From the end of each job until the
operator's own code runs is the watcher's period and Airflow's own resuming; from there until the next
job is at the server is this project's. It begins with loading the Batch client, which the stock operator
does, with the Google provider's hook, at every parse of its DAG, before its code runs.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

ABOUT = "from a preempted job to the next one on a real Airflow, beyond Airflow's own resuming"
HERE = Path(__file__).parent
TARGET = 2.0


def run(quick: bool = False) -> list[str]:
    """Print each preemption's two parts and return the target if it was missed."""
    preemptions = 1 if quick else 4
    with tempfile.TemporaryDirectory() as scratch:
        notes = Path(scratch) / "resumed-at"
        jobs = _train(preemptions, notes)
        moments = [tuple(map(float, line.split())) for line in notes.read_text().splitlines()]
    ours = []
    for (before, after), (entered, loaded) in zip(itertools.pairwise(jobs), moments, strict=False):
        ours.append(_seconds(after.created) - entered)
        print(
            f"  watching and Airflow's resuming {entered - _seconds(before.updated):6.2f} s,"
            f" then {ours[-1]:6.2f} s to the next job, {loaded - entered:6.2f} s of it for loading"
        )
    if len(ours) != preemptions:
        raise RuntimeError(f"{len(ours)} preemptions of {preemptions} were followed by a job")
    middle = statistics.median(ours)
    said = "met" if middle <= TARGET else "MISSED"
    print(f"  -> median {middle:.2f} s, longest {max(ours):.2f} s, target ≤ {TARGET:g} s: {said}")
    return [] if middle <= TARGET or quick else [f"preemption to next job: {middle:.2f} s > {TARGET:g} s"]


def _train(preemptions: int, notes: Path) -> list[Any]:
    """Run the training to its end, and return its jobs."""
    from airflow_resume_provider.testing.airflow import LocalAirflow
    from airflow_resume_provider.testing.faults import Plan, preempt
    from airflow_resume_provider.testing.stack import LocalStack

    plan = Plan(preempt(job={"airflow_dag": "measured"}, after_commits=1, grace_seconds=1, times=preemptions))
    with LocalStack(plan=plan) as stack:
        root = HERE.parent
        env = {**stack.environment, "PYTHONPATH": str(root.parent), "RESUMED_AT": str(notes)}
        env["E2E_TRAINER"] = os.fspath(root / "e2e" / "chain_trainer.py")
        with LocalAirflow(HERE / "resuming_dags", env=env) as airflow:
            airflow.client.wait_for_dag("measured")
            run_id = airflow.client.trigger("measured")
            state = airflow.client.wait_for_run("measured", run_id, timeout=600)
            if state != "success":
                raise RuntimeError(airflow.client.log("measured", run_id, "train")[-4000:])
        return stack.jobs()


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
