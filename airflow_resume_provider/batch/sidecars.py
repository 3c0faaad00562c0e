"""The runnables around an unmodified image: restore, sync beside it, finish after it.

See docs/container-contract.md, "Beside an unmodified image".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_resume_provider.batch.jobs import (
    CONTAINER_DIR,
    HOST_DIR,
    RUN,
    TRAINING,
    ContainerSpec,
    ContractSpec,
    docker_options,
    environment,
    mounts,
)
from airflow_resume_provider.runtime import env

#: The host's directory belongs to root; the runtime image's own user could not write there.
AS_ROOT = "--user 0"
#: Of the 1024 that a container has by default: what uploads beside a training may take of a busy core.
LITTLE_CPU = 32


def runnables(container: ContainerSpec, contract: ContractSpec) -> list[dict[str, Any]]:
    """Return the five runnables; they share the host's directory and one environment."""
    training = {
        "image_uri": container.image,
        "commands": list(container.command),
        "volumes": mounts(container),
        **docker_options(container),
    }
    shared = environment(container, contract)
    shared["variables"].update(_places(contract))
    ours = _runtime(container)
    # Containers compete with equal weights, whatever the niceness in them.
    beside = {**ours(["sync"]), "options": f"{AS_ROOT} --cpu-shares {LITTLE_CPU}"}
    return [
        {"display_name": "restore", "container": ours(["restore", "--for-training"]), "environment": shared},
        {"display_name": "sync", "container": beside, "environment": shared, "background": True},
        {"display_name": TRAINING, "container": training, "environment": shared},
        # Batch does not tell a later runnable how an earlier one ended; that this one runs at all is
        # the evidence that the training exited 0.
        {"display_name": "succeeded", "container": ours(["finish", "--succeeded"]), "environment": shared},
        {"display_name": "finish", "container": ours(["finish"]), "environment": shared, "always_run": True},
    ]


def _runtime(container: ContainerSpec) -> Any:
    def ours(arguments: Sequence[str]) -> dict[str, Any]:
        return {
            "image_uri": container.runtime_image,
            "commands": [RUN, *arguments],
            "volumes": [f"{HOST_DIR}:{CONTAINER_DIR}"],
            "options": AS_ROOT,
        }

    return ours


def _places(contract: ContractSpec) -> dict[str, str]:
    """What the training must be told by environment: its container is no child of ours."""
    state = f"{CONTAINER_DIR}/{contract.training_id}.resume"
    return {
        env.STATE_DIR: state,
        env.METRICS_FILE: f"{state}/metrics.json",
        env.NOTICE_FILE: f"{state}/notice.json",
    }
