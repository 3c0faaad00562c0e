"""What is in the buckets: a SQLite file, so that a kill at any moment leaves a consistent state.

Bytes live in files of their own (see `blobs`); a row is what makes them an
object. Every change is one transaction that checks its preconditions inside.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .refusals import Refusal, conflict, no_bucket
from .versions import Version

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counter (last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY, metageneration INTEGER, created INTEGER, updated INTEGER, settings TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT, name TEXT, generation INTEGER, metageneration INTEGER, size INTEGER, crc32c INTEGER,
    md5 BLOB, segments TEXT, created INTEGER, updated INTEGER, deleted INTEGER, components INTEGER,
    settings TEXT, PRIMARY KEY (bucket, name, generation)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, kind TEXT, bucket TEXT, name TEXT, created INTEGER, state TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT, number INTEGER, file TEXT, size INTEGER, crc32c INTEGER, etag TEXT, created INTEGER,
    PRIMARY KEY (upload, number)
) WITHOUT ROWID;
"""
_MOST_REMEMBERED = 20_000
_INSERT = f"INSERT INTO objects VALUES ({','.join('?' * 13)})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and what its owner set on it."""

    name: str
    metageneration: int
    created: int
    updated: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def versioned(self) -> bool:
        """Whether replaced and deleted objects stay as noncurrent versions."""
        return bool((self.settings.get("versioning") or {}).get("enabled"))

    @property
    def requester_pays(self) -> bool:
        """Whether requests must name the project that pays."""
        return bool((self.settings.get("billing") or {}).get("requesterPays"))


def _bucket(row: tuple[Any, ...]) -> Bucket:
    name, metageneration, created, updated, settings = row
    return Bucket(name, metageneration, created, updated, json.loads(settings))


