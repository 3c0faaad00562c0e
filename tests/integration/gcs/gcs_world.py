"""An object store that tests start, and the clients on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from obstore.store import GCSStore

from airflow_resume_provider.testing.gcs import GcsServer


class Running:
    """A server on an event loop of its own, in a thread."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.server = GcsServer(root, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.server.start())
        self.endpoint = self.server.endpoint

    def run(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(timeout=120)

    def close(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def client(self, project: str = "p") -> storage.Client:
        return storage.Client(
            project=project,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": self.endpoint},
        )

    def obstore(self, bucket: str, **config: Any) -> GCSStore:
        return GCSStore(
            bucket,
            config={"base_url": self.endpoint, "bearer_token": "any"},
            client_options={"allow_http": True},
            **config,
        )


@contextmanager
def running(root: Path, **options: Any) -> Iterator[Running]:
    """Serve `root` while the block runs."""
    server = Running(root, **options)
    try:
        yield server
    finally:
        server.close()
