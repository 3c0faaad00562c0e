"""Images, compose files and the `astro dev` template: right by the code, and started as far as it goes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_resume_provider.testing.airflow import COMPONENTS
from airflow_resume_provider.testing.executors import containers

CHECKOUT = Path(__file__).parents[2]
DOCKER = CHECKOUT / "docker"
DOCKERFILES = sorted(DOCKER.rglob("Dockerfile"))
ADDRESSES = {"BATCH_EMULATOR_HOST", "STORAGE_EMULATOR_HOST", "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"}
IMAGES = {"runtime": "localhost/resume-runtime:latest", "trainer": "localhost/trainer:latest"}


def compose(name: str) -> dict[str, Any]:
    return yaml.safe_load((DOCKER / name).read_text())


def dotenv(path: Path) -> dict[str, str]:
    """Read the plain subset of .env that every tool agrees on: NAME=value, no quotes, no expansion."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = dict(line.split("=", 1) for line in lines)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in pairs)
    assert not [value for value in pairs.values() if value.startswith(('"', "'")) or "$" in value]
    return pairs


def stack_command(name: str) -> list[str]:
    """Return how a compose file starts the local stack."""
    service = compose(name)["services"]["resume-local"]
    return [*service.get("entrypoint", []), *service["command"]]


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_airflow_service_knows_the_emulators(component: str) -> None:
    """Scheduler, API server, DAG processor and, above all, the triggerer have addresses and connection."""
    environment = compose("compose.yaml")["services"][component]["environment"]
    assert set(environment) >= ADDRESSES
    assert json.loads(environment["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"])["extra"]["is_anonymous"] is True
    assert len(environment["AIRFLOW__API_AUTH__JWT_SECRET"]) >= 64


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_astro_service_has_credentials(component: str) -> None:
    """The override mounts the Google credentials into each service that `astro dev` makes."""
    service = compose("astro/docker-compose.override.yml")["services"][component]
    assert service["volumes"] == ["${GCLOUD_CONFIG:-./gcloud}:/usr/local/airflow/gcloud:ro"]


def test_the_astro_environment_is_for_every_service() -> None:
    """`.env`, which `astro dev` gives to all services, holds addresses and a connection that parses."""
    pairs = dotenv(DOCKER / "astro" / ".env")
    assert set(pairs) >= ADDRESSES
    assert json.loads(pairs["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"])["conn_type"] == "google_cloud_platform"


def test_the_example_dags_find_their_variables() -> None:
    """Each Variable of airflow_settings.yaml is one that an example reads."""
    settings = yaml.safe_load((DOCKER / "astro" / "airflow_settings.yaml").read_text())["airflow"]
    read = set(
        re.findall(r"var\.value\.get\('(\w+)'", "".join(p.read_text() for p in CHECKOUT.glob("dags/*.py")))
    )
    assert {variable["variable_name"] for variable in settings["variables"]} <= read


def test_compose_runs_the_components_that_the_tests_run() -> None:
    """Each Airflow service's command is the subcommand that a local Airflow is started with."""
    services = compose("compose.yaml")["services"]
    for component, (subcommand, *_) in COMPONENTS.items():
        assert services[component]["command"] == [subcommand]


@pytest.mark.parametrize("name", ["compose.yaml", "astro/docker-compose.override.yml"])
def test_published_ports_stay_on_this_machine(name: str) -> None:
    """No compose file publishes a port beyond loopback: the local stack runs whatever it is told to."""
    for service in compose(name)["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", ["compose.yaml", "astro/docker-compose.override.yml"])
def test_the_stack_starts_with_the_composed_command(name: str, tmp_path: Path) -> None:
    """The local stack's own command line works as written, ports and address apart, and ends on a signal."""
    changes = {"/tmp/resume-local": str(tmp_path), "0.0.0.0": "127.0.0.1", "8790": "0", "8791": "0"}
    program, *arguments = [changes.get(word, word) for word in stack_command(name)]
    command = [str(Path(sys.executable).parent / program), *arguments]
    wanted = {"BATCH_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            wanted -= {line.removeprefix("export ").partition("=")[0]}
            if not wanted:
                process.send_signal(signal.SIGINT)
    assert not wanted


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_copy_what_exists_and_set_no_entrypoint(path: Path) -> None:
    """Every COPY source is in the build's context, and no ENTRYPOINT swallows the operator's command."""
    text = path.read_text()
    assert not re.search(r"^ENTRYPOINT", text, re.M)
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((CHECKOUT / source).exists() for source in sources), line


def test_the_runtime_image_is_not_root_by_default() -> None:
    """The runtime's image names another user than root."""
    users = re.findall(r"^USER (\S+)", (DOCKER / "runtime" / "Dockerfile").read_text(), re.M)
    assert users
    assert users[-1] not in {"0", "root"}


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run podman with what this machine needs."""
    command = ["podman", *containers.engine_arguments("podman"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def why_no_images() -> str:
    """Why the images cannot be run here; empty when they can."""
    if reason := containers.why_not("podman"):
        return reason
    missing = [image for image in IMAGES.values() if podman("image", "exists", image).returncode]
    return f"no image {' and '.join(missing)}: make images" if missing else ""


REASON = why_no_images()


@pytest.mark.skipif(bool(REASON), reason=f"no images to run: {REASON}")
@pytest.mark.parametrize(
    ("name", "words", "printed"),
    [
        ("runtime", ["resume-run", "--help"], "usage: resume-run"),
        ("runtime", ["id", "-u"], "10001"),
        ("trainer", ["resume-run", "--help"], "usage: resume-run"),
        ("trainer", ["python", "train.py", "--steps", "20"], '"event": "finished"'),
    ],
)
def test_images_run_what_the_operator_runs_in_them(name: str, words: list[str], printed: str) -> None:
    """Each image has its commands on the path, and the runtime's is not root."""
    options = ["--rm", "--pull=never", "--network=host", *containers.run_arguments("podman")]
    done = podman("run", *options, IMAGES[name], *words)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_no_containers_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    """Where there is no podman, the images' builder names it and Debian's packages, and fails."""
    command = [sys.executable, str(DOCKER / "images.py")]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "podman is not installed" in line
    assert "apt-get install" in line
