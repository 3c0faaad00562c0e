"""The independent server over HTTP/1.1 and JSON; a lost answer is a connection that breaks.

https://cloud.google.com/batch/docs/reference/rest
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from google.cloud import batch_v1

if TYPE_CHECKING:
    from tests.integration.independent_batch.server import IndependentBatch

# https://cloud.google.com/apis/design/errors
STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class RestFront:
    """Speaks for a server; started and stopped with it."""

    def __init__(self, batch: IndependentBatch) -> None:
        class Handler(_Handler):
            server_side = batch

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"127.0.0.1:{self.http.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_side: IndependentBatch

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        """Read."""
        path, query = self._asked()
        if path.endswith("/jobs"):
            self._answer("ListJobs", batch_v1.ListJobsRequest(parent=path[:-5], **_paging(query)))
        elif path.endswith("/tasks"):
            self._answer("ListTasks", batch_v1.ListTasksRequest(parent=path[:-6], **_paging(query)))
        else:
            self._answer("GetJob", batch_v1.GetJobRequest(name=path))

    def do_POST(self) -> None:
        """Create or cancel."""
        path, query = self._asked()
        body = self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}"
        if path.endswith(":cancel"):
            self._answer("CancelJob", batch_v1.CancelJobRequest(name=path[:-7]))
            return
        job = batch_v1.Job.from_json(body.decode())
        ids = {"job_id": query.get("jobId", ""), "request_id": query.get("requestId", "")}
        self._answer("CreateJob", batch_v1.CreateJobRequest(parent=path[:-5], job=job, **ids))

    def do_DELETE(self) -> None:
        """Delete."""
        self._answer("DeleteJob", batch_v1.DeleteJobRequest(name=self._asked()[0]))

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path.removeprefix("/v1/"), {k: v[0] for k, v in parse_qs(parts.query).items()}

    def _answer(self, name: str, request: Any) -> None:
        from tests.integration.independent_batch.server import Lost, Refused

        metadata = {key.lower(): value for key, value in self.headers.items()}
        work: Callable[..., Any] = self.server_side.methods[name]
        try:
            answer = self.server_side.answer(name, work, request, metadata)
        except Lost:
            self.close_connection = True
            return
        except Refused as refused:
            word = refused.code.name
            error = {"code": STATUS[word], "message": str(refused), "status": word}
            self._send(STATUS[word], json.dumps({"error": error}))
            return
        operation = json.dumps({"name": f"{answer}/operations/1"}) if isinstance(answer, str) else ""
        self._send(200, operation or type(answer).to_json(answer))

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _paging(query: dict[str, str]) -> dict[str, Any]:
    more = {"filter": query["filter"]} if "filter" in query else {}
    return {"page_size": int(query.get("pageSize", 0)), "page_token": query.get("pageToken", ""), **more}
