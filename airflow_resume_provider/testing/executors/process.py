"""The `process` executor: runnables are local processes; nothing is isolated, and nothing has to be built."""

from __future__ import annotations

from typing import Any

from airflow_resume_provider.testing.executors.commands import (
    Place,
    container_command,
    container_mounts,
    host_mounts,
    script_command,
)
from airflow_resume_provider.testing.executors.machines import Command


class ProcessExecutor:
    """Runs script and container runnables as processes of this machine."""

    name = "process"

    def command(self, runnable: Any, place: Place, spec: Any, vm: str) -> Command:
        """The command that runs this runnable; the directories that it mounts are there afterwards."""
        if runnable.WhichOneof("executable") == "container":
            mounts = container_mounts(place.root, runnable.container, spec.volumes)
            command = container_command(runnable, place, mounts)
        else:
            mounts = host_mounts(place.root, spec.volumes, spec.runnables)
            command = script_command(runnable, place, mounts)
        for directory in mounts.values():
            place.root.joinpath(directory).mkdir(parents=True, exist_ok=True)
        return command

    def greeting(self, runnable: Any) -> str:
        """Say that images are ignored."""
        image = runnable.container.image_uri
        ignored = f"; image {image} is ignored, its commands run locally" if image else ""
        return f"process executor: runnables are local processes of this machine{ignored}"

    def end_command(self, vm: str) -> list[str]:
        """Nothing outlives a VM's processes."""
        return []
