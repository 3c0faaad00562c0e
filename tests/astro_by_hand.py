"""The `astro dev` template without containers: its files, commands and environment, started by hand.

::

    make astro-by-hand

What is different from `astro dev start`: host names are loopback, ports are free ones, the database is
SQLite, the trainer's files are found by the stack's settings and not by a mount. What the Astro CLI
itself adds (commands, settings) is repeated here from its template for Airflow 3, read in August 2026.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import yaml

from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import until
from airflow_resume_provider.testing.sessions import Sessions

CHECKOUT = Path(__file__).parents[1]
TEMPLATE = CHECKOUT / "docker" / "astro"
BIN = Path(sys.executable).parent
DAG = "train_digits"
# What the Astro CLI sets for every Airflow service, as far as it is not about hosts and the database.
ASTRO = {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor", "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"}
SHORTER = {"RESUME_EXAMPLE_ARGUMENTS": "--steps 300 --step-seconds 0.05", "RESUME_EXAMPLE_POLL": "1"}


def lay_out(project: Path) -> None:
    """Copy what the template's README says, to where it says."""
    shutil.copytree(TEMPLATE, project, dirs_exist_ok=True)
    (project / "dags").mkdir()
    shutil.copy(CHECKOUT / "dags" / f"{DAG}.py", project / "dags")
    shutil.copytree(CHECKOUT / "docker" / "trainer", project / "trainer")


def stack_command(project: Path, root: Path) -> list[str]:
    """Return the command of the service `resume-local`, on loopback; its mount becomes a setting."""
    service = yaml.safe_load((project / "docker-compose.override.yml").read_text())["services"][
        "resume-local"
    ]
    mounted = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
    settings = project / "by-hand.yaml"
    files = {inside: str(project / outside) for inside, outside in mounted.items()}
    settings.write_text(yaml.safe_dump({"images": {"*trainer*": files}}))
    here = {"/tmp/resume-local": str(root), "0.0.0.0": "127.0.0.1", "8790": "0", "8791": "0"}
    program, *arguments = [here.get(word, word) for word in service["command"]]
    return [str(BIN / program), *arguments, "--settings", str(settings)]


def addresses(log: str) -> dict[str, str] | None:
    """Return what a started stack prints, or None while it has not."""
    found = dict(re.findall(r"^export (\w+)=(\S+)$", log, re.M))
    return found if {"BATCH_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"} <= set(found) else None


def dotenv(project: Path, stack: Mapping[str, str]) -> dict[str, str]:
    """Return `.env`, with the stack's service name and ports replaced by where it listens here."""
    text = (project / ".env").read_text()
    text = text.replace("http://resume-local:8791", stack["STORAGE_EMULATOR_HOST"])
    text = text.replace("resume-local:8790", stack["BATCH_EMULATOR_HOST"])
    assert "resume-local:" not in text.replace("#", "")
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def load_settings(airflow: LocalAirflow, project: Path) -> None:
    """Create the Variables and pools of airflow_settings.yaml, as `astro dev start` does."""
    settings = yaml.safe_load((project / "airflow_settings.yaml").read_text())["airflow"]
    for variable in settings["variables"]:
        body = {"key": variable["variable_name"], "value": variable["variable_value"]}
        airflow.client.request("POST", "variables", json=body)
    for pool in settings["pools"]:
        body = {"name": pool["pool_name"], "slots": pool["pool_slot"]}
        airflow.client.request("POST", "pools", json={**body, "description": pool["pool_description"]})


def preempt_while_it_trains(airflow: LocalAirflow, run_id: str, storage: str, root: Path) -> None:
    """Take the machine away with the README's command, once there is a checkpoint to lose."""

    def job() -> str:
        objects = httpx.get(f"{storage}/storage/v1/b/resume/o", trust_env=False).json().get("items", [])
        committed = any(found["name"].endswith("/manifest.json") for found in objects)
        return str(airflow.client.xcoms(DAG, run_id, "train")["job_name"]) if committed else ""

    name = until("the first checkpoint", job, timeout=120).rpartition("/")[2]
    print(f"preempting {name}", flush=True)
    subprocess.run([BIN / "resume-local", "--root", str(root), "preempt", name], check=True)


def train(airflow: LocalAirflow, storage: str, root: Path) -> list[str]:
    """Run the example and return its attempts' verdicts."""
    airflow.client.wait_for_dag(DAG)
    run_id = airflow.client.trigger(DAG)
    preempt_while_it_trains(airflow, run_id, storage, root)
    state = airflow.client.wait_for_run(DAG, run_id, timeout=300)
    assert state == "success", airflow.client.log(DAG, run_id, "train")
    return [attempt["verdict"] for attempt in airflow.client.xcoms(DAG, run_id, "train")["attempts"]]


def main() -> int:
    """Start everything, preempt the example once, end everything; 0 if it went on and finished."""
    with tempfile.TemporaryDirectory(prefix="astro-") as place:
        project, root = Path(place, "my-trainings"), Path(place, "stack")
        lay_out(project)
        sessions = Sessions()
        try:
            log = Path(place, "resume-local.log")
            command = stack_command(project, root)
            sessions.start("resume-local", command, env=dict(os.environ), log=log, cwd=project)
            stack = until("the local stack", lambda: addresses(log.read_text()), timeout=60)
            environment = {**ASTRO, **dotenv(project, stack), **SHORTER}
            with LocalAirflow(project / "dags", env=environment, progress=print) as airflow:
                load_settings(airflow, project)
                verdicts = train(airflow, stack["STORAGE_EMULATOR_HOST"], root)
        finally:
            sessions.stop()
    print(json.dumps(verdicts))
    return 0 if verdicts == ["preempted", "succeeded"] else 1


if __name__ == "__main__":
    sys.exit(main())
