"""The main job without a scheduler: operator, trigger and local stack under Airflow's own `dag.test()`."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_resume_provider.checkpoints import Checkpoint, StoreOptions
from airflow_resume_provider.testing import LocalStack, Plan, preempt
from airflow_resume_provider.testing.batch.settings import Settings

CHECKOUT = Path(__file__).parents[2]
TRAINER = CHECKOUT / "docker" / "trainer"
PLAN = Plan(
    preempt(job=1, after_commits=2, notice=False),
    preempt(job=2, while_restoring=True, grace_seconds=2.0),
)

# In an interpreter of its own: Airflow reads its settings when it is imported.
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from train_digits import dag_object
run = dag_object.test()
ti = next(ti for ti in run.get_task_instances() if ti.task_id == "train")
keys = ("checkpoint_uri", "checkpoint", "resumed_from", "attempts", "job_name", "return_value")
xcoms = {key: ti.xcom_pull(task_ids="train", key=key) for key in keys}
print("RESULT" + json.dumps({"state": run.state, "try_number": ti.try_number, "xcoms": xcoms}))
"""


def run_dag(home: Path, stack: LocalStack) -> dict:
    """Run the example DAG in an Airflow of its own and return what it came to."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "RESUME"))}
    env = {
        **ours,
        **stack.environment,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Airflow 3.2 runs its API in the same process, and that does not begin without one.
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        "RESUME_EXAMPLE_ARGUMENTS": "--steps 300 --step-seconds 0.02",
        "RESUME_EXAMPLE_POLL": "0.5",
        "RESUME_TRIGGER_MIN_SECONDS": "1",
    }
    airflow = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(airflow, env=env, check=True, capture_output=True)
    command = [sys.executable, "-c", SCRIPT, str(CHECKOUT / "dags")]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, cwd=home)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(found[0].removeprefix("RESULT"))


def digest(uri: str, stack: LocalStack) -> str:
    """Return the sha256 of the weights in a checkpoint."""
    checkpoint = Checkpoint.from_uri(uri, options=StoreOptions(emulator=stack.storage_endpoint))
    with checkpoint.as_directory() as directory:
        [weights] = directory.rglob("weights.npy")
        return hashlib.sha256(weights.read_bytes()).hexdigest()


def uninterrupted(folder: Path) -> dict:
    command = [sys.executable, str(TRAINER / "train.py"), "--steps", "300", "--save-every", "50"]
    env = {**os.environ, "RESUME_DIR": str(folder)}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(240)
@pytest.mark.skipif(
    version("apache-airflow").startswith("3.2."),
    reason="dag.test() of Airflow 3.2 does not start with current FastAPI: its own API lacks svcs_registry",
)
def test_the_same_flow_under_dag_test(tmp_path: Path) -> None:
    """Preempted twice, resumed twice, one try, and the weights of a training that was never interrupted."""
    settings = Settings(images={"*trainer*": {"/opt/trainer": str(TRAINER)}})
    with LocalStack(root=tmp_path / "stack", plan=PLAN, settings=settings) as stack:
        result = run_dag(tmp_path / "airflow", stack)
        jobs = [job.state for job in stack.jobs()]
        sha256 = digest(result["xcoms"]["checkpoint_uri"], stack)
    assert result["state"] == "success"
    assert result["try_number"] == 1
    assert jobs == ["FAILED", "FAILED", "SUCCEEDED"]
    xcoms = result["xcoms"]
    assert [entry["verdict"] for entry in xcoms["attempts"]] == ["preempted", "preempted", "succeeded"]
    assert xcoms["checkpoint"]["uri"] == xcoms["checkpoint_uri"] == xcoms["return_value"]["checkpoint_uri"]
    assert xcoms["return_value"]["step"] == 300
    assert sha256 == uninterrupted(tmp_path / "twin")["sha256"]
