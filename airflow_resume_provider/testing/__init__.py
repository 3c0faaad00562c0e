"""The local stack: Batch, object store and metadata servers on loopback, for demos and tests.

::

    from airflow_resume_provider.testing import LocalStack, Plan, preempt

    with LocalStack(plan=Plan(preempt(job=1, after_seconds=5))) as stack:
        os.environ.update(stack.environment)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_resume_provider.testing.batch.settings import Settings
    from airflow_resume_provider.testing.faults import Plan, preempt
    from airflow_resume_provider.testing.stack import JobSummary, LocalStack

__all__ = ["JobSummary", "LocalStack", "Plan", "Settings", "preempt"]

_HOMES = {
    "JobSummary": "stack",
    "LocalStack": "stack",
    "Plan": "faults",
    "Settings": "batch.settings",
    "preempt": "faults",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
