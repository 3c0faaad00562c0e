"""Reads a job in any of the forms that people have it in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from airflow_resume_provider.batch.schema import normalised, snake

# What `gcloud batch jobs describe` adds to what was submitted.
_OUTPUT = frozenset({"name", "uid", "status", "create_time", "update_time"})
_DURATIONS = frozenset({"max_run_duration", "timeout"})
# Members of `AllocationPolicy.ProvisioningModel`, which arrive as numbers from `MessageToDict` with integers.
_PROVISIONING = {0: "", 1: "STANDARD", 2: "SPOT", 3: "PREEMPTIBLE", 4: "RESERVATION_BOUND", 5: "FLEX_START"}


def plain(job: Any) -> dict[str, Any]:
    """Return a job as a dictionary of plain values in the client's spelling; raises `InvalidInput`."""
    found = _plain(job)
    given = {key: value for key, value in found.items() if snake(str(key)) not in _OUTPUT}
    whole: dict[str, Any] = normalised(given)
    for group in whole.get("task_groups") or ():
        group.pop("name", None)  # output only, too
    return whole


def _plain(value: Any, key: str = "") -> Any:
    if (message := _message(value)) is not None:
        return message
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if key in _DURATIONS and isinstance(value, Mapping):
        return f"{float(value.get('seconds', 0)) + float(value.get('nanos', 0)) / 1e9:g}s"
    if isinstance(value, Enum):
        return value.name
    if key == "provisioning_model" and isinstance(value, int):
        return _PROVISIONING.get(value, str(value))
    if isinstance(value, Mapping):
        return {name: _plain(inner, snake(str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _message(value: Any) -> Any:
    """Return a message of the client, or of protobuf itself, as a dictionary; None for anything else."""
    raw = getattr(type(value), "pb", None)
    if raw is None and not hasattr(value, "DESCRIPTOR"):
        return None
    from google.protobuf import json_format

    message = raw(value) if raw is not None else value
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
