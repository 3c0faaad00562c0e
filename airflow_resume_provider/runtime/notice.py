"""The preemption notice: the metadata server or a signal, whichever comes first."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_resume_provider.runtime import env

METADATA_SERVER = "the metadata server"
_DEFAULT_HOST = "metadata.google.internal"
_PATH = "/computeMetadata/v1/instance/preempted"
_HEADERS = {"Metadata-Flavor": "Google"}
_POLL_SECONDS = 60


@dataclass(frozen=True)
class Notice:
    """Somebody is about to end this machine."""

    source: str
    seen: float = field(default_factory=time.time)

    def write(self, path: Path, grace: float) -> None:
        """Tell the training through RESUME_NOTICE_FILE; it appears whole."""
        told = {"source": self.source, "seen": self.seen, "deadline": self.seen + grace}
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(told))
        temporary.replace(path)


class MetadataServer:
    """Asks a Compute Engine metadata server; standard library, no proxies."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.host = environ.get(env.METADATA_HOST, "") or _DEFAULT_HOST
        self.etag = ""

    def preempted(self, *, wait: bool = False, timeout: float = 3.0) -> bool:
        """Return whether the VM has got its notice; with `wait`, answer only on a change.

        Raises:
            OSError: nobody answers, or not in time.
            http.client.HTTPException: it answers something else.
        """
        query = f"?wait_for_change=true&timeout_sec={int(timeout)}" if wait else ""
        if wait and self.etag:
            query += f"&last_etag={self.etag}"
        return self.get(_PATH + query, timeout=timeout + 5 if wait else timeout).strip().upper() == b"TRUE"

    def get(self, path: str, *, timeout: float) -> bytes:
        """Return what lies at `path`; raises like `preempted`."""
        connection = http.client.HTTPConnection(self.host, timeout=timeout)
        try:
            connection.request("GET", path, headers=_HEADERS)
            response = connection.getresponse()
            body = response.read(1 << 16)
            if response.status != 200:
                raise http.client.HTTPException(f"status {response.status}")
            self.etag = response.headers.get("ETag", "")
            return body
        finally:
            connection.close()


def is_preempted_now() -> bool:
    """Ask once, briefly; where nobody answers there is no notice."""
    try:
        return MetadataServer().preempted(timeout=1.0)
    except (OSError, http.client.HTTPException):
        return False


class NoticeWatch:
    """Reports the metadata server's notice once, from a thread of its own.

    A long poll, since polling every few seconds has missed notices
    (https://github.com/openshift/cluster-api-provider-gcp/issues/112).
    """

    def __init__(self, report: Callable[[Notice], None], server: MetadataServer | None = None) -> None:
        self._report = report
        self._server = server or MetadataServer()
        self._thread = threading.Thread(target=self._watch, name="notice", daemon=True)
        self.answered = threading.Event()

    def start(self) -> None:
        """Begin to watch; where there is no metadata server it costs one try in 30 s."""
        self._thread.start()

    def ask_now(self) -> bool:
        """Ask once more, briefly: the training may have seen the notice before we did."""
        return self.answered.is_set() and is_preempted_now()

    def _watch(self) -> None:
        pause = 1.0
        while True:
            try:
                if self._server.preempted(wait=self.answered.is_set(), timeout=_POLL_SECONDS):
                    return self._report(Notice(METADATA_SERVER))
                self.answered.set()
                pause = 0.1
            except (OSError, http.client.HTTPException):
                pause = min(30.0, pause * 2) if not self.answered.is_set() else 0.5
            time.sleep(pause)