class Catalogue:
    """The tables, and the transactions on them."""

    def __init__(
        self, path: Path, *, durable: bool, shared: bool = False, now: Callable[[], float] = time.time
    ) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
        self.db.execute("PRAGMA journal_mode=WAL")
        # OFF survives a kill of the process; only `durable` survives a power cut.
        self.db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        self.db.execute("PRAGMA wal_autocheckpoint=4000")
        self.db.executescript(_SCHEMA)
        self._now, self._shared = now, shared
        # SQLite lets who has to wait sleep for a millisecond or more; a transaction takes a tenth of one.
        self._turn = os.open(f"{path}.turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if shared else -1
        self._seen = -1  # the state of the file that what is kept in memory was read from
        self._buckets: dict[str, Bucket] = {}  # read on every request
        # Live versions that were asked for; every change of an object forgets its own.
        self._remembered: dict[tuple[str, str], Version] = {}
        if not self.db.execute("SELECT 1 FROM counter").fetchone():
            self.db.execute("INSERT INTO counter VALUES (0)")
        self._reserved: int = self.db.execute("SELECT last FROM counter").fetchone()[0]
        self._last: int = self._reserved
        self._load_buckets()

    def close(self) -> None:
        """Write everything into the main file and let go of it."""
        self.db.close()
        if self._shared:
            os.close(self._turn)

    def refresh(self) -> None:
        """Forget what other processes have changed since; nobody else can where they do not share."""
        if not self._shared:
            return
        (version,) = self.db.execute("PRAGMA data_version").fetchone()
        if version != self._seen:
            self._seen = version
            self._remembered.clear()
            self._load_buckets()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self._my_turn():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                self.refresh()
                yield
            except BaseException:
                self.db.execute("ROLLBACK")
                self._remembered.clear()
                self._reserved = 0  # what was reserved may have been rolled back too
                raise
            self.db.execute("COMMIT")

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Wait until no other process writes."""
        if not self._shared:
            yield
            return
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def micros(self) -> int:
        """The time now, in microseconds since 1970."""
        return int(self._now() * 1_000_000)

    def next_generation(self) -> int:
        """Return a number above all before it, also over restarts and a clock that goes back.

        Call it inside a transaction. Numbers are reserved on disk a second
        ahead, so that most uploads need not write the counter; not where other
        processes take numbers too.
        """
        if self._shared:
            self._last = self._reserved = self.db.execute("SELECT last FROM counter").fetchone()[0]
        self._last = max(self.micros(), self._last + 1)
        if self._last > self._reserved:
            self._reserved = self._last + (0 if self._shared else 1_000_000)
            self.db.execute("UPDATE counter SET last = ?", (self._reserved,))
        return self._last

    # Buckets

    def _load_buckets(self) -> None:
        rows = self.db.execute("SELECT * FROM buckets ORDER BY name")
        self._buckets = {row[0]: _bucket(row) for row in rows}

    def buckets(self) -> list[Bucket]:
        """All buckets, by name."""
        return list(self._buckets.values())

    def bucket(self, name: str) -> Bucket:
        """Return a bucket, or refuse with 404."""
        try:
            return self._buckets[name]
        except KeyError:
            raise no_bucket() from None

    def has_bucket(self, name: str) -> bool:
        """Whether there is such a bucket."""
        return name in self._buckets

    def create_bucket(self, name: str, settings: dict[str, Any]) -> Bucket:
        """Create a bucket, or refuse with 409."""
        now = self.micros()
        try:
            self.db.execute(
                "INSERT INTO buckets VALUES (?,?,?,?,?)", (name, 1, now, now, json.dumps(settings))
            )
        except sqlite3.IntegrityError:
            message = "Your previous request to create the named bucket succeeded and you already own it."
            raise conflict(message, code="BucketAlreadyOwnedByYou") from None
        self._load_buckets()
        return self._buckets[name]

    def change_bucket(self, bucket: Bucket, settings: dict[str, Any]) -> Bucket:
        """Replace a bucket's settings; its metageneration goes up.

        Refuses with 503 when another process has changed it since `bucket` was read.
        """
        with self.transaction():
            if self.bucket(bucket.name).metageneration != bucket.metageneration:
                raise Refusal(503, "backendError", "The bucket was changed at the same moment. Try again.")
            row = (bucket.metageneration + 1, self.micros(), json.dumps(settings), bucket.name)
            self.db.execute("UPDATE buckets SET metageneration=?, updated=?, settings=? WHERE name=?", row)
        self._load_buckets()
        return self._buckets[bucket.name]

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket, or refuse with 409."""
        with self.transaction():
            if self.db.execute("SELECT 1 FROM objects WHERE bucket=? LIMIT 1", (name,)).fetchone():
                raise conflict("The bucket you tried to delete is not empty.", code="BucketNotEmpty")
            self.db.execute("DELETE FROM buckets WHERE name=?", (name,))
        self._load_buckets()

    # Objects

    def live(self, bucket: str, name: str) -> Version | None:
        """Return the live version of an object, if there is one."""
        if (known := self._remembered.get((bucket, name))) is not None:
            return known
        row = self.db.execute(
            "SELECT * FROM objects WHERE bucket=? AND name=? AND deleted IS NULL", (bucket, name)
        ).fetchone()
        return self._remember(Version.from_row(row)) if row else None

    def _remember(self, version: Version) -> Version:
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        return self._remembered.setdefault((version.bucket, version.name), version)

    def version(self, bucket: str, name: str, generation: int | None = None) -> Version | None:
        """Return one version, the live one when no generation is given."""
        if generation is None:
            return self.live(bucket, name)
        row = self.db.execute(
            "SELECT * FROM objects WHERE bucket=? AND name=? AND generation=?", (bucket, name, generation)
        ).fetchone()
        return Version.from_row(row) if row else None

    def insert(self, version: Version) -> None:
        """Add a version. Call it inside a transaction."""
        self._remembered.pop((version.bucket, version.name), None)
        self.db.execute(_INSERT, version.row())

    def retire(self, version: Version, *, keep: bool) -> bool:
        """Make a live version noncurrent, or remove it. Returns whether its bytes are garbage now."""
        self._remembered.pop((version.bucket, version.name), None)
        key = (version.bucket, version.name, version.generation)
        if keep and version.deleted is None:
            change = "UPDATE objects SET deleted=? WHERE bucket=? AND name=? AND generation=?"
            self.db.execute(change, (self.micros(), *key))
            return False
        self.db.execute("DELETE FROM objects WHERE bucket=? AND name=? AND generation=?", key)
        return True

    def change(self, version: Version, settings: dict[str, Any]) -> Version:
        """Replace what a client may set on a version; its metageneration goes up."""
        self._remembered.pop((version.bucket, version.name), None)
        changed = replace(
            version,
            settings=settings,
            metageneration=version.metageneration + 1,
            updated=max(self.micros(), version.updated),
        )
        row = (changed.metageneration, changed.updated, json.dumps(settings))
        key = (version.bucket, version.name, version.generation)
        self.db.execute(
            "UPDATE objects SET metageneration=?, updated=?, settings=? "
            "WHERE bucket=? AND name=? AND generation=?",
            row + key,
        )
        return changed

    def scan(
        self, bucket: str, start: str, end: str | None, versions: bool, after: int, limit: int
    ) -> list[Version]:
        """Return up to `limit` versions from name `start` (beyond generation `after`) to before `end`."""
        where = "bucket=? AND (name, generation) > (?, ?)"
        values: list[Any] = [bucket, start, after]
        if end is not None:
            where, values = f"{where} AND name < ?", [*values, end]
        if not versions:
            where += " AND deleted IS NULL"
        sql = f"SELECT * FROM objects WHERE {where} ORDER BY name, generation LIMIT ?"  # noqa: S608
        found = [Version.from_row(row) for row in self.db.execute(sql, [*values, limit])]
        # What is listed is mostly read next.
        return found if versions else [self._remember(version) for version in found]

    def files_in_use(self) -> set[str]:
        """Return the names of all files that rows refer to."""
        used = {row[0] for row in self.db.execute("SELECT file FROM parts")}
        for (segments,) in self.db.execute("SELECT segments FROM objects"):
            used.update(name for name, _ in json.loads(segments))
        used.update(row[0] for row in self.db.execute("SELECT id FROM uploads WHERE kind='resumable'"))
        return used
