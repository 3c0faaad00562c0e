"""Which job commits and which one restores, told from the requests that reach the object store."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from airflow_resume_provider.testing.batch.messages import FINISHED_JOB
from airflow_resume_provider.testing.batch.runner import JobRun
from airflow_resume_provider.testing.batch.service import BatchService

_CHECKPOINT = re.compile(
    r"(?P<lineage>.+)/attempts/(?P<attempt>\d+)/checkpoints/(?P<index>\d+)/(?P<file>.+)", re.DOTALL
)
_JSON_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/(?P<bucket>[^/]+)/o/(?P<name>[^?]+)")
_XML_OBJECT = re.compile(r"/(?P<bucket>[^/?]+)/(?P<name>[^?]+)")
_NOTICE_SECONDS = 2.0


class Lineages:
    """Tells the plan about commits and restores."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._commits: dict[str, set[str]] = {}

    async def object_created(self, bucket: str, name: str) -> None:
        """An object is there; a manifest is a commit."""
        match = _CHECKPOINT.fullmatch(name)
        if not match or match["file"] != "manifest.json":
            return
        for run in self._runs(f"gs://{bucket}/{match['lineage']}"):
            if _number(_variables(run).get("RESUME_ATTEMPT", "")) in (0, int(match["attempt"])):
                commits = self._commits.setdefault(run.record.uid, set())
                commits.add(name)
                if self._service.site.injector.on_commit(run.fleet, len(commits)):
                    await run.fleet.noticed(_NOTICE_SECONDS)

    async def object_read(self, method: str, path: str, query: Any) -> None:
        """A request is about to be answered; the bytes of a checkpoint's file mean a restore."""
        if method != "GET":
            return
        found = _JSON_OBJECT.match(path)
        if found and not (query.get("alt") == "media" or path.startswith("/download/")):
            return
        found = found or _XML_OBJECT.match(path)
        match = _CHECKPOINT.fullmatch(unquote(found["name"])) if found else None
        if not found or not match or match["file"] == "manifest.json":
            return
        for run in self._runs(f"gs://{found['bucket']}/{match['lineage']}"):
            if self._service.site.injector.on_restore(run.fleet):
                await run.fleet.noticed(_NOTICE_SECONDS)

    def _runs(self, lineage: str) -> list[JobRun]:
        return [
            run
            for run in self._service.runs.values()
            if run.record.state not in FINISHED_JOB
            and _variables(run).get("RESUME_LINEAGE", "").rstrip("/") == lineage.rstrip("/")
        ]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _variables(run: JobRun) -> dict[str, str]:
    """The plain variables of a job, wherever it gives them."""
    group = run.group
    found = dict(group.task_spec.environments) | dict(group.task_spec.environment.variables)
    for environment in group.task_environments:
        found |= dict(environment.variables)
    for runnable in group.task_spec.runnables:
        found |= dict(runnable.environment.variables)
    return found
