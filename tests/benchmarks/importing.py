"""What a DAG file pays for importing an operator, at every parse."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ABOUT = "import of the operator against Airflow's own operator base and the stock Cloud Batch operator"
TARGET = 1.1
WAYS = {
    "airflow.sdk.BaseOperator": "from airflow.sdk import BaseOperator",
    "ours": "from airflow_resume_provider.operators.train import ResumableTrainOperator",
    "stock Cloud Batch": (
        "from airflow.providers.google.cloud.operators.cloud_batch import CloudBatchSubmitJobOperator"
    ),
}


def _seconds(statement: str) -> float:
    """CPU seconds: what is on the wall depends on who else is on the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(quick: bool = False) -> list[str]:
    """Print medians of interleaved runs and return the targets that were missed."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(2 if quick else 7):
        for name, statement in WAYS.items():
            times[name].append(_seconds(statement))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    base = medians["airflow.sdk.BaseOperator"]
    for name, seconds in medians.items():
        print(f"{name:<28}{seconds:8.2f} s{seconds / base:8.2f} x")
    missed = medians["ours"] > TARGET * base and not quick
    return [f"importing the operator <= {TARGET} x BaseOperator"] if missed else []
