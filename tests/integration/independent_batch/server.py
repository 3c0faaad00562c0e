"""A second Batch server, written from the public API alone, to find out what our client assumes.

It shares nothing with the local stack: neither code nor choices. Where the API
lets a server choose, `Quirks` choose.
https://cloud.google.com/batch/docs/reference/rpc/google.cloud.batch.v1
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.cloud import batch_v1
from google.longrunning import operations_pb2

from tests.integration.independent_batch.jobs import ENDING, NUMBER, OVER, Fate, Held, Jobs, State
from tests.integration.independent_batch.quirks import Quirks
from tests.integration.independent_batch.rest import RestFront

SERVICE = "google.cloud.batch.v1.BatchService"
PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
)
_FILTER = re.compile(r'labels\.([a-z0-9_-]+) *= *"?([a-z0-9_-]*)"?')
_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/jobs/[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class Lost(Refused):
    """The answer is lost on its way; the work is done."""

    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, "Socket closed")


class IndependentBatch:
    """The server; `patience` is how long its client waits for an answer."""

    def __init__(
        self, quirks: Quirks, container: Callable[[Held], Fate], *, seed: int = 0, patience: float = 0.5
    ) -> None:
        self.quirks = quirks
        self.jobs = Jobs(quirks, container, seed)
        self.patience = patience
        self.outage = 0  # so many calls more are refused
        self.refused = 0
        self.broken: Exception | None = None  # the clock has stopped: a fault of this server
        self.calls: list[str] = []
        self._requests: dict[str, str] = {}
        self._pages: dict[str, tuple[list[Any], int]] = {}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.rest = RestFront(self) if quirks.rest_only else None
        port = 0 if self.rest else self._server.add_insecure_port("127.0.0.1:0")
        self.address = self.rest.address if self.rest else f"127.0.0.1:{port}"

    def __enter__(self) -> IndependentBatch:
        self._server.start()
        if self.rest is not None:
            self._front = threading.Thread(target=self.rest.http.serve_forever, daemon=True)
            self._front.start()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._clock.join(5)
        self._server.stop(0).wait()
        if self.rest is not None:
            self.rest.http.shutdown()
            self.rest.http.server_close()
            self._front.join(5)

    def _tick(self) -> None:
        while not self._stopped.wait(0.01):
            with self._lock:
                try:
                    self.jobs.step()
                except Exception as error:
                    self.broken = error
                    raise

    # -- the wire --------------------------------------------------------------

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """What can be called."""
        return {
            "CreateJob": self.create,
            "GetJob": self.get,
            "CancelJob": self.cancel,
            "DeleteJob": self.delete,
            "ListJobs": self.list_jobs,
            "ListTasks": self.list_tasks,
        }

    def _handlers(self) -> grpc.GenericRpcHandler:
        v1 = batch_v1
        messages: dict[str, tuple[Any, Any]] = {
            "CreateJob": (v1.CreateJobRequest, v1.Job),
            "GetJob": (v1.GetJobRequest, v1.Job),
            "CancelJob": (v1.CancelJobRequest, None),
            "DeleteJob": (v1.DeleteJobRequest, None),
            "ListJobs": (v1.ListJobsRequest, v1.ListJobsResponse),
            "ListTasks": (v1.ListTasksRequest, v1.ListTasksResponse),
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._answering(name, self.methods[name]),
                    request_deserializer=wanted.deserialize,
                    response_serializer=given.serialize if given else _operation,
                )
                for name, (wanted, given) in messages.items()
            },
        )

    def _answering(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return self.answer(name, work, request, dict(context.invocation_metadata()))
            except Refused as refused:
                context.abort(refused.code, str(refused))

        return answer

    def answer(self, name: str, work: Callable[..., Any], request: Any, metadata: dict[str, str]) -> Any:
        """Do the work of one call, with all that may go wrong on the way."""
        with self._lock:
            self.calls.append(name)
            dice, quirks = self.jobs.dice, self.quirks
            if self.outage > 0:
                self.outage, self.refused = self.outage - 1, self.refused + 1
                raise Refused(grpc.StatusCode.UNAVAILABLE, "out")
            if dice.random() < quirks.error_rate:
                raise Refused(dice.choice(PASSING), "try again")
            slow = dice.random() < quirks.slow_answers
            answer = work(request, metadata)
            lost = name in ("CreateJob", "CancelJob") and dice.random() < quirks.lost_answers
        if slow:
            time.sleep(self.patience * 1.5)
        if lost:
            raise Lost
        return answer

    # -- the methods -----------------------------------------------------------

    def create(self, request: batch_v1.CreateJobRequest, _: Any) -> batch_v1.Job:
        """Make a job, once."""
        name = _plain(f"{request.parent}/jobs/{request.job_id}")
        if not _NAME.fullmatch(name):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"job_id {request.job_id!r}")
        if self.quirks.remembers_requests and request.request_id in self._requests:
            name = self._requests[request.request_id]
            if name in self.jobs.held:
                return self.jobs.shown(self.jobs.held[name])
        if name in self._requests.values():  # a name is given once, whatever became of its job
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")
        self._requests[request.request_id] = name
        return self.jobs.shown(self.jobs.create(name, request.job))

    def get(self, request: batch_v1.GetJobRequest, _: Any) -> batch_v1.Job:
        """Show a job; a new one is not visible at once."""
        return self.jobs.shown(self._visible(request.name))

    def _visible(self, name: str) -> Held:
        held = self.jobs.held.get(_plain(name))
        if held is not None:
            held.reads += 1
        if held is None or held.reads <= self.quirks.late_job:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")
        return held

    def cancel(self, request: batch_v1.CancelJobRequest, _: Any) -> str:
        """Begin to cancel a job."""
        held = self.jobs.held.get(_plain(request.name))
        if held is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Resource '{request.name}' was not found")
        if held.state in OVER or (held.state in ENDING and self.quirks.refuses_second_cancel):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"{request.name} is not cancellable")
        if held.state not in ENDING:
            self.jobs.set(held, State.CANCELLATION_IN_PROGRESS)
        return request.name

    def delete(self, request: batch_v1.DeleteJobRequest, _: Any) -> str:
        """Begin to delete a job."""
        self.jobs.set(self._visible(request.name), State.DELETION_IN_PROGRESS)
        return request.name

    def list_jobs(self, request: batch_v1.ListJobsRequest, metadata: dict[str, str]) -> Any:
        """Show a page of jobs; filters are labels with AND."""
        if not self.quirks.lists_at_all:
            raise Refused(grpc.StatusCode.UNIMPLEMENTED, "ListJobs")
        found = [
            h for h in self.jobs.held.values() if _in(request.parent, h.name) and _matches(request.filter, h)
        ]
        found.sort(key=lambda h: h.created, reverse=self.quirks.newest_first)
        page, token = self._page(request, found)
        jobs = [self.jobs.shown(held, listed=True) for held in page]
        if "x-goog-fieldmask" in metadata and self.quirks.honours_mask:
            jobs = [batch_v1.Job(name=j.name, uid=j.uid, status=j.status) for j in jobs]
            for job, held in zip(jobs, page, strict=True):
                batch_v1.Job.pb(job).status.state = int(held.state)
        return batch_v1.ListJobsResponse(jobs=jobs, next_page_token=token)

    def list_tasks(self, request: batch_v1.ListTasksRequest, _: Any) -> Any:
        """Show the tasks; those of a job that has just ended may not be there yet."""
        held = self._visible(request.parent.rpartition("/taskGroups/")[0])
        if held.state in OVER:
            held.task_reads += 1
            if held.task_reads <= self.quirks.late_tasks:
                if held.task_reads % 2:
                    raise Refused(grpc.StatusCode.NOT_FOUND, f"{request.parent} was not found")
                return batch_v1.ListTasksResponse()
        page, token = self._page(request, self.jobs.tasks(held))
        return batch_v1.ListTasksResponse(tasks=page, next_page_token=token)

    def _page(self, request: Any, found: list[Any]) -> tuple[list[Any], str]:
        """Return a page and an opaque token for the rest of the same listing."""
        start = 0
        if request.page_token:
            if request.page_token not in self._pages:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "page_token")
            found, start = self._pages.pop(request.page_token)
        end = start + min(request.page_size or self.quirks.page_cap, self.quirks.page_cap)
        if end >= len(found):
            return found[start:end], ""
        token = uuid.uuid4().hex
        self._pages[token] = (found, end)
        return found[start:end], token

    # -- for tests -------------------------------------------------------------

    def out(self, calls: int) -> None:
        """Refuse the next calls."""
        with self._lock:
            self.outage += calls

    @contextlib.contextmanager
    def paused(self) -> Iterator[Jobs]:
        """Hold the clock and look."""
        with self._lock:
            yield self.jobs


def _operation(name: str) -> bytes:
    return bytes(
        operations_pb2.Operation(name=f"{name.rpartition('/jobs/')[0]}/operations/1").SerializeToString()
    )


def _plain(name: str) -> str:
    """A name under which a job is kept: projects have an id and a number."""
    return name.replace(f"projects/{NUMBER}/", "projects/local-project/")


def _in(parent: str, name: str) -> bool:
    wanted = _plain(parent)
    return wanted.endswith("/locations/-") or name.startswith(f"{wanted}/jobs/")


def _matches(text: str, held: Held) -> bool:
    if not text:
        return True
    for part in text.split(" AND "):
        found = _FILTER.fullmatch(part.strip())
        if found is None:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"filter {text!r}")
        if held.spec.labels.get(found.group(1)) != found.group(2):
            return False
    return True
