"""All servers of the local stack together, on one event loop."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing.batch.lineages import Lineages
from airflow_resume_provider.testing.batch.server import BatchServer
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.tasks import Executor
from airflow_resume_provider.testing.executors.process import ProcessExecutor
from airflow_resume_provider.testing.faults import Plan
from airflow_resume_provider.testing.gcs import Fault, GcsServer, Hooks

PROJECT = "local-project"
EXECUTORS = ("process", "podman", "docker")


def make_executor(name: str | Executor) -> Executor:
    """An executor by its name.

    Raises:
        InvalidInput: there is none of that name.
    """
    if not isinstance(name, str):
        return name
    if name == "process":
        return ProcessExecutor()
    if name in EXECUTORS:
        from airflow_resume_provider.testing.executors.containers import ContainerExecutor

        return ContainerExecutor(name)
    raise InvalidInput(
        f"executor={name!r} is not known.",
        can=f"Use one of {', '.join(EXECUTORS)}.",
        parameter="executor",
        value=name,
    )


class Stack:
    """The servers, to be started and stopped on a running event loop.

    Args:
        root: directory for everything that is kept: jobs, logs, buckets.
        executor: "process", "podman", "docker", or an executor.
        plan: faults.
        buckets: buckets that are there from the beginning.
        host: address to listen on; anything but loopback exposes a server that runs commands.
        advertise: host name in the environment that clients are given; jobs of
            the stack itself always use loopback.
        batch_port, storage_port: 0 for free ones.
        allowed_hosts: names under which other containers may address the Batch server.
    """

    def __init__(
        self,
        root: Path,
        *,
        executor: str | Executor = "process",
        plan: Plan = Plan.EMPTY,
        settings: Settings | None = None,
        buckets: Iterable[str] = ("resume",),
        host: str = "127.0.0.1",
        advertise: str = "",
        batch_port: int = 0,
        storage_port: int = 0,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self.root, self._buckets, self._host = root, tuple(buckets), host
        self._here = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - compared, not bound
        self._advertise = advertise or self._here
        root.mkdir(parents=True, exist_ok=True)
        hooks = Hooks(on_object_created=self._created, before_request=self._before)
        self.storage = GcsServer(root / "buckets", host=host, port=storage_port, hooks=hooks)
        self._for_jobs: dict[str, str] = {}
        self.executor = make_executor(executor)
        self.batch = BatchServer(
            root,
            host=host,
            port=batch_port,
            settings=settings,
            plan=plan,
            executor=self.executor,
            environment=self._for_jobs,
            status=self.status,
            buckets=self.buckets,
            allowed_hosts={*allowed_hosts, self._advertise},
        )
        self._lineages: Lineages | None = None

    def batch_endpoint(self, host: str = "") -> str:
        """`host:port` of the Batch API, for this machine or under another name."""
        return self.batch.endpoint.replace(self._host, host or self._here, 1)

    def storage_endpoint(self, host: str = "") -> str:
        """URL of the object store, for this machine or under another name."""
        return self.storage.endpoint.replace(self._host, host or self._here, 1)

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to have in its environment."""
        connection = {
            "conn_type": "google_cloud_platform",
            "extra": {"is_anonymous": True, "project": PROJECT},
        }
        return {
            "BATCH_EMULATOR_HOST": self.batch_endpoint(self._advertise),
            "STORAGE_EMULATOR_HOST": self.storage_endpoint(self._advertise),
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(connection),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
        }

    def status(self) -> dict[str, Any]:
        """Facts about the stack."""
        return {
            "batch": self.batch_endpoint(),
            "storage": self.storage_endpoint(),
            "executor": self.executor.name,
            "root": str(self.root),
            "pid": os.getpid(),
            "environment": self.environment,
            "jobs": self.batch.service.counts(),
            "vms": sum(len(run.fleet.vms) for run in self.batch.service.runs.values()),
        }

    def buckets(self) -> list[dict[str, Any]]:
        """Name, number of objects and bytes of each bucket."""
        catalogue = self.storage.store.catalogue
        sums = "SELECT bucket, count(*), sum(size) FROM objects WHERE deleted IS NULL GROUP BY bucket"
        found = {name: (count, size) for name, count, size in catalogue.db.execute(sums)}
        return [
            dict(
                zip(("name", "objects", "bytes"), (bucket.name, *found.get(bucket.name, (0, 0))), strict=True)
            )
            for bucket in catalogue.buckets()
        ]

    async def start(self) -> Stack:
        """Start everything."""
        await self.storage.start()
        for bucket in self._buckets:
            self.storage.create_bucket(bucket)
        self._for_jobs["STORAGE_EMULATOR_HOST"] = self.storage_endpoint()
        # All VMs share this machine's cores, with Airflow too: a niced uploader would starve.
        self._for_jobs["RESUME_NICE"] = "0"
        try:
            await self.batch.start()
        except BaseException:
            await self.storage.stop()
            raise
        self._lineages = Lineages(self.batch.service)
        return self

    async def stop(self) -> None:
        """End every job's processes and stop listening; what is on disk stays."""
        await self.batch.stop()
        await self.storage.stop()

    async def _created(self, bucket: str, name: str) -> None:
        if self._lineages:
            await self._lineages.object_created(bucket, name)

    async def _before(self, request: web.Request) -> web.StreamResponse | Fault | None:
        if not self._lineages:
            return None
        await self._lineages.object_read(request.method, request.raw_path.partition("?")[0], request.query)
        planned = self.batch.service.site.injector.store_fault(request.method, request.path)
        if planned is None:
            return None
        return Fault(
            status=planned.status or None,
            latency=planned.latency_seconds,
            reset=planned.reset,
            bandwidth=int(planned.bytes_per_second) or None,
        )
