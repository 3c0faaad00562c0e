"""The state directory: what the parts of the runtime, the SDK and the training share on one node."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import NoSpace
from airflow_resume_provider.runtime.formats.evidence import read_json


@dataclass(frozen=True)
class Restored:
    """What the training starts from; an empty `uri` is a fresh start."""

    uri: str = ""
    step: int = 0
    index: int = -1
    why: str = ""
    path: str = ""
    format: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 0
    lazy: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which the SDK reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Restored:
        """Read the JSON form."""
        return cls(**data)


class State:
    """Paths of the state directory by name; every write appears whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notice = directory / "notice.json"
        self.metrics = directory / "metrics.json"
        self.finished = directory / "finished"
        self.succeeded = directory / "succeeded"
        self.checkpoint = directory / "checkpoint.json"
        self.owner = directory / "owner.json"
        self.link = directory / "checkpoint"
        self.explicit = directory / "explicit"
        self.finishing = directory / "finishing"
        self.environment = directory / "resume.env"
        self.ledger = directory / "ledger.json"
        self.lock = directory / "lock"
        self.pins = directory / "pins"
        self.requests = directory / "requests"

    def prepare(self, attempt: int) -> int:
        """Make it anew: nothing of an earlier attempt may be mistaken for ours.

        Returns the number of the attempt that was here before, 0 when there was none.
        """
        said = read_json(self.owner)
        shutil.rmtree(self.directory, ignore_errors=True)
        for path in (self.directory, self.pins, self.requests):
            path.mkdir(parents=True, exist_ok=True)
        self.write(self.owner, {"attempt": attempt})
        return int(said["attempt"]) if isinstance(said, dict) else 0

    def write(self, path: Path, value: Any) -> None:
        """Write JSON so that a reader sees all of it or nothing."""
        write_whole(path, json.dumps(value, default=str))

    def write_environment(self, variables: Mapping[str, str]) -> None:
        """Write `resume.env`, lines that a shell can source."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
        write_whole(self.environment, "".join(lines))

    def read_metrics(self) -> dict[str, Any]:
        """Return what the training reported, or nothing when it is no JSON object."""
        value = read_json(self.metrics)
        return value if isinstance(value, dict) else {}

    def read_requests(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the SDK's commit requests in the order they were made."""
        for path in sorted(self.requests.glob("*.json")):
            if isinstance(value := read_json(path), dict):
                yield path, value


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary name and rename."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise NoSpace(
            f"{path} could not be written: {error.strerror}.",
            can="Make the disk larger.",
            required=len(text),
            free=free_bytes(path.parent),
        ) from error


def free_bytes(directory: Path) -> int:
    """Return the free bytes of the disk that `directory` is on, 0 when it cannot be asked."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0
