"""The supervisor's end of the store worker: starts it, asks it, hears its answers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from airflow_resume_provider.runtime.options import Options

_MODULE = "airflow_resume_provider.runtime.store_worker"


class Worker:
    """One worker process. `report` gets every answer, from a thread of its own.

    When the process ends on its own, the answer is `{"event": "gone", "pid": …}`.
    """

    def __init__(self, options: Options, report: Callable[[dict[str, Any]], None]) -> None:
        self._options = options
        self._report = report
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._listen, name="worker", daemon=True)
        self._thread.start()

    def ask(self, op: str, **arguments: Any) -> None:
        """Send a request; its answer comes through `report`."""
        self._send({"op": op, "options": self._options.to_dict(), "with": arguments})

    def full_speed(self) -> None:
        """Tell it to hurry, also in the middle of a request."""
        self._send({"op": "full_speed"})

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._thread.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                _close(pipe)
        self._process.wait()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        # When it is gone, `report` hears so from the listening thread.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(request, default=str) + "\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._report(json.loads(line))
        self._report({"event": "gone", "pid": self.pid})


def _close(pipe: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # what was left in the buffer has no reader
        pipe.close()
