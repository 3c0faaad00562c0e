"""The stack's own HTTP interface below `/local/`: what the command line, the Python API and the page use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing import faults
from airflow_resume_provider.testing.batch import logs
from airflow_resume_provider.testing.batch.messages import TaskState, to_dict
from airflow_resume_provider.testing.batch.records import JobRecord
from airflow_resume_provider.testing.batch.service import BatchService
from airflow_resume_provider.testing.batch.vm import NEVER_PREEMPTED
from airflow_resume_provider.testing.faults import LOSS_KINDS

PAGE = Path(__file__).with_name("page.html")


class NoSuchJob(LookupError):
    """No job has that name or id."""


@dataclass(eq=False)
class Admin:
    """What can be asked of and done to a running stack, besides the API.

    Args:
        status: facts about the whole stack, for `resume-local status`.
        buckets: name, number of objects and bytes of each bucket.
    """

    service: BatchService
    status: Callable[[], dict[str, Any]]
    buckets: Callable[[], list[dict[str, Any]]]

    def record(self, job: str) -> JobRecord:
        """A job by full name, id or uid; of several with one id, the newest.

        Raises:
            NoSuchJob: there is none.
        """
        found = [
            record
            for name, record in self.service.records.items()
            if job in (name, name.rpartition("/")[2], record.uid)
        ]
        if not found:
            raise NoSuchJob(job)
        return max(found, key=lambda record: record.number)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, oldest first, in few words."""
        return [
            self.summary(record) for record in sorted(self.service.records.values(), key=lambda r: r.number)
        ]

    def summary(self, record: JobRecord) -> dict[str, Any]:
        """One job in few words."""
        run = self.service.runs.get(record.name)
        events = record.job.status.status_events
        created = record.job.create_time
        return {
            "name": record.name,
            "id": record.name.rpartition("/")[2],
            "uid": record.uid,
            "number": record.number,
            "state": record.state.name,
            "created": created.ToJsonString(),
            "updated": record.job.update_time.ToJsonString(),
            "labels": dict(record.job.labels),
            "tasks": dict(record.job.status.task_groups["group0"].counts),
            "vms": [{"where": vm.where, "metadata": vm.metadata.address} for vm in run.fleet.vms]
            if run
            else [],
            "last_event": events[-1].description if events else "",
        }

    def detail(self, job: str) -> dict[str, Any]:
        """One job with its message and its tasks."""
        record = self.record(job)
        tasks = [
            {"name": task.name, "state": TaskState(task.status.state).name, **to_dict(task)}
            for task in record.tasks
        ]
        return {**self.summary(record), "job": to_dict(record.snapshot()), "task_list": tasks}

    def log_directory(self, job: str) -> Path:
        """Where a job's task logs lie."""
        return self.service.site.root / "logs" / self.record(job).uid

    async def lose(self, job: str, kind: str = "preempt", **how: Any) -> list[str]:
        """Lose a job's VMs now; returns which. Waits until they are gone."""
        if kind not in LOSS_KINDS:
            raise InvalidInput(
                f"kind={kind!r} is not possible.",
                can=f"Use one of {', '.join(LOSS_KINDS)}.",
                parameter="kind",
                value=kind,
            )
        run = self.service.runs.get(self.record(job).name)
        if run and kind == "preempt" and run.fleet.provisioning in NEVER_PREEMPTED:
            raise InvalidInput(
                f"{run.record.name} runs on {run.fleet.provisioning} VMs, which are never preempted.",
                can="Submit it with provisioning_model SPOT, or lose its VMs in another way (--kind vanish).",
                parameter="kind",
                value=kind,
            )
        return [vm.where for vm in await run.fleet.lose(kind, **how)] if run else []

    def add_fault(self, data: dict[str, Any]) -> None:
        """Add faults to the plan that is at work."""
        for fault in faults.Plan.from_dict([data]).faults:
            self.service.site.injector.add(fault)

    def plan(self) -> dict[str, Any]:
        """The plan that is at work."""
        return self.service.site.injector.plan.to_dict()


def admin_handler(admin: Admin) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """A handler of `/` and of everything below `/local/`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await _answer(admin, request)
        except NoSuchJob as error:
            return web.json_response({"error": f"no job {error}"}, status=404)
        except (InvalidInput, ValueError, TypeError) as error:
            return web.json_response({"error": str(error)}, status=400)

    return handle


async def _answer(admin: Admin, request: web.BaseRequest) -> web.StreamResponse:
    path = request.path.removeprefix("/local/").strip("/")
    verb, _, rest = path.partition("/")
    if request.path == "/" and request.method == "GET":
        return web.Response(
            body=PAGE.read_bytes(), content_type="text/html", charset="utf-8", headers=_PAGE_HEADERS
        )
    if request.method == "GET" and verb in _READERS:
        return _READERS[verb](admin, request, rest)
    if request.method == "POST" and verb in _WRITERS:
        body = await request.json() if request.can_read_body else {}
        return web.json_response(await _WRITERS[verb](admin, rest, body))
    return web.json_response({"error": f"nothing at {request.method} {request.path}"}, status=404)


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def _read_jobs(admin: Admin, _request: web.BaseRequest, rest: str) -> web.Response:
    return web.json_response(admin.detail(rest) if rest else admin.jobs())


def _read_logs(admin: Admin, request: web.BaseRequest, rest: str) -> web.Response:
    task = int(request.query["task"]) if "task" in request.query else None
    directory = admin.log_directory(rest)
    if request.query.get("format") == "json":
        return web.json_response(list(logs.entries(directory, task)))
    return web.Response(text=logs.text(directory, task))


_READERS: dict[str, Callable[[Admin, web.BaseRequest, str], web.Response]] = {
    "status": lambda admin, _request, _rest: web.json_response(admin.status()),
    "buckets": lambda admin, _request, _rest: web.json_response(admin.buckets()),
    "jobs": _read_jobs,
    "logs": _read_logs,
    "faults": lambda admin, _request, _rest: web.json_response(admin.plan()),
}


async def _write_lose(admin: Admin, rest: str, body: dict[str, Any]) -> Any:
    return {"lost": await admin.lose(rest, **body)}


async def _write_faults(admin: Admin, _rest: str, body: dict[str, Any]) -> Any:
    if "faults" in body or "seed" in body:
        admin.service.site.injector.set_plan(faults.Plan.from_dict(body))
    else:
        admin.add_fault(body)
    return admin.plan()


async def _write_reset(admin: Admin, _rest: str, _body: dict[str, Any]) -> Any:
    await admin.service.reset()
    return admin.status()


_WRITERS: dict[str, Callable[[Admin, str, dict[str, Any]], Awaitable[Any]]] = {
    "lose": _write_lose,
    "faults": _write_faults,
    "reset": _write_reset,
}
