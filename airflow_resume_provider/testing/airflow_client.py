"""A small client of Airflow's public REST API, for tests and the demo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import tenacity

T = TypeVar("T")

# States from which a run or task instance does not move by itself.
ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}


def until(what: str, look: Callable[[], T | None], *, timeout: float, every: float = 0.2) -> T:
    """Return the first truthy result of `look`, or raise `TimeoutError` that says what was awaited."""
    deadline = time.monotonic() + timeout
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(every)


class AirflowClient:
    """Talks to one API server, in the words of Airflow's own API.

    Args:
        url: the server's root, for example ``http://127.0.0.1:8080``.

    A task instance is named by (dag_id, run_id, task_id, map_index), map_index
    being -1 for tasks that are not mapped.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # trust_env=False: a proxy must never stand between a test and loopback.
        self._http = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self._authorized = False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> dict[str, dict[str, str | None]]:
        """Return what each component reports; empty while the server itself does not answer."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return {}
        if answer.status_code != httpx.codes.OK:
            return {}
        return {name: dict(part) for name, part in answer.json().items() if part}

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Call ``/api/v2/<path>`` and return its JSON; raises on an HTTP error with the body in the text."""
        if not self._authorized:
            token = self._http.get("/auth/token").raise_for_status().json()["access_token"]
            self._http.headers["Authorization"] = f"Bearer {token}"
            self._authorized = True
        answer = self._http.request(method, f"/api/v2/{path}", **arguments)
        if answer.is_error:
            raise httpx.HTTPStatusError(
                f"{method} {path}: {answer.status_code} {answer.text}",
                request=answer.request,
                response=answer,
            )
        return answer.json() if answer.content else None

    def import_errors(self) -> dict[str, str]:
        """Return the stack trace of each DAG file that cannot be imported."""
        errors = self.request("GET", "importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def wait_for_dag(self, dag_id: str, timeout: float = 120) -> None:
        """Wait until the DAG is parsed; an import error ends the wait at once."""

        def look() -> bool:
            if errors := self.import_errors():
                raise ImportError("\n\n".join(f"{file}\n{trace}" for file, trace in errors.items()))
            return any(dag["dag_id"] == dag_id for dag in self.request("GET", "dags?limit=500")["dags"])

        until(f"DAG {dag_id} to be parsed", look, timeout=timeout, every=0.5)

    def trigger(self, dag_id: str, *, run_id: str | None = None, conf: dict[str, Any] | None = None) -> str:
        """Start a run and return its run_id."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf or {}}
        if run_id:
            body["dag_run_id"] = run_id
        # SQLite may be held by another of Airflow's processes for longer than this one waits.
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_busy),
            stop=tenacity.stop_after_attempt(5),
            wait=tenacity.wait_fixed(1),
            reraise=True,
        )
        return str(again(self.request, "POST", f"dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return the run."""
        return dict(self.request("GET", _run(dag_id, run_id)))

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark the whole run as ``success`` or ``failed``."""
        self.request("PATCH", _run(dag_id, run_id), json={"state": state})

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float = 300) -> str:
        """Wait until the run has ended and return its state."""
        state = until(
            f"run {run_id} of {dag_id} to end",
            lambda: (found := self.run(dag_id, run_id)["state"]) in ENDED and found,
            timeout=timeout,
            every=0.5,
        )
        return str(state)

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return every task instance of the run, mapped ones included."""
        return list(self.request("GET", f"{_run(dag_id, run_id)}/taskInstances?limit=500")["task_instances"])

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return one task instance."""
        return dict(self.request("GET", _task(dag_id, run_id, task_id, map_index)))

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Sequence[str],
        *,
        map_index: int = -1,
        timeout: float = 120,
    ) -> dict[str, Any]:
        """Wait until the task instance is in one of the states and return it."""

        def look() -> dict[str, Any] | None:
            found = self.task_instance(dag_id, run_id, task_id, map_index)
            return found if found["state"] in states else None

        return until(f"{task_id} to be {' or '.join(states)}", look, timeout=timeout)

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> list[dict[str, Any]]:
        """Return all tries of a task instance, oldest first."""
        path = f"{_task(dag_id, run_id, task_id, map_index)}/tries"
        return sorted(self.request("GET", path)["task_instances"], key=lambda found: found["try_number"])

    def xcoms(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return every XCom of a task instance, deserialized."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries"
        at = f"?map_index={map_index}"
        keys = [entry["key"] for entry in self.request("GET", f"{path}{at}&limit=500")["xcom_entries"]]
        return {
            key: self.request("GET", f"{path}/{quote(key)}{at}&deserialize=false&stringify=false")["value"]
            for key in keys
        }

    def state_store(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return the task state store of a task instance (Airflow 3.3 and later)."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/state-store?map_index={map_index}"
        return dict(self.request("GET", path))

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """Return the log of one try as text, one event a line."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        answer = self.request(
            "GET",
            f"{path}?map_index={map_index}&full_content=true",
            headers={"Accept": "application/json"},
        )
        content = answer["content"]
        return content if isinstance(content, str) else "\n".join(_line(event) for event in content)

    def clear(
        self, dag_id: str, run_id: str, tasks: Sequence[str | tuple[str, int]], *, only_failed: bool = False
    ) -> None:
        """Clear task instances, as the button in the UI does."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(tasks),
            "only_failed": only_failed,
            "reset_dag_runs": True,
        }
        self.request("POST", f"dags/{dag_id}/clearTaskInstances", json=body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task instance as ``success`` or ``failed``, as the button in the UI does."""
        self.request("PATCH", _task(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        """Return the operator's extra links."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/links?map_index={map_index}"
        return dict(self.request("GET", path)["extra_links"])


def _run(dag_id: str, run_id: str) -> str:
    return f"dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _task(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = "" if map_index < 0 else f"/{map_index}"
    return f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}{mapped}"


def _line(event: dict[str, Any] | str) -> str:
    if isinstance(event, str):
        return event
    rest = {k: v for k, v in event.items() if k not in {"event", "timestamp", "level", "logger", "filename"}}
    details = " ".join(f"{key}={value}" for key, value in rest.items())
    return f"{event.get('timestamp') or ''} {event.get('level') or ''} {event.get('event')} {details}".strip()


def _is_busy(error: BaseException) -> bool:
    """Say whether Airflow's database did not take a change, which is undone then."""
    return (
        isinstance(error, httpx.HTTPStatusError)
        and error.response.is_server_error
        and "Database error" in error.response.text
    )
