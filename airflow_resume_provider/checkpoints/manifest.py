"""The manifest: what a checkpoint consists of. It is written last, and only once.

What has no manifest does not exist. Fields that this version does not know are
kept when a manifest is read and written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from airflow_resume_provider.checkpoints import checksum, names
from airflow_resume_provider.checkpoints.json_values import is_shallow, parse
from airflow_resume_provider.errors import (
    DuplicatePath,
    ManifestError,
    ManifestUnreadable,
    UnknownSchema,
    WrongSize,
)

SCHEMA = 1


class Abandoned(ManifestUnreadable):
    """A tombstone in place of a manifest: nobody can commit here any more."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file: natural relative path, size in bytes, crc32c as the store shows it.

    `stored_as` is the object's name where it cannot be the path itself; see
    `names.stored_as`.
    """

    path: str
    size: int
    crc32c: str
    stored_as: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> str:
        """The object's name below the checkpoint."""
        return self.stored_as or self.path

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, unknown fields included."""
        own: dict[str, Any] = {"path": self.path, "size": self.size, "crc32c": self.crc32c}
        if self.stored_as:
            own["stored_as"] = self.stored_as
        return {**self.extra, **own}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A complete checkpoint's description; `directories` are the empty ones."""

    training_id: str
    attempt: int
    index: int
    step: int
    files: tuple[FileEntry, ...]
    created: str = ""
    format: str = "directory"
    world_size: int = 1
    directories: tuple[str, ...] = ()
    total_bytes: int = -1
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: str = ""
    spec_digest: str = ""
    commit_id: str = ""
    schema: int | str = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.files:
            raise _unreadable("The manifest names no file, so there is nothing to resume from.")
        _check_paths(self.files, self.directories)
        total = sum(entry.size for entry in self.files)
        if self.total_bytes not in (-1, total):
            raise WrongSize(
                f"The files add up to {total} bytes, the manifest says {self.total_bytes}.", uri=""
            )
        object.__setattr__(self, "total_bytes", total)

    def to_json(self) -> bytes:
        """Return the bytes that are written to the store."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        own["files"] = [entry.to_dict() for entry in self.files]
        own["directories"] = list(self.directories)
        return (
            json.dumps({**self.extra, **own}, ensure_ascii=False, indent=1, allow_nan=False).encode() + b"\n"
        )

    @classmethod
    def from_json(cls, raw: bytes, *, uri: str = "") -> Self:
        """Read a manifest; every defect is a named error that carries `uri`."""
        try:
            return cls._read(_load(raw), uri)
        except ManifestError as error:
            error.uri = error.data["uri"] = uri
            raise

    @classmethod
    def _read(cls, data: Mapping[str, Any], uri: str) -> Self:
        _check_schema(data.get("schema"))
        if data.get("abandoned"):
            raise Abandoned("The commit was abandoned, and another writer took its place.", uri="")
        place = names.split_checkpoint(uri) or ("", -1, -1)
        files, directories = _split(_typed(data, "files", list), _typed(data, "directories", list, []))
        known = {f.name for f in fields(cls)} - {"extra"}
        return cls(
            schema=data["schema"],
            training_id=_typed(data, "training_id", str, ""),
            attempt=_placed(data, "attempt", place[1]),
            index=_placed(data, "index", place[2]),
            step=_natural(data, "step"),
            files=files,
            created=_typed(data, "created", str, ""),
            format=_typed(data, "format", str, "directory"),
            world_size=_typed(data, "world_size", int, 1),
            directories=directories,
            total_bytes=-1 if data.get("total_bytes") is None else _natural(data, "total_bytes"),
            metrics=_shallow(data, "metrics"),
            metadata=_shallow(data, "metadata"),
            resumed_from=_typed(data, "resumed_from", str, ""),
            spec_digest=_typed(data, "spec_digest", str, ""),
            commit_id=_typed(data, "commit_id", str, ""),
            extra={name: value for name, value in data.items() if name not in known},
        )


def _unreadable(seen: str) -> ManifestUnreadable:
    return ManifestUnreadable(seen, uri="")


def _load(raw: bytes) -> Mapping[str, Any]:
    try:
        data = parse(raw)
    except ValueError as error:
        raise _unreadable(f"The manifest is not JSON ({error}); it may be truncated.") from error
    if not isinstance(data, dict):
        raise _unreadable("The manifest is not a JSON object.")
    return data


def _check_schema(schema: Any) -> None:
    major = str(schema).partition(".")[0]
    if isinstance(schema, bool) or names.number(major) is None:
        raise _unreadable(f"The manifest's schema version is {str(schema)[:40]!r}, not a number.")
    if int(major) != SCHEMA:
        raise UnknownSchema(
            f"The manifest has schema version {schema}; this version reads {SCHEMA}.",
            can="Upgrade airflow-resume-provider where this runs.",
            uri="",
        )


_REQUIRED = object()


def _typed(data: Mapping[str, Any], name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = data.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _unreadable(f"The manifest's field {name!r} is {value!r}, not {kind.__name__}.")
    return value


def _shallow(data: Mapping[str, Any], name: str) -> Any:
    value = _typed(data, name, dict, {})
    if not is_shallow(value):
        raise _unreadable(f"The manifest's field {name!r} is nested too deeply.")
    return value


def _natural(data: Mapping[str, Any], name: str) -> int:
    value: int = _typed(data, name, int)
    if value < 0:
        raise WrongSize(f"The manifest's field {name!r} is {value}, which is less than nothing.", uri="")
    return value


def _placed(data: Mapping[str, Any], name: str, place: int) -> int:
    value: int = _typed(data, name, int, place)
    if place not in (-1, value):
        raise _unreadable(
            f"The manifest says {name} {value}, but lies at {place}: it is a copy of another one."
        )
    return value


def _split(items: list[Any], directories: list[Any]) -> tuple[tuple[FileEntry, ...], tuple[str, ...]]:
    """Read the entries; one whose path ends in `/` is an empty directory, as some tools write it."""
    entries = [_entry(item) for item in items]
    placeholders = [
        entry.path.rstrip("/") for entry in entries if entry.path.endswith("/") and not entry.size
    ]
    files = tuple(entry for entry in entries if not (entry.path.endswith("/") and not entry.size))
    return files, tuple(dict.fromkeys([*map(str, directories), *placeholders]))


def _entry(item: Any) -> FileEntry:
    if not isinstance(item, dict):
        raise _unreadable(f"A file's entry is {item!r}, not an object.")
    path, size = _typed(item, "path", str), _typed(item, "size", int)
    if size < 0:
        raise WrongSize(f"The manifest gives {path!r} a size of {size}.", uri="")
    crc = _typed(item, "crc32c", str)
    try:
        checksum.decode(crc)
    except ValueError as error:
        raise _unreadable(f"The crc32c of {path!r} is unreadable: {error}.") from error
    extra = {k: v for k, v in item.items() if k not in ("path", "size", "crc32c", "stored_as")}
    return FileEntry(
        path=path, size=size, crc32c=crc, stored_as=_typed(item, "stored_as", str, ""), extra=extra
    )


def _encodable(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise _unreadable(f"The name {path!r} is not valid Unicode.") from error
    return path


def _check_paths(files: Sequence[FileEntry], directories: Sequence[str]) -> None:
    seen: set[str] = set()
    for path in [*(entry.path for entry in files), *directories]:
        _encodable(names.contained(path))
        if path in seen:
            raise DuplicatePath(f"The manifest names {path!r} twice.", uri="")
        seen.add(path)
    stored = [_encodable(names.contained(entry.stored)) for entry in files]
    if len(set(stored)) < len(stored):
        raise DuplicatePath("Two files of the manifest are one object.", uri="")
    paths = {entry.path for entry in files}
    for path in seen:
        above = paths.intersection(names.parents(path))
        if above:
            raise DuplicatePath(f"The manifest names {above.pop()!r} as a file and as a directory.", uri="")
