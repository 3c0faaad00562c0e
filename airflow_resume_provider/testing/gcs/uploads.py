"""Uploads that take several requests: their rows in the catalogue."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from .catalogue import Catalogue
from .refusals import Refusal, no_upload

WEEK = 7 * 24 * 3600 * 1_000_000  # microseconds a resumable session lives


@dataclass(slots=True)
class Upload:
    """An upload under way. `state` is what its protocol needs to remember."""

    id: str
    kind: str  # "resumable" or "multipart"
    bucket: str
    name: str
    created: int
    state: dict[str, Any]


def _upload(row: tuple[Any, ...]) -> Upload:
    identity, kind, bucket, name, created, state = row
    return Upload(identity, kind, bucket, name, created, json.loads(state))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an XML multipart upload."""

    number: int
    file: str
    size: int
    crc32c: int
    etag: str
    created: int


class Uploads:
    """All uploads under way."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._db = catalogue, catalogue.db

    def begin(self, kind: str, bucket: str, name: str, state: dict[str, Any]) -> Upload:
        """Start an upload under a new id."""
        upload = Upload(secrets.token_hex(24), kind, bucket, name, self._catalogue.micros(), state)
        row = (upload.id, kind, bucket, name, upload.created, json.dumps(state))
        self._db.execute("INSERT INTO uploads VALUES (?,?,?,?,?,?)", row)
        return upload

    def find(self, kind: str, identity: str) -> Upload:
        """Return an upload, or refuse: 410 for an expired session, 404 for an unknown one."""
        row = self._db.execute("SELECT * FROM uploads WHERE id=? AND kind=?", (identity, kind)).fetchone()
        if row is None:
            raise no_upload()
        upload = _upload(row)
        age = self._catalogue.micros() - upload.created
        if kind == "resumable" and (age > WEEK or upload.state.get("ended")):
            raise Refusal(410, "gone", "The requested upload session is gone.", code="NoSuchUpload")
        return upload

    def forget_old(self) -> None:
        """Remove sessions that nobody can use any more, a week after they ended."""
        limit = self._catalogue.micros() - 2 * WEEK
        self._db.execute("DELETE FROM uploads WHERE kind='resumable' AND created < ?", (limit,))

    def save(self, upload: Upload) -> None:
        """Keep what the upload remembers now."""
        self._db.execute("UPDATE uploads SET state=? WHERE id=?", (json.dumps(upload.state), upload.id))

    def forget(self, upload: Upload) -> None:
        """Remove the upload and its parts. Call it inside a transaction when both must go together."""
        self._db.execute("DELETE FROM parts WHERE upload=?", (upload.id,))
        self._db.execute("DELETE FROM uploads WHERE id=?", (upload.id,))

    def of_bucket(self, bucket: str, prefix: str) -> list[Upload]:
        """Return the multipart uploads of a bucket by name, then time."""
        rows = self._db.execute(
            "SELECT * FROM uploads WHERE bucket=? AND kind='multipart' ORDER BY name, created", (bucket,)
        )
        return [_upload(row) for row in rows if row[3].startswith(prefix)]

    def parts(self, upload: Upload) -> list[Part]:
        """Return the parts that arrived, by number."""
        rows = self._db.execute(
            "SELECT number, file, size, crc32c, etag, created FROM parts WHERE upload=? ORDER BY number",
            (upload.id,),
        )
        return [Part(*row) for row in rows]

    def put_part(self, upload: Upload, part: Part) -> str | None:
        """Keep a part; returns the file of the one it replaces."""
        with self._catalogue.transaction():
            if not self._db.execute("SELECT 1 FROM uploads WHERE id=?", (upload.id,)).fetchone():
                raise no_upload()
            key = (upload.id, part.number)
            old = self._db.execute("SELECT file FROM parts WHERE upload=? AND number=?", key).fetchone()
            row = (*key, part.file, part.size, part.crc32c, part.etag, part.created)
            self._db.execute("INSERT OR REPLACE INTO parts VALUES (?,?,?,?,?,?,?)", row)
        return old[0] if old else None
