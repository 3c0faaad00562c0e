"""A lineage as its store shows it, looked at lazily: one listing per attempt and per candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.json_values import parse
from airflow_resume_provider.checkpoints.manifest import Abandoned, Manifest
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.spelling import canonical, located
from airflow_resume_provider.checkpoints.store import Store, Unlistable, open_store
from airflow_resume_provider.errors import (
    CheckpointBroken,
    CheckpointNotFound,
    InvalidInput,
    ManifestError,
    ManifestUnreadable,
    ObjectNotFound,
    UnknownSchema,
)

NO_MANIFEST = "it has no manifest: its commit was never finished"
QUARANTINED = "it is quarantined"
ABANDONED = "its commit was abandoned, and another writer took its place"
_READERS = 32
T = TypeVar("T")


class LineageView:
    """Answers the questions of the choice from a store. Remembers what it has seen.

    `broken` holds what a download has found to be broken, by URI.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.broken: dict[str, str] = {}
        self._manifests: dict[str, Manifest | str] = {}
        self._newer: dict[str, UnknownSchema] = {}

    @cached_property
    def attempt_directories(self) -> Mapping[int, list[str]]:
        """Directory names by number; several writers may have padded one number differently."""
        return _numbered(self._store.directories(names.ATTEMPTS))

    @cached_property
    def training_id(self) -> str:
        """The training this lineage belongs to, or an empty string.

        Where nobody has said so, the oldest checkpoint decides: what was copied in came later.
        """
        return str(read_training(self._store).get("training_id") or "") or self._oldest_id()

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
        """Return what an attempt records to have restored, unless only a newer attempt can have made it."""
        source = self.record(attempt, "attempt.json").get("resumed_from")
        place = self.place(source) if isinstance(source, str) else None
        return self.own(source) if isinstance(source, str) and not (place and place[0] > attempt) else ""

    def own(self, uri: str) -> str:
        """Return the lineage's own spelling of one of its checkpoints, and any other URI as it is."""
        place = located(uri)
        if place is None or place.lineage != self._canonical:
            return uri.rstrip("/")
        return f"{self._store.uri}/{place.below}"

    def place(self, uri: str) -> tuple[int, int] | None:
        """Return attempt and index of a checkpoint of this lineage; `None` for any other URI."""
        place = located(uri)
        return (place.attempt, place.index) if place and place.lineage == self._canonical else None

    @cached_property
    def _canonical(self) -> str:
        return canonical(self._store.uri)

    def examine(self, uri: str) -> Reference | str:
        """Return a checkpoint's reference if a listing shows all of it, else the reason.

        Raises `UnknownSchema` for one that a newer version has written: passing
        over it could mean to lose what it holds.
        """
        state = self.state(uri)
        if uri in self._newer and isinstance(state, str) and not state.startswith(QUARANTINED):
            raise self._newer[uri]
        return state

    def state(self, uri: str) -> Reference | str:
        """Return the same, and a reason also for what a newer version has written."""
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
        if uri in self._newer:
            raise self._newer[uri]
        if found == NO_MANIFEST:
            raise CheckpointNotFound(f"There is no checkpoint {uri}: {found}.", uri=uri)
        raise CheckpointBroken(f"{uri} is broken: {found}.", uri=uri, reason=found)

    def _examine(self, uri: str) -> Reference | str:
        reason = self._quarantine_reason(uri)
        if reason:
            return f"{QUARANTINED}: {reason}"
        manifest = self.load(uri)
        if isinstance(manifest, str):
            return manifest
        return incomplete(*self.at(uri), manifest) or reference_of(manifest, uri)

    def _quarantine_reason(self, uri: str) -> str:
        place = self.place(uri)
        return self.quarantined.get(place, "") if place else ""

    def _oldest_id(self) -> str:
        for attempt in self.attempts():
            for _, uri in sorted(self.checkpoints(attempt)):
                with suppress(ObjectNotFound, ManifestError):
                    manifest = read_manifest(*self.at(uri), uri)
                    if manifest.training_id:
                        return manifest.training_id
        return ""

    def _load(self, uri: str) -> Manifest | str:
        try:
            manifest = read_manifest(*self.at(uri), uri)
        except ObjectNotFound:
            return NO_MANIFEST
        except Abandoned:
            return ABANDONED
        except UnknownSchema as error:
            self._newer[uri] = UnknownSchema(
                f"{uri} was written by a newer version of airflow-resume-provider: {error.seen}",
                did="Nothing was chosen: passing over it could lose what it holds.",
                can=f"{error.can} To go on without it, quarantine it.",
                uri=uri,
            )
            return f"a newer version has written it: {error.seen}"
        except ManifestError as error:
            return f"its manifest cannot be trusted: {error.seen}"
        except InvalidInput as error:
            return error.seen
        own = self.training_id if self.place(uri) else ""
        if own and manifest.training_id not in ("", own):
            return f"it belongs to another training ({manifest.training_id}, not {own})"
        return manifest


