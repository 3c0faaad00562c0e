"""A lineage as its store shows it, looked at lazily: one listing per attempt and per candidate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.manifest import Abandoned, Manifest
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.store import Store, Unlistable, open_store
from airflow_resume_provider.errors import (
    CheckpointBroken,
    CheckpointNotFound,
    InvalidInput,
    ManifestError,
    ObjectNotFound,
)

NO_MANIFEST = "it has no manifest: its commit was never finished"
ABANDONED = "its commit was abandoned, and another writer took its place"


class LineageView:
    """Answers the questions of the choice from a store. Remembers what it has seen.

    `broken` holds what a download has found to be broken, by URI.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.broken: dict[str, str] = {}
        self._manifests: dict[str, Manifest | str] = {}

    @cached_property
    def attempt_directories(self) -> Mapping[int, list[str]]:
        """Directory names by number; several writers may have padded one number differently."""
        return _numbered(self._store.directories(names.ATTEMPTS))

    @cached_property
    def training_id(self) -> str:
        """The training this lineage says it belongs to, or an empty string."""
        return str(read_json(self._store, names.TRAINING).get("training_id") or "")

    @cached_property
    def quarantined(self) -> Mapping[tuple[int, int], str]:
        """Reasons of the quarantined checkpoints, by attempt and index."""
        found = {}
        for entry in self._store.objects(names.QUARANTINE):
            place = names.marked(entry.name)
            if place:
                found[place] = str(
                    read_json(self._store, entry.name).get("reason") or "no reason was recorded"
                )
        return found

    def attempts(self) -> Sequence[int]:
        """Return the numbers of the attempts."""
        return sorted(self.attempt_directories)

    def checkpoints(self, attempt: int) -> Sequence[tuple[int, str]]:
        """Return `(index, uri)` of an attempt's checkpoint directories."""
        found = []
        for directory in self.attempt_directories.get(attempt, ()):
            below = f"{names.ATTEMPTS}/{directory}/{names.CHECKPOINTS}"
            for index, spellings in _numbered(self._store.directories(below)).items():
                found += [(index, f"{self._store.uri}/{below}/{spelling}") for spelling in spellings]
        return found

    def record(self, attempt: int, file: str) -> Mapping[str, Any]:
        """Return one of an attempt's JSON records; empty when it is not there or unreadable."""
        for directory in self.attempt_directories.get(attempt, ()):
            data = read_json(self._store, f"{names.ATTEMPTS}/{directory}/{file}")
            if data:
                return data
        return {}

    def resumed_from(self, attempt: int) -> str:
        """Return what an attempt records to have restored."""
        source = self.record(attempt, "attempt.json").get("resumed_from")
        return source.rstrip("/") if isinstance(source, str) else ""

    def examine(self, uri: str) -> Reference | str:
        """Return a checkpoint's reference if a listing shows all of it, else the reason."""
        return self.broken.get(uri) or self._examine(uri)

    def load(self, uri: str) -> Manifest | str:
        """Return a checkpoint's manifest, or the reason why it has none that counts."""
        if uri not in self._manifests:
            self._manifests[uri] = self._load(uri)
        return self._manifests[uri]

    def at(self, uri: str) -> tuple[Store, str]:
        """Return the store that holds a checkpoint, and its prefix there."""
        if uri.startswith(f"{self._store.uri}/"):
            return self._store, uri.removeprefix(f"{self._store.uri}/")
        return open_store(uri, self._store.options, parameter="checkpoint"), ""

    def require(self, uri: str) -> Manifest:
        """Return a checkpoint's manifest; raises `CheckpointNotFound` or `CheckpointBroken`."""
        found = self.load(uri)
        if isinstance(found, Manifest):
            return found
        if found == NO_MANIFEST:
            raise CheckpointNotFound(f"There is no checkpoint {uri}: {found}.", uri=uri)
        raise CheckpointBroken(f"{uri} is broken: {found}.", uri=uri, reason=found)

    def _examine(self, uri: str) -> Reference | str:
        reason = self._quarantine_reason(uri)
        if reason:
            return f"it is quarantined: {reason}"
        manifest = self.load(uri)
        if isinstance(manifest, str):
            return manifest
        return incomplete(*self.at(uri), manifest) or reference_of(manifest, uri)

    def _quarantine_reason(self, uri: str) -> str:
        place = names.split_checkpoint(uri)
        return self.quarantined.get(place[1:], "") if place and place[0] == self._store.uri else ""

    def _load(self, uri: str) -> Manifest | str:
        try:
            manifest = read_manifest(*self.at(uri), uri)
        except ObjectNotFound:
            return NO_MANIFEST
        except Abandoned:
            return ABANDONED
        except ManifestError as error:
            return f"its manifest cannot be trusted: {error.seen}"
        except InvalidInput as error:
            return error.seen
        own = self.training_id if uri.startswith(f"{self._store.uri}/") else ""
        if own and manifest.training_id not in ("", own):
            return f"it belongs to another training ({manifest.training_id}, not {own})"
        return manifest


def read_json(store: Store, name: str) -> Mapping[str, Any]:
    """Read a small JSON object; what is absent, or is no JSON object, reads as empty."""
    try:
        data = json.loads(store.read(name))
    except (ObjectNotFound, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_manifest(store: Store, prefix: str, uri: str) -> Manifest:
    """Read a checkpoint's manifest; raises `ObjectNotFound` or a `ManifestError`."""
    return Manifest.from_json(store.read(_below(prefix, names.MANIFEST)), uri=uri)


def reference_of(manifest: Manifest, uri: str) -> Reference:
    """Return the reference that names a checkpoint."""
    return Reference(
        uri=uri,
        index=manifest.index,
        step=manifest.step,
        attempt=manifest.attempt,
        metrics=manifest.metrics,
        total_bytes=manifest.total_bytes,
    )


def incomplete(store: Store, prefix: str, manifest: Manifest) -> str:
    """Return what is missing or has the wrong size, in words, or an empty string."""
    sizes = _sizes(store, prefix, manifest)
    for entry in manifest.files:
        size = sizes.get(entry.stored)
        if size is None:
            return f"{entry.path} is missing"
        if size != entry.size:
            return f"{entry.path} is {size} bytes, its manifest says {entry.size}"
    return ""


def _sizes(store: Store, prefix: str, manifest: Manifest) -> Mapping[str, int]:
    cut = len(prefix) + 1 if prefix else 0
    try:
        return {entry.name[cut:]: entry.size for entry in store.objects(prefix)}
    except Unlistable:
        # The files themselves can still be asked for by name.
        return _asked(store, prefix, manifest)


def _asked(store: Store, prefix: str, manifest: Manifest) -> Mapping[str, int]:
    def ask(stored: str) -> tuple[str, int] | None:
        try:
            return stored, store.size(_below(prefix, stored))
        except ObjectNotFound:
            return None

    with ThreadPoolExecutor(store.options.small_streams) as pool:
        return dict(filter(None, pool.map(ask, [entry.stored for entry in manifest.files])))


def _below(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _numbered(directories: Sequence[str]) -> Mapping[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in sorted(directories):
        value = names.number(name)
        if value is not None:
            found.setdefault(value, []).append(name)
    return found
