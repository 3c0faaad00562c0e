"""A store that the tests can disturb, and lineages written by hand, without the code under test."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import obstore
from aiohttp import web
from crc32c import crc32c
from fault_proxy import FaultProxy
from obstore.store import GCSStore

from airflow_resume_provider.testing.gcs import FaultPlan, GcsServer, Hooks

BUCKET = "b"


class DisturbedServer:
    """An object store behind a fault proxy; `plan` disturbs requests, `requests` remembers them."""

    def __init__(self, root: Path) -> None:
        self.plan = FaultPlan()
        self.requests: list[tuple[str, str]] = []
        self.answer: Callable[[web.Request], web.StreamResponse | None] = lambda request: None
        self._server = GcsServer(root, hooks=Hooks(before_request=self._before))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._server.start())
        self._server.create_bucket(BUCKET)
        self._proxy = FaultProxy(self.plan, self._server.port)
        self._run(self._proxy.start())
        self.endpoint = f"http://127.0.0.1:{self._proxy.port}"
        self.without_proxy = f"http://127.0.0.1:{self._server.port}"

    def calm(self) -> None:
        """Disturb nothing from now on, and forget what was asked."""
        self.plan.clear()
        self.requests.clear()
        self.answer = lambda request: None

    def count(self, method: str, fragment: str) -> int:
        """Return how many requests there were of this method whose path holds `fragment`."""
        return sum(1 for verb, path in self.requests if verb == method and fragment in path)

    def close(self) -> None:
        """Stop the server and its loop."""
        self._run(self._proxy.stop())
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _before(self, request: web.Request) -> web.StreamResponse | None:
        self.requests.append((request.method, request.raw_path))
        return self.answer(request)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)


def refuse(status: int, body: str, *, method: str = "", fragment: str = "") -> Callable[[web.Request], Any]:
    """Return an answer that refuses matching requests with a status and a body as the service words it."""

    def answer(request: web.Request) -> web.StreamResponse | None:
        if (method and request.method != method) or fragment not in request.raw_path:
            return None
        return web.Response(status=status, text=body)

    return answer


class Raw:
    """Writes and reads objects below a lineage's URI, whatever they are, without the code under test."""

    def __init__(self, uri: str, endpoint: str) -> None:
        self.uri = uri
        if uri.startswith("file://"):
            self._root: Path | None = Path(uri.removeprefix("file://"))
            return
        self._root = None
        self._prefix = uri.removeprefix(f"gs://{BUCKET}/")
        config = {"base_url": endpoint, "bearer_token": "x"}
        self._store = GCSStore(BUCKET, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]

    def put(self, name: str, data: bytes | str | Mapping[str, Any]) -> None:
        """Write an object, over whatever is there."""
        raw = (
            data
            if isinstance(data, bytes)
            else (data if isinstance(data, str) else json.dumps(data)).encode()
        )
        if self._root is None:
            obstore.put(self._store, f"{self._prefix}/{name}", raw)
        elif name.endswith("/"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        else:
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            (self._root / name).write_bytes(raw)

    def get(self, name: str) -> bytes:
        """Return an object's bytes."""
        if self._root is None:
            return bytes(obstore.get(self._store, f"{self._prefix}/{name}").bytes())
        return (self._root / name).read_bytes()

    def delete(self, name: str) -> None:
        """Delete an object."""
        if self._root is None:
            obstore.delete(self._store, f"{self._prefix}/{name}")
        else:
            (self._root / name).unlink()

    def names(self) -> set[str]:
        """Return the names of all objects."""
        if self._root is None:
            pages = list(obstore.list(self._store, self._prefix))
            return {row["path"].removeprefix(f"{self._prefix}/") for page in pages for row in page}
        return {p.relative_to(self._root).as_posix() for p in self._root.rglob("*") if p.is_file()}

    def checkpoint(
        self,
        attempt: int,
        index: int,
        files: Mapping[str, bytes],
        *,
        directory: str = "",
        manifest: bool = True,
        **fields: Any,
    ) -> str:
        """Write a checkpoint as the format's page describes it, and return its URI."""
        place = directory or f"attempts/{attempt:04d}/checkpoints/{index:06d}"
        for path, data in files.items():
            self.put(f"{place}/{path}", data)
        if manifest:
            entries = [{"path": p, "size": len(d), "crc32c": shown(d)} for p, d in files.items()]
            body = {"schema": 1, "training_id": "t", "attempt": attempt, "index": index, "step": index * 100}
            self.put(f"{place}/manifest.json", {**body, "files": entries, **fields})
        return f"{self.uri}/{place}"


def shown(data: bytes) -> str:
    """Return a checksum as the store shows it."""
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


def write_tree(top: Path, files: Mapping[str, bytes]) -> Path:
    """Write files, and directories where a name ends in a slash."""
    top.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if name.endswith("/"):
            (top / name).mkdir(parents=True, exist_ok=True)
        else:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(data)
    return top


def read_tree(top: Path) -> dict[str, bytes]:
    """Return all files' bytes, and empty directories with a slash at the end."""
    found = {}
    for path in top.rglob("*"):
        name = path.relative_to(top).as_posix()
        if path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{name}/"] = b""
    return found


def listed(directory: Path) -> list[str]:
    """Return the names in a directory."""
    return sorted(path.name for path in directory.iterdir())


def resume_run(*arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `resume-run` in a process of its own."""
    command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}
    )


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("the condition did not become true in time")
