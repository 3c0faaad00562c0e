"""State on disk: one SQLite file, so that the server survives its own end at any instruction."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.messages import Job, ListTasksResponse, Operation
from airflow_resume_provider.testing.batch.records import JobRecord

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, job BLOB, tasks BLOB, extra TEXT);
CREATE TABLE IF NOT EXISTS operations (name TEXT PRIMARY KEY, operation BLOB);
CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, time REAL, response BLOB);
"""
REQUEST_ID_SECONDS = 3600.0  # the API promises idempotency for 60 minutes


class Store:
    """Jobs, operations and request ids. Writes are gathered by `mark` and made by `flush`.

    Durable against the end of the process; against the end of the machine only
    as far as the operating system goes, which is all that a local stack needs.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.executescript(_SCHEMA)
        self._dirty: dict[str, JobRecord] = {}
        self.cost = 0.0  # seconds that the last write took

    def mark(self, record: JobRecord) -> None:
        """Remember that a job changed."""
        self._dirty[record.name] = record

    @property
    def dirty(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._dirty)

    def flush(self, *names: str) -> None:
        """Write the jobs of these names, or every one, as far as they changed, in one transaction."""
        changed = [self._dirty.pop(name) for name in names or list(self._dirty) if name in self._dirty]
        if not changed:
            return
        began = time.monotonic()
        rows = [self._row(record) for record in changed]
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")
        self.cost = time.monotonic() - began

    @staticmethod
    def _row(record: JobRecord) -> tuple[str, bytes, bytes, str]:
        tasks = ListTasksResponse(tasks=record.tasks).SerializeToString()
        extra = json.dumps({name: getattr(record, name) for name in ("retries", "running_since", "number")})
        return record.name, record.job.SerializeToString(), tasks, extra

    def jobs(self, clock: Clock) -> list[JobRecord]:
        """Every job that was there when the server ended."""
        rows = self._db.execute("SELECT job, tasks, extra FROM jobs").fetchall()
        return [
            JobRecord(
                Job.FromString(job),
                clock,
                list(ListTasksResponse.FromString(tasks).tasks),
                **json.loads(extra),
            )
            for job, tasks, extra in rows
        ]

    def forget(self, name: str) -> None:
        """Delete a job."""
        self._dirty.pop(name, None)
        self._db.execute("DELETE FROM jobs WHERE name = ?", (name,))

    def save_operation(self, operation: Any) -> None:
        """Write a long-running operation."""
        row = (operation.name, operation.SerializeToString())
        self._db.execute("INSERT OR REPLACE INTO operations VALUES (?, ?)", row)

    def forget_operation(self, name: str) -> None:
        """Delete a long-running operation."""
        self._db.execute("DELETE FROM operations WHERE name = ?", (name,))

    def operations(self) -> list[Any]:
        """Every operation."""
        return [Operation.FromString(row[0]) for row in self._db.execute("SELECT operation FROM operations")]

    def remember(self, key: str, response: bytes) -> None:
        """Keep the answer to a request id."""
        self._db.execute("DELETE FROM requests WHERE time < ?", (time.time() - REQUEST_ID_SECONDS,))
        self._db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (key, time.time(), response))

    def recall(self, key: str) -> bytes | None:
        """The answer that a request id got within the last hour."""
        since = time.time() - REQUEST_ID_SECONDS
        query = "SELECT response FROM requests WHERE key = ? AND time >= ?"
        row = self._db.execute(query, (key, since)).fetchone()
        return row[0] if row else None

    def clear(self) -> None:
        """Forget everything."""
        self._dirty.clear()
        for table in ("jobs", "operations", "requests"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are the three above

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self._db.close()
