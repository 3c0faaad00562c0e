"""What Airflow itself finds of this provider, asked through its own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
mine = "airflow_resume_provider"
print("FOUND" + json.dumps({
    "links": sorted(link for link in manager.extra_links_class_names if link.startswith(mine)),
    "decorators": sorted(name for name, _ in manager.taskflow_decorators.items()),
}))
"""


def run(home: Path, *command: str) -> str:
    """Run with an Airflow that has never been used before."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run([sys.executable, *command], env=env, check=True, capture_output=True, text=True)
    return done.stdout


def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    """`airflow providers list` shows the distribution with its version and description."""
    listed = run(tmp_path, "-m", "airflow", "providers", "list", "--output", "json")
    [ours] = [entry for entry in json.loads(listed) if entry["package_name"] == "airflow-resume-provider"]
    assert ours["version"]
    assert "checkpoints" in ours["description"]


def test_airflow_loads_links_and_decorator(tmp_path: Path) -> None:
    """The three extra links and `@task.resumable_train` are known to Airflow without any configuration."""
    output = run(tmp_path, "-c", SCRIPT)
    found = json.loads(output.partition("FOUND")[2])
    assert [link.rpartition(".")[2] for link in found["links"]] == ["CheckpointLink", "JobLink", "LogsLink"]
    assert "resumable_train" in found["decorators"]
