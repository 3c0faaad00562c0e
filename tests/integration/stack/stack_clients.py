"""Unmodified Batch clients over each transport behind one call, and short ways to write jobs down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import batch_v1
from google.cloud.batch_v1.services.batch_service.transports import (
    BatchServiceGrpcAsyncIOTransport,
    BatchServiceGrpcTransport,
)

PARENT = "projects/local-project/locations/us-central1"
TRANSPORTS = ("grpc", "grpc_asyncio", "rest")
PAGED = ("list_jobs", "list_tasks")
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
State = batch_v1.JobStatus.State
TaskState = batch_v1.TaskStatus.State


def name_of(job_id: str) -> str:
    """Full name of a job of the project that the tests use."""
    return f"{PARENT}/jobs/{job_id}"


class Client:
    """A Batch client; `client.get_job(name=…)` is the same call over every transport.

    Pagers are read to their end, long-running operations are waited for.
    """

    def __init__(self, endpoint: str, transport: str = "grpc") -> None:
        self.transport = transport
        self._runner = asyncio.Runner() if transport == "grpc_asyncio" else None
        if transport == "rest":
            self.raw: Any = batch_v1.BatchServiceClient(
                transport="rest",
                credentials=AnonymousCredentials(),
                client_options=ClientOptions(api_endpoint=f"http://{endpoint}"),
            )
        elif transport == "grpc":
            self._channel: Any = grpc.insecure_channel(endpoint)
            self.raw = batch_v1.BatchServiceClient(transport=BatchServiceGrpcTransport(channel=self._channel))
        else:
            self._run(self._connect(endpoint))

    def __repr__(self) -> str:
        return f"<Client {self.transport}>"

    async def _connect(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint)
        transport = BatchServiceGrpcAsyncIOTransport(channel=self._channel)
        self.raw = batch_v1.BatchServiceAsyncClient(transport=transport)

    def _run(self, work: Any) -> Any:
        assert self._runner is not None
        return self._runner.run(work)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            options = {key: request.pop(key) for key in ("metadata", "timeout") if key in request}
            options.setdefault("timeout", 30.0)
            if self._runner:
                return self._run(self._call_async(method, request, options))
            answer = getattr(self.raw, method)(request=request, retry=None, **options)
            if method in PAGED:
                return list(answer)
            return answer.result(timeout=30) if method in ("delete_job", "cancel_job") else answer

        return call

    async def _call_async(self, method: str, request: Any, options: Any) -> Any:
        answer = await getattr(self.raw, method)(request=request, retry=None, **options)
        if method in PAGED:
            return [item async for item in answer]
        return await answer.result(timeout=30) if method in ("delete_job", "cancel_job") else answer

    def begin(self, method: str, **request: Any) -> Any:
        """The operation of `delete_job` or `cancel_job`, not waited for."""
        if not self._runner:
            return getattr(self.raw, method)(request=request).operation

        async def call() -> Any:
            return (await getattr(self.raw, method)(request=request)).operation

        return self._run(call())

    def page(self, method: str, **request: Any) -> Any:
        """The first page only."""
        if self._runner:

            async def call() -> Any:
                pager = await getattr(self.raw, method)(request=request)
                return await anext(aiter(pager.pages))

            return self._run(call())
        return next(iter(getattr(self.raw, method)(request=request).pages))

    def submit(self, job: batch_v1.Job, job_id: str = "job-1", **request: Any) -> Any:
        """Create a job in the tests' project."""
        return self.create_job(parent=PARENT, job_id=job_id, job=job, **request)

    def wait(self, job_id: str, *states: str, timeout: float = 30.0) -> Any:
        """The job, once it is in one of the states, by default an end."""
        wanted = set(states) or ENDED
        return until(
            lambda: (job := self.get_job(name=name_of(job_id))).status.state.name in wanted and job,
            f"job {job_id} to be {wanted}",
            timeout,
        )

    def run(self, job: batch_v1.Job, job_id: str = "job-1", timeout: float = 30.0) -> Any:
        """Create a job and wait for its end."""
        self.submit(job, job_id)
        return self.wait(job_id, timeout=timeout)

    def tasks(self, job_id: str = "job-1") -> list[Any]:
        """The tasks of a job."""
        return self.list_tasks(parent=f"{name_of(job_id)}/taskGroups/group0")

    def close(self) -> None:
        """Close connections."""
        if self._runner:
            self._run(self._channel.close())
            self._runner.close()
        elif self.transport == "rest":
            self.raw.transport.close()
        else:
            self._channel.close()


def until(check: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """What `check` returns once it is true.

    Raises:
        AssertionError: it never was.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout:g} s for {what}")


def script(text: str, **fields: Any) -> batch_v1.Runnable:
    """A script runnable."""
    return batch_v1.Runnable(script=batch_v1.Runnable.Script(text=text), **fields)


def container(*commands: str, image: str = "gcr.io/any/image", **fields: Any) -> batch_v1.Runnable:
    """A container runnable; `volumes`, `entrypoint` and `options` go to the container."""
    own = {key: fields.pop(key) for key in ("volumes", "entrypoint", "options") if key in fields}
    made = batch_v1.Runnable.Container(image_uri=image, commands=list(commands), **own)
    return batch_v1.Runnable(container=made, **fields)


def variables(**values: str) -> batch_v1.Environment:
    """An environment of plain variables."""
    return batch_v1.Environment(variables=values)


def job_of(*runnables: batch_v1.Runnable, provisioning: str = "SPOT", **fields: Any) -> batch_v1.Job:
    """A job with one task group; fields of the spec, the group and the job by their names."""
    spec_fields = ("max_retry_count", "max_run_duration", "lifecycle_policies", "environment", "volumes")
    group_fields = (
        "task_count",
        "parallelism",
        "task_count_per_node",
        "task_environments",
        "require_hosts_file",
        "scheduling_policy",
    )
    spec = {key: fields.pop(key) for key in spec_fields if key in fields}
    group = {key: fields.pop(key) for key in group_fields if key in fields}
    task_spec = batch_v1.TaskSpec(runnables=list(runnables), **spec)
    policy = batch_v1.AllocationPolicy.InstancePolicy(
        machine_type="n1-standard-4", provisioning_model=provisioning
    )
    fields.setdefault("allocation_policy", batch_v1.AllocationPolicy(instances=[{"policy": policy}]))
    return batch_v1.Job(task_groups=[batch_v1.TaskGroup(task_spec=task_spec, **group)], **fields)


def descriptions(message: Any) -> list[str]:
    """The texts of a job's or a task's events."""
    return [event.description for event in message.status.status_events]


def processes(marker: str) -> Iterator[int]:
    """Ids of the processes whose command line holds a marker."""
    from pathlib import Path

    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue
