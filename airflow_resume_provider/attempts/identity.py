"""Who a training is: its lineage, its short id and the ids of its jobs.

Everything here is derived, never drawn at random: a worker that died and came
back finds the same names and therefore the same job.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass

_NAMESPACE = uuid.UUID("6f0d7c52-3b0f-5d6e-9a55-0d6b5b1e6a10")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
JOB_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_JOB_ID = 63


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _slug(text: str, allowed: str, length: int) -> str:
    return re.sub(f"[^{allowed}]+", "-", text).strip("-.")[:length].strip("-.")


def segment(text: str) -> str:
    """Return `text` as one legal path segment; what had to be changed keeps a digest, so none collide."""
    if _PLAIN.fullmatch(text):
        return text
    return f"{_slug(text, 'A-Za-z0-9_.', 80) or 'x'}-{_digest(text, 8)}"


@dataclass(frozen=True, kw_only=True)
class TrainingKey:
    """What stays the same over all tries of one task instance.

    `run_after` belongs to it because a deleted run id can be used again.
    """

    dag_id: str
    task_id: str
    run_id: str
    run_after: str = ""
    map_index: int = -1

    @property
    def run_key(self) -> str:
        """The run's path segment: readable, and distinct for every (run id, run_after)."""
        readable = _slug(self.run_id, "A-Za-z0-9_.", 60) or "run"
        return f"{readable}-{_digest(f'{self.run_id}|{self.run_after}', 8)}"

    def directory(self, root: str) -> str:
        """The directory that holds all generations of this training below the checkpoint root."""
        parts = (segment(self.dag_id), segment(self.task_id), self.run_key, str(self.map_index))
        return "/".join((root.rstrip("/"), *parts))

    def lineage_uri(self, root: str, generation: int) -> str:
        """The URI of one generation's lineage."""
        return f"{self.directory(root)}/g{generation}"


def training_id(lineage_uri: str) -> str:
    """Return the short, stable id of the training that owns this lineage."""
    return f"t{_digest(lineage_uri.rstrip('/'), 15)}"


def job_id(key: TrainingKey, training: str, attempt: int) -> str:
    """Return the id of an attempt's job: legal for Google Cloud Batch, readable, and deterministic."""
    tail = f"{training}-{attempt}"
    room = MAX_JOB_ID - len(tail) - 1
    readable = _slug(f"{key.dag_id}-{key.task_id}".lower(), "a-z0-9", room)
    head = readable if readable[:1].isalpha() else f"j-{readable}"[:room].rstrip("-")
    return f"{head}-{tail}"


def request_id(job_name: str) -> str:
    """Return the idempotency UUID of creating this job."""
    return str(uuid.uuid5(_NAMESPACE, job_name))


def attempt_token(training: str, attempt: int, try_number: int, ti_id: str) -> str:
    """Return what tells one task instance's hold on an attempt from another's."""
    return _digest(f"{training}|{attempt}|{try_number}|{ti_id}", 16)
