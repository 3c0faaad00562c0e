"""Fresh environments: beside an existing Airflow, and in an image without one. `make packaging` runs this.

It fetches packages, so it is not part of `make check`. Pythons that are not there are skipped, visibly.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.11", "3.12", "3.13")
CONSTRAINTS = CHECKOUT / "constraints.txt"
TRAINING = """
import os, pathlib
made = pathlib.Path(os.environ["RESUME_DIR"], "checkpoint-1.tmp")
made.mkdir(parents=True)
(made / "weights").write_text("1")
made.rename(made.with_suffix(""))
"""
LOOK = """
import json
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
mine = "airflow_resume_provider"
print("FOUND" + json.dumps({
    "links": sorted(name for name in manager.extra_links_class_names if name.startswith(mine)),
    "decorators": sorted(name for name, _ in manager.taskflow_decorators.items()),
}))
"""
TYPED = """
from airflow.sdk import dag
from airflow_resume_provider.operators.train import ResumableTrainOperator


@dag(schedule=None)
def train() -> None:
    ResumableTrainOperator(
        task_id="train", project_id="my-project", region="us-central1", image="t:1",
        command=["python", "train.py"], checkpoint_root="gs://b/c", machine_type=MACHINE,
    )


train()
"""
FOLLOW = "[mypy]\nignore_missing_imports = True\n[mypy-airflow.*,google.*]\nfollow_imports = skip\n"


def run(*command: str | Path, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "RESUME"))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **env})
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place)
    return next(place.glob("*.whl"))


def interpreter(version: str) -> str:
    """A Python of that version on this machine: by name, or pyenv's."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [str(path) for path in sorted(home.glob(f"{version}.*/bin/python"))]
    named = shutil.which(f"python{version}")
    for candidate in (*known, *([named] if named else [])):
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"Python {version}."):
            return candidate
    pytest.skip(f"no Python {version} on this machine")


@pytest.mark.parametrize("version", PYTHONS)
def test_one_line_without_airflow(wheel: Path, version: str, tmp_path: Path) -> None:
    """`pip install WHEEL` by plain pip brings three libraries, and `resume-run` commits a checkpoint."""
    run(interpreter(version), "-m", "venv", tmp_path / "venv")
    there = tmp_path / "venv" / "bin"
    run(there / "pip", "install", "--quiet", "--only-binary", ":all:", wheel)
    listed = json.loads(run(there / "pip", "list", "--format", "json"))
    names = {entry["name"] for entry in listed} - {"pip", "setuptools", "typing_extensions"}
    assert names == {"airflow-resume-provider", "obstore", "tenacity", "crc32c"}
    lineage = f"file://{tmp_path}/lineage"
    inside = ("--attempt", "1", "--dir", tmp_path / "work", "--", there / "python", "-c", TRAINING)
    run(there / "resume-run", "--lineage", lineage, *inside)
    [attempt] = json.loads(run(there / "resume-run", "list", "--lineage", lineage))["attempts"]
    assert [(made["step"], made["state"]) for made in attempt["checkpoints"]] == [(1, "complete")]
    assert attempt["end"] == "finished"


def install(python: Path, *what: str | Path) -> None:
    run(UV, "pip", "install", "--quiet", "--python", python, *what)


def frozen(python: Path) -> dict[str, str]:
    lines = run(UV, "pip", "freeze", "--python", python).splitlines()
    return dict(line.replace(" @ ", "==", 1).split("==", 1) for line in lines)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", PYTHONS)
def test_beside_an_existing_airflow(wheel: Path, version: str, tmp_path: Path) -> None:
    """No version that was there moves; Airflow then knows the provider, its links, decorator and commands."""
    run(UV, "venv", "--quiet", "--python", interpreter(version), tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    existing = ("apache-airflow", "apache-airflow-providers-google", "mypy")
    install(python, "--only-binary", ":all:", "--constraint", CONSTRAINTS, *existing)
    before = frozen(python)
    install(python, f"{wheel}[airflow,local]")
    after = frozen(python)
    assert {name: after.get(name) for name in before} == before
    run(UV, "pip", "check", "--python", python)
    env = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    known_to_airflow(python, env)
    typed(python, tmp_path)


def known_to_airflow(python: Path, env: dict[str, str]) -> None:
    airflow = python.with_name("airflow")
    listed = json.loads(run(airflow, "providers", "list", "--output", "json", **env))
    assert "airflow-resume-provider" in {entry["package_name"] for entry in listed}
    [ours] = json.loads(
        run(airflow, "providers", "get", "airflow-resume-provider", "--full", "--output", "json", **env)
    )
    assert {"operators", "hooks", "triggers", "extra-links", "task-decorators"} <= set(ours)
    found = json.loads(run(python, "-c", LOOK, **env).partition("FOUND")[2])
    assert [link.rpartition(".")[2] for link in found["links"]] == ["CheckpointLink", "JobLink", "LogsLink"]
    assert "resumable_train" in found["decorators"]
    for command in ("resume-run", "resume-local"):
        assert "usage" in run(python.with_name(command), "--help").lower()


def typed(python: Path, tmp_path: Path) -> None:
    """`py.typed` is there: mypy checks a DAG against the installed package."""
    (tmp_path / "mypy.ini").write_text(FOLLOW)
    for machine, finds in (('"n1-standard-4"', 0), ("4", 1)):
        (tmp_path / "dag_file.py").write_text(TYPED.replace("MACHINE", machine))
        command = [python, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", tmp_path / "dag_file.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == finds, done.stdout
        assert ('"machine_type"' in done.stdout) == bool(finds), done.stdout
