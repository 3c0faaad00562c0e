"""The process that talks to the store: restores, commits, writes the records.

It is a process of its own so that the supervisor answers signals at once whatever the network
does, so that uploads can be niced, and so that a client with its credentials is held from the
start: after a notice the metadata server may not answer any more
(https://github.com/fsspec/gcsfs/issues/476). It reads one JSON request per line from its standard
input and writes one JSON answer per line to its standard output; when its input ends, so does it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from airflow_resume_provider.errors import ResumeError
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.pin import Changed


def main() -> None:
    """Serve requests until the supervisor is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides when to stop
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    worker = StoreWorker(answers)
    threading.Thread(target=_read, args=(worker, requests), daemon=True).start()
    while True:
        worker.serve(requests.get())


def _read(worker: StoreWorker, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "full_speed":
            worker.full_speed()
        elif request["op"] in ("tell_peers", "ask_peers"):
            threading.Thread(target=worker.serve, args=(request,), daemon=True).start()
        else:
            requests.put(request)
    os._exit(0)


class StoreWorker:
    """Carries out one request after the other."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._service: Any = None
        self._hurry = threading.Event()
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def full_speed(self) -> None:
        """Stop being considerate: the training has had its notice or has ended."""
        self._hurry.set()
        if self._service:
            self._service.full_speed()

    def serve(self, request: Mapping[str, Any]) -> None:
        """Answer one request; whatever goes wrong is an answer too."""
        try:
            answer = self._carry_out(request)
        except Changed as error:
            answer = {"event": "changed", "file": str(error)}
        except ResumeError as error:
            answer = failure(error)
        except Exception as error:
            answer = failure(ResumeError(f"{type(error).__name__}: {error}"))
        self._say({**answer, "op": request["op"]})

    def _carry_out(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._open(Options.from_dict(request["options"]))
        if self._hurry.is_set():
            self._service.full_speed()
        operation = getattr(self._service, request["op"])
        result: dict[str, Any] = operation(**request.get("with", {}))
        return {"event": "done", **result}

    def _open(self, options: Options) -> None:
        from airflow_resume_provider.runtime.store_service import StoreService

        if self._service is None:
            self._service = StoreService(options, self._say)

    def _say(self, answer: Mapping[str, Any]) -> None:
        try:
            with self._writing:
                self._answers.write(json.dumps(answer, default=str) + "\n")
        except BrokenPipeError:
            os._exit(0)


def failure(error: ResumeError) -> dict[str, Any]:
    """Return an error as an answer."""
    kind = type(error).__name__
    return {"event": "failed", "kind": kind, "message": str(error), "exit_code": int(error.exit_code)}


if __name__ == "__main__":
    main()
