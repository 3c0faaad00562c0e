"""A Batch API that does nothing but answer reads quickly, in a process of its own, and counts them.

Its jobs run until a moment that is derived from their number, so that whoever
watches can be asked how late it noticed.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent import futures
from typing import Any

import grpc
from google.cloud.batch_v1 import Job, JobStatus, ListJobsRequest, ListJobsResponse, ListTasksResponse

PARENT = "projects/p/locations/us-central1"
SERVICE = "google.cloud.batch.v1.BatchService"
# About what a real training's job weighs.
SPEC_BYTES = 10 * 1024


def job_name(number: int) -> str:
    """The name of the n-th job."""
    return f"{PARENT}/jobs/job-{number:05d}"


class Stub:
    """Answers; jobs `every` apart from each other end one after another from `first` on."""

    def __init__(self, number: int, page: int) -> None:
        self.number, self.page = number, page
        self.ends: dict[int, float] = {}
        self.calls = self.bytes = 0
        self._full = [self._job(i, ended=False) for i in range(number)]

    def end(self, number: int, moment: float) -> None:
        """Let a job end at this moment."""
        self.ends[number] = moment

    def _job(self, number: int, *, ended: bool, masked: bool = False) -> Any:
        job = Job(name=job_name(number), uid=f"u{number}", labels={"resume_day": "19700101"})
        job.status.state = JobStatus.State.SUCCEEDED if ended else JobStatus.State.RUNNING
        job.status.status_events = [
            {"type_": "STATUS_CHANGED", "description": "Job state is set from SCHEDULED to RUNNING"}
        ]
        if not masked:
            variables = {f"V{i}": "x" * 1000 for i in range(SPEC_BYTES // 1000)}
            environment = {"variables": variables}
            job.task_groups = [{"task_spec": {"runnables": [{"environment": environment}]}}]
        return Job.pb(job)

    def _now(self, number: int, *, masked: bool = False) -> Any:
        ended = self.ends.get(number, float("inf")) <= time.time()
        if not masked and not ended:
            return self._full[number]
        return self._job(number, ended=ended, masked=masked)

    def get_job(self, request: bytes, context: Any) -> bytes:
        """GetJob."""
        from google.cloud.batch_v1 import GetJobRequest

        number = int(GetJobRequest.deserialize(request).name.rpartition("-")[2])
        return self._counted(self._now(number).SerializeToString())

    def list_jobs(self, request: bytes, context: Any) -> bytes:
        """ListJobs, in pages, honouring the field mask."""
        asked = ListJobsRequest.deserialize(request)
        masked = any(key == "x-goog-fieldmask" for key, _ in context.invocation_metadata())
        start = int(asked.page_token or 0)
        stop = min(self.number, start + min(self.page, asked.page_size or self.page))
        answer = ListJobsResponse.pb(ListJobsResponse())
        answer.jobs.extend(self._now(i, masked=masked) for i in range(start, stop))
        answer.next_page_token = str(stop) if stop < self.number else ""
        return self._counted(answer.SerializeToString())

    def list_tasks(self, request: bytes, context: Any) -> bytes:
        """ListTasks."""
        return self._counted(ListTasksResponse.serialize(ListTasksResponse()))

    def _counted(self, answer: bytes) -> bytes:
        self.calls += 1
        self.bytes += len(answer)
        return answer


def serve(number: int, page: int) -> None:
    """Serve until the input ends; each line of input is a command, each line of output its answer."""
    stub = Stub(number, page)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method)
        for name, method in (
            ("GetJob", stub.get_job),
            ("ListJobs", stub.list_jobs),
            ("ListTasks", stub.list_tasks),
        )
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"endpoint": f"127.0.0.1:{port}"}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        for job, moment in command.get("end", {}).items():
            stub.end(int(job), moment)
        print(json.dumps({"calls": stub.calls, "bytes": stub.bytes}), flush=True)
    server.stop(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
