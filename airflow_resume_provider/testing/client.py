"""Talks to a running stack over its own HTTP interface, with the standard library only: it starts fast."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

STATE_FILE = "stack.json"
TIMEOUT_SECONDS = 120.0


class StackUnreachable(RuntimeError):
    """No stack answers."""


class StackRefused(RuntimeError):
    """The stack answered with an error; its text is the message."""


def default_root() -> Path:
    """Where a stack keeps its things unless told otherwise."""
    return Path(os.environ.get("RESUME_LOCAL_ROOT") or Path.cwd() / ".resume-local")


def read_state(root: Path) -> dict[str, Any]:
    """What a stack wrote about itself; empty when there is none."""
    try:
        return dict(json.loads((root / STATE_FILE).read_text()))
    except (OSError, ValueError):
        return {}


def address_of(root: Path | None, given: str = "") -> str:
    """The address of the stack: as given, as the root's state file says, or as in the environment.

    A root that a person named (not `None`) stands alone: what is meant for one
    stack never reaches another that happens to run.

    Raises:
        StackUnreachable: none of them says anything.
    """
    state = read_state(root or default_root())
    address = given or state.get("batch", "")
    if not address and root is None:
        address = os.environ.get("BATCH_EMULATOR_HOST", "")
    if not address:
        unset = " and BATCH_EMULATOR_HOST is not set" if root is None else ""
        raise StackUnreachable(
            f"No local stack runs there: {(root or default_root()) / STATE_FILE} is not there{unset}. "
            "Start one with `resume-local up --detach`."
        )
    return address.removeprefix("http://").rstrip("/")


class StackClient:
    """The stack at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **query: Any) -> Any:
        """Read something below `/local/`."""
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", path + (f"?{urlencode(wanted)}" if wanted else ""), None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Do something below `/local/`."""
        return self._ask("POST", path, json.dumps(body))

    def _ask(self, method: str, path: str, body: str | None) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, f"/local/{path}", body=body, headers=headers)
            response = connection.getresponse()
            text = response.read().decode()
        except OSError as error:
            raise StackUnreachable(f"No local stack answers at {self.address}: {error}.") from error
        finally:
            connection.close()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        answer = json.loads(text) if is_json else text
        if response.status >= 400:
            raise StackRefused(answer.get("error", text) if isinstance(answer, dict) else text)
        return answer


def quoted(job: str) -> str:
    """A job's name as a part of a path."""
    return quote(job, safe="")
