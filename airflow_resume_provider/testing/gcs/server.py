"""The object store as a server with a life: start, address, stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from .app import Door
from .hooks import Hooks
from .store import Store


class GcsServer:
    """A Cloud Storage server on loopback, its buckets in files below `root`.

    Args:
        root: directory of the buckets; one server at a time may have it.
        host: address to listen on.
        port: port, or 0 for a free one.
        hooks: callbacks for objects that appear and for requests to disturb.
        shared: have the directory and the port together with other servers that say so, too.
        **options: see `Store`.
    """

    def __init__(
        self,
        root: Path | str,
        host: str = "127.0.0.1",
        port: int = 0,
        hooks: Hooks | None = None,
        *,
        shared: bool = False,
        **options: Any,
    ) -> None:
        self.root, self.host, self.port = Path(root), host, port
        self.hooks = hooks or Hooks()
        self._shared, self._options = shared, options
        self._runner: web.ServerRunner | None = None
        self._store: Store | None = None

    def __repr__(self) -> str:
        return f"GcsServer({str(self.root)!r}, {self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """The address, as for STORAGE_EMULATOR_HOST."""
        return f"http://{self.host}:{self.port}"

    @property
    def store(self) -> Store:
        """The buckets, without HTTP."""
        if self._store is None:
            raise RuntimeError("the server is not running")
        return self._store

    async def start(self) -> GcsServer:
        """Open the directory and listen."""
        self._store = Store(self.root, shared=self._shared, **self._options)
        # Without an application around it: every request has the same handler.
        server = web.Server(
            Door(self._store, self.hooks).handle,  # type: ignore[arg-type]
            access_log=None,
            read_bufsize=1 << 20,
            auto_decompress=False,
            max_line_size=64 << 10,
            max_field_size=64 << 10,
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, backlog=1024, reuse_port=self._shared)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Stop listening, end what is under way, close the directory."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._store is not None:
            self._store.close()
        self._runner = self._store = None

    async def __aenter__(self) -> GcsServer:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def create_bucket(self, name: str) -> None:
        """Create a bucket if it is not there."""
        if not self.store.catalogue.has_bucket(name):
            self.store.catalogue.create_bucket(name, {})
