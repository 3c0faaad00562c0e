"""The format of checkpoints and the choice among them. No Airflow, no Google Cloud Batch.

The public names are loaded when they are first used, so that parsing a DAG does
not pay for the store's client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_resume_provider.checkpoints.directory import Checkpoint
    from airflow_resume_provider.checkpoints.history import AttemptHistory, History
    from airflow_resume_provider.checkpoints.lineage import Lineage, Restored
    from airflow_resume_provider.checkpoints.manifest import FileEntry, Manifest
    from airflow_resume_provider.checkpoints.progress import Progress
    from airflow_resume_provider.checkpoints.prune import Pruned
    from airflow_resume_provider.checkpoints.records import (
        AttemptRecord,
        EndRecord,
        EndState,
        IntentRecord,
        TrainingRecord,
        VerdictRecord,
    )
    from airflow_resume_provider.checkpoints.reference import Reference
    from airflow_resume_provider.checkpoints.retention import Policy
    from airflow_resume_provider.checkpoints.select import Choice, PassedOver
    from airflow_resume_provider.checkpoints.store import StoreOptions

_HOME = {
    "AttemptHistory": "history",
    "AttemptRecord": "records",
    "Checkpoint": "directory",
    "Choice": "select",
    "EndRecord": "records",
    "EndState": "records",
    "FileEntry": "manifest",
    "History": "history",
    "IntentRecord": "records",
    "Lineage": "lineage",
    "Manifest": "manifest",
    "PassedOver": "select",
    "Policy": "retention",
    "Progress": "progress",
    "Pruned": "prune",
    "Reference": "reference",
    "Restored": "lineage",
    "StoreOptions": "store",
    "TrainingRecord": "records",
    "VerdictRecord": "records",
}

__all__ = [
    "AttemptHistory",
    "AttemptRecord",
    "Checkpoint",
    "Choice",
    "EndRecord",
    "EndState",
    "FileEntry",
    "History",
    "IntentRecord",
    "Lineage",
    "Manifest",
    "PassedOver",
    "Policy",
    "Progress",
    "Pruned",
    "Reference",
    "Restored",
    "StoreOptions",
    "TrainingRecord",
    "VerdictRecord",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