def twice(read: Callable[[], T], damaged: type[Exception]) -> T:
    """Read what is damaged once more, like files: that tells a bad transfer from a bad object."""
    try:
        return read()
    except Abandoned:
        raise
    except damaged:
        return read()


def read_json(store: Store, name: str) -> Mapping[str, Any]:
    """Read a small JSON object; what is absent, or is no JSON object, reads as empty."""
    try:
        data = twice(lambda: parse(store.read(name)), ValueError)
    except (ObjectNotFound, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_training(store: Store) -> Mapping[str, Any]:
    """Read who a lineage belongs to; empty when nobody has said so.

    Raises `ManifestUnreadable` when somebody has, in words that cannot be read.
    """
    try:
        data = twice(lambda: parse(store.read(names.TRAINING)), ValueError)
        if isinstance(data, dict) and isinstance(data.get("training_id"), str):
            return data
        defect = "it names no training_id"
    except ObjectNotFound:
        return {}
    except ValueError as error:
        defect = f"it is not JSON ({error}); it may be truncated"
    uri = f"{store.uri}/{names.TRAINING}"
    raise ManifestUnreadable(
        f"{uri} cannot be read: {defect}.",
        did="Nothing was chosen: whose checkpoints these are is not known.",
        can="Restore the file, or delete it; then the oldest checkpoint says whose they are.",
        uri=uri,
    )


def read_manifest(store: Store, prefix: str, uri: str) -> Manifest:
    """Read a checkpoint's manifest; raises `ObjectNotFound` or a `ManifestError`."""
    name = _below(prefix, names.MANIFEST)
    return twice(lambda: Manifest.from_json(store.read(name), uri=uri), ManifestUnreadable)


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
    wanted = [entry.stored for entry in manifest.files]
    try:
        listed = [(entry.name[cut:], entry.size) for entry in store.objects(prefix)]
    except Unlistable:
        # The files themselves can still be asked for by name.
        return _asked(store, prefix, wanted)
    sizes = dict(listed)
    # A directory placeholder beside a file of the same name is listed under that name, too.
    twice = [name for name, count in Counter(name for name, _ in listed).items() if count > 1]
    return {**sizes, **_asked(store, prefix, set(wanted).intersection(twice))}


def _asked(store: Store, prefix: str, wanted: Collection[str]) -> Mapping[str, int]:
    def ask(stored: str) -> tuple[str, int] | None:
        try:
            return stored, store.size(_below(prefix, stored))
        except ObjectNotFound:
            return None

    if not wanted:
        return {}
    with ThreadPoolExecutor(min(_READERS, store.options.small_streams)) as pool:
        return dict(filter(None, pool.map(ask, wanted)))


def _below(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _numbered(directories: Sequence[str]) -> Mapping[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in sorted(directories):
        value = names.number(name)
        if value is not None:
            found.setdefault(value, []).append(name)
    return found
