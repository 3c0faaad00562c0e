"""The local Batch server as a whole: state, jobs, one port."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from airflow_resume_provider.testing.batch.admin import Admin, admin_handler
from airflow_resume_provider.testing.batch.capacity import Capacity
from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.fleet import Site
from airflow_resume_provider.testing.batch.grpc_api import GrpcApi
from airflow_resume_provider.testing.batch.guard import refusal
from airflow_resume_provider.testing.batch.injection import Injector
from airflow_resume_provider.testing.batch.port import Port
from airflow_resume_provider.testing.batch.rest_api import rest_handler
from airflow_resume_provider.testing.batch.service import BatchService
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.sockets import SocketDirectory
from airflow_resume_provider.testing.batch.store import Store
from airflow_resume_provider.testing.batch.tasks import Executor
from airflow_resume_provider.testing.executors.machines import MachineHost
from airflow_resume_provider.testing.executors.process import ProcessExecutor
from airflow_resume_provider.testing.executors.strays import end_marked
from airflow_resume_provider.testing.faults import Plan


class BatchServer:
    """Serves the Batch API on one loopback port and runs the jobs.

    Args:
        root: directory for state, logs and the VMs' disks.
        environment: variables that every runnable gets.
        status: facts for `/local/status`.
        buckets: the object store's buckets, for the page.
        allowed_hosts: Host headers that are accepted besides loopback names.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Settings | None = None,
        plan: Plan = Plan.EMPTY,
        executor: Executor | None = None,
        environment: Mapping[str, str] | None = None,
        status: Callable[[], dict[str, Any]] = dict,
        buckets: Callable[[], list[dict[str, Any]]] = list,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self.root, self._wanted = root, (host, port)
        self._settings, self._plan = settings or Settings(), plan
        self._executor = executor or ProcessExecutor()
        self._environment = environment if environment is not None else {}
        self._status, self._buckets, self._allowed = status, buckets, allowed_hosts
        self.endpoint = ""
        self.service: BatchService
        self.admin: Admin

    async def start(self) -> BatchServer:
        """Take up the state on disk, then listen.

        Raises:
            OSError: the address is taken; nothing has been started then.
        """
        self._sockets = SocketDirectory()
        self._http = web.Server(self._route, access_log=None)
        self._port = Port(self._sockets.path / "grpc", self._http)
        try:
            host, port = self._port.bind(*self._wanted)
        except OSError:
            self._sockets.remove()
            raise
        self.endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.root / "vms", ignore_errors=True)
        await asyncio.to_thread(end_marked, self.root / "vms")
        self._host = MachineHost(self.root / "host.log")
        self._host.start()
        site = Site(
            settings=self._settings,
            host=self._host,
            capacity=Capacity(self._settings.max_vms),
            injector=Injector(self._plan),
            executor=self._executor,
            root=self.root,
            environment=self._environment,
        )
        self._store = Store(self.root / "batch.sqlite")
        self.service = BatchService(site, self._store, Clock())
        self.admin = Admin(self.service, self._status, self._buckets)
        self._listen()
        self.service.restore()
        self.service.resume_operations()
        return self

    def _listen(self) -> None:
        self._grpc = GrpcApi(self.service, self._sockets.path / "grpc")
        self._grpc.start()
        self._rest, self._local = rest_handler(self.service), admin_handler(self.admin)
        self._port.start()

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if why := refusal(request, self._allowed):
            return web.json_response(
                {"error": {"code": 403, "message": why, "status": "PERMISSION_DENIED"}}, status=403
            )
        own = request.path == "/" or request.path.startswith("/local/")
        handler = self._local if own else self._rest
        return await handler(request)

    async def stop(self) -> None:
        """End every VM and stop listening; the state stays on disk."""
        await self._port.stop()
        await self._grpc.stop()
        await self._http.shutdown(0.1)
        await self.service.stop()
        await self._host.stop()
        await asyncio.to_thread(end_marked, self.root / "vms")
        self._store.close()
        self._sockets.remove()
        shutil.rmtree(self.root / "vms", ignore_errors=True)
        await asyncio.sleep(0)
