"""The `podman` and `docker` executors: container runnables run in real containers, scripts on the "host".

Containers share the machine's network, so loopback addresses (object store,
metadata server) are the same inside. What a container mounts lies in the VM's
own directory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing.executors.commands import (
    Place,
    base_environment,
    container_mounts,
    host_mounts,
    script_command,
)
from airflow_resume_provider.testing.executors.machines import Command

PULL = "RESUME_LOCAL_PULL"  # "missing": when images are pulled; never, missing or always
ENGINE_ARGUMENTS = (
    "RESUME_LOCAL_ENGINE_ARGS"  # global arguments of podman or docker, in place of the found ones
)
_LABEL = "resume-local-vm"
_PROBE_SECONDS = 60


def engine_arguments(engine: str) -> list[str]:
    """Global arguments that this machine needs: on mixed cgroups podman only runs with runc and cgroupfs."""
    given = os.environ.get(ENGINE_ARGUMENTS)
    if given is not None:
        return shlex.split(given)
    if engine == "podman" and _mixed_cgroups() and shutil.which("runc"):
        return ["--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    return []


def _mixed_cgroups() -> bool:
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def run_arguments(engine: str) -> list[str]:
    """Limits that this machine's containers need: on mixed cgroups podman cannot raise its own."""
    if engine == "podman" and _mixed_cgroups():
        return ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    return []


def why_not(engine: str) -> str:
    """Why containers cannot be run with this engine here; empty when they can."""
    if not shutil.which(engine):
        return f"{engine} is not installed"
    try:
        done = subprocess.run(
            [engine, *engine_arguments(engine), "info"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{engine} info does not answer within {_PROBE_SECONDS} s"
    lines = done.stderr.strip().splitlines() or ["no output"]
    return "" if done.returncode == 0 else f"{engine} info fails: {lines[-1]}"


class ContainerExecutor:
    """Runs container runnables with podman or docker.

    Args:
        engine: "podman" or "docker".
        pull: when images are pulled: never, missing or always; by default what RESUME_LOCAL_PULL says.

    Raises:
        InvalidInput: the engine cannot be used here, and why.
    """

    def __init__(self, engine: str, *, pull: str = "") -> None:
        if reason := why_not(engine):
            raise InvalidInput(
                f"executor={engine!r} cannot be used: {reason}.",
                can="Install it, or use executor='process', which needs no containers.",
                parameter="executor",
                value=engine,
            )
        self.name, self._pull = engine, pull
        self._base = [engine, *engine_arguments(engine)]

    def lacks(self, image: str) -> bool:
        """Whether the engine has no image of this name here."""
        command = [*self._base, "image", "inspect", image]
        return subprocess.run(command, capture_output=True, check=False).returncode != 0

    def command(self, runnable: Any, place: Place, spec: Any, vm: str) -> Command:
        """The command that runs this runnable."""
        if runnable.WhichOneof("executable") != "container":
            mounts = host_mounts(place.root, spec.volumes, spec.runnables)
            _make(mounts)
            return script_command(runnable, place, mounts)
        container = runnable.container
        mounts = container_mounts(place.root, container, spec.volumes)
        _make(mounts)
        argv = [*self._base, "run", *self._options(place, vm), *_volumes(container, mounts)]
        # Values travel in the engine's own environment: a command line is there for all to read.
        for name in place.variables:
            argv += ["--env", name]
        argv += shlex.split(container.options)
        if container.entrypoint:
            argv += ["--entrypoint", container.entrypoint]
        argv += [container.image_uri, *container.commands]
        env = {**base_environment(place.root), **_engine_environment(), **place.variables}
        return Command(argv, env, str(place.root), place.log, True, place.runnable, place.attempt)

    def _options(self, place: Place, vm: str) -> list[str]:
        options = [
            "--rm",
            "--label",
            f"{_LABEL}={vm}",
            "--pull",
            self._pull or os.environ.get(PULL, "missing"),
        ]
        options += [
            "--network",
            "host",
            "--name",
            f"{vm}-{place.runnable}-{place.attempt}-{os.urandom(3).hex()}",
        ]
        return [*options, *run_arguments(self.name)]

    def end_command(self, vm: str) -> list[str]:
        """What the VM's init runs at its end, so that containers die with it, whoever else has died."""
        remove = shlex.join([*self._base, "rm", "--force"])
        find = shlex.join([*self._base, "ps", "--all", "--quiet", "--filter", f"label={_LABEL}={vm}"])
        return ["/bin/sh", "-c", f'ids=$({find}) && [ -n "$ids" ] && {remove} $ids']

    def greeting(self, runnable: Any) -> str:
        """Say what runs the containers."""
        return f"{self.name} executor: containers share this machine's network"


def _make(mounts: Mapping[str, str]) -> None:
    for directory in mounts.values():
        Path(directory).mkdir(parents=True, exist_ok=True)


def _volumes(container: Any, mounts: Mapping[str, str]) -> list[str]:
    options = {}
    for volume in container.volumes:
        parts = volume.split(":")
        options[parts[1]] = parts[2] if len(parts) > 2 else ""
    found = []
    for inside, here in mounts.items():
        suffix = f":{options[inside]}" if options.get(inside) else ""
        found += ["--volume", f"{here}:{inside}{suffix}"]
    return found


def _engine_environment() -> dict[str, str]:
    """What the engine itself needs to find its storage and its daemon."""
    names = (
        "HOME",
        "XDG_RUNTIME_DIR",
        "DOCKER_HOST",
        "CONTAINER_HOST",
        "DOCKER_CONFIG",
        "REGISTRY_AUTH_FILE",
    )
    return {name: os.environ[name] for name in names if name in os.environ}
