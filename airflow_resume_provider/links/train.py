"""Links from a task to its job, its logs and its checkpoint; they show while the task is deferred, too.

Airflow asks for them on the worker after every leg, so they are made from what
that leg holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_resume_provider.batch import labels

if TYPE_CHECKING:
    from airflow_resume_provider.operators.submission import Shown

CONSOLE = "https://console.cloud.google.com"


def job_url(job_name: str) -> str:
    """Return the console's page of a job."""
    _, project, _, region, _, job = job_name.split("/")
    return f"{CONSOLE}/batch/jobsDetail/regions/{region}/jobs/{job}/details?project={project}"


def logs_url(job_name: str, training_id: str, attempt: int) -> str:
    """Return a query for the attempt's logs; Batch puts a job's labels on each entry of its log."""
    project = job_name.split("/")[1]
    query = f'labels.{labels.TRAINING}="{training_id}"\nlabels.{labels.ATTEMPT}="{attempt}"'
    return f"{CONSOLE}/logs/query;query={quote(query, safe='')}?project={project}"


def checkpoint_url(uri: str) -> str:
    """Return the console's page of a checkpoint; a local one has none."""
    scheme, _, path = uri.partition("://")
    return f"{CONSOLE}/storage/browser/{quote(path)}" if scheme == "gs" else ""


class _AttemptLink(BaseOperatorLink):
    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link of what the operator holds now; empty before it holds anything."""
        shown = getattr(operator, "shown", None)
        return self.url(shown) if shown is not None else ""

    def url(self, shown: Shown) -> str:
        """Return the link."""
        raise NotImplementedError


class JobLink(_AttemptLink):
    """To the newest attempt's job."""

    name = "Batch job"

    def url(self, shown: Shown) -> str:
        """Return the link."""
        return job_url(shown.job_name)


class LogsLink(_AttemptLink):
    """To the newest attempt's logs."""

    name = "Training logs"

    def url(self, shown: Shown) -> str:
        """Return the link."""
        return logs_url(shown.job_name, shown.training_id, shown.attempt)


class CheckpointLink(_AttemptLink):
    """To the newest checkpoint that is known."""

    name = "Checkpoint"

    def url(self, shown: Shown) -> str:
        """Return the link."""
        return checkpoint_url(shown.checkpoint_uri or shown.lineage)
