"""From a finished checkpoint on disk to a commit in the store, beside the training.

One upload at a time and in order. While one is under way at most one more waits, and a newer one
takes its place: under back-pressure the newest wins. Files are pinned before they wait, so the
framework may rotate them away meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import NoSpace
from airflow_resume_provider.runtime.configuration import Configuration
from airflow_resume_provider.runtime.formats import Format, Found
from airflow_resume_provider.runtime.formats.evidence import is_open_for_writing
from airflow_resume_provider.runtime.formats.names import is_temporary, small_files
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.pin import Changed, Pin, Stamp, pin_files, stamps_of
from airflow_resume_provider.runtime.state import State

log = logging.getLogger("resume-run")
SETTLE_SECONDS = 2.0
_CARRY_LIMIT = 16 << 20
_RETRY_SECONDS = 2.0
_TRIES = 3

#: What tells one state of a checkpoint on disk from another: its path and its files' stamps.
Fingerprint = tuple[str, tuple[tuple[str, Stamp], ...]]


@dataclass(frozen=True)
class Upload:
    """A pinned checkpoint on its way; `request` is the SDK's, when it came from there.

    Nobody looks again for what is `last`.
    """

    pin: Pin
    step: int
    path: str
    format: str
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    fingerprint: Fingerprint | None = None
    request: Path | None = None
    answered: bool = False
    last: bool = False
    tries: int = 0
    number: int = 0  # in the order in which they were offered

    def manifest_fields(self) -> dict[str, Any]:
        """Return what goes into the manifest beside the files."""
        return {
            "step": self.step,
            "format": self.format,
            "metrics": self.metrics,
            "metadata": {**self.metadata, "resume": {"path": self.path, "configuration": self.configuration}},
            "world_size": self.world_size,
        }


class Pipeline:
    """Looks for finished checkpoints, holds on to them and hands them on, one at a time.

    `send` starts an upload; `committed`, `failed` and `changed` say how it went.
    """

    def __init__(
        self,
        options: Options,
        state: State,
        form: Format,
        send: Callable[[Upload], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._state, self._format, self._send, self._clock = options, state, form, send, clock
        self._configuration = Configuration.of(options).to_dict()
        self._known: set[Fingerprint] = set()
        # Of what has not reached the store, though it was tried: nobody else has it.
        self._given_up: set[Fingerprint] = set()
        # What lay at each path when it, or a newer one beside it, was taken.
        self._seen: dict[str, set[tuple[str, Stamp]]] = {}
        self._settling: dict[str, tuple[Fingerprint, float]] = {}
        self._numbers = itertools.count()
        self._copy = False
        self._taken: set[Path] = set()
        self._not_before = 0.0
        self._hold_after = 0.0
        self._offered = self._lost_at = 0
        self.under_way: Upload | None = None
        self.waiting: Upload | None = None
        self.unsaved = ""
        self.throughput = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return self.under_way is None and self.waiting is None

    def remember_present(self) -> None:
        """Take what lies there now as known: restored or an older run's, not this attempt's work."""
        present = set(filter(None, map(self._fingerprint, self._format.present(self._options.directory))))
        self._known |= present
        for path, stamps in present:  # several formats may each know some of its files
            self._seen.setdefault(path, set()).update(stamps)

    def look(self, *, final: bool = False) -> None:
        """Pin the newest finished checkpoint that is new; with `final`, nobody writes any more."""
        self._take_requests()
        if self._state.explicit.exists() or (self._clock() < self._hold_after and not final):
            return
        if final:
            self._last_look()
            for path, stamps in self._given_up:
                self._forget(path, stamps)
        ready = [each for each in self._new() if final or self._is_settled(*each)]
        self._known.update(fingerprint for _, fingerprint in ready)
        if final and not self._known and not self._taken:
            log.warning(
                "%s holds nothing that the format %r takes for a finished checkpoint; "
                "if there is one, name its format",
                self._options.directory,
                self._format.name,
            )
        if ready:
            newest = max(ready, key=lambda each: each[0].step)
            older = (f for f in self._format.find(self._options.directory) if f.step < newest[0].step)
            self._see({newest[1], *filter(None, map(self._fingerprint, older))})
            self._pin(*newest, final=final)

    def lose(self, message: str, *, since: int | None = None) -> None:
        """Say that a checkpoint is not in the store; one that was offered later, and gets there, mends it."""
        self.unsaved, self._lost_at = message, self._offered if since is None else since

    def _see(self, there: Iterable[Fingerprint]) -> None:
        """From now on take none of these that only gets less: that is one that is being cleaned up."""
        self._seen.update((path, set(stamps)) for path, stamps in there)

    def _forget(self, path: str, stamps: tuple[tuple[str, Stamp], ...]) -> None:
        """Take it again when it is found again."""
        self._known.discard((path, stamps))
        self._seen.pop(path, None)

    def _last_look(self) -> None:
        """Nobody looks again for what is on its way and still lies there."""
        there = {self._fingerprint(found) for found in self._format.find(self._options.directory)} - {None}
        if self.under_way and self.under_way.fingerprint in there:
            self.under_way = replace(self.under_way, last=True)
        if self.waiting and self.waiting.fingerprint in there:
            self.waiting = replace(self.waiting, last=True)

    def pump(self, may_begin: Callable[[Upload], bool] = lambda upload: True) -> None:
        """Start the waiting upload when none is under way."""
        if self.waiting is None or self.under_way is not None or self._clock() < self._not_before:
            return
        upload, self.waiting = self.waiting, None
        if may_begin(upload):
            self.under_way = upload
            self._send(upload)
        else:
            self._skip(upload)

    def hurry(self) -> None:
        """Do not wait before the next try."""
        self._not_before = 0.0

    def committed(self, reference: dict[str, Any], seconds: float) -> None:
        """The upload under way is in the store."""
        upload = self._landed()
        if seconds > 0:
            self.throughput = max(self.throughput, upload.pin.total_bytes / seconds)
        self._given_up.clear()  # they were offered before, and are older
        if self.waiting is None and upload.number > self._lost_at:
            self.unsaved = ""
        self._reply(upload, {"reference": reference})

    def failed(self, message: str, *, again: bool = True) -> None:
        """The upload under way did not reach the store; `again`: try so, unless a newer one waits."""
        upload = self._landed(release=False)
        self.lose(
            f"the checkpoint of step {upload.step} did not reach the store: {message}",
            since=upload.number - 1,
        )
        log.warning("%s", self.unsaved)
        if self.waiting is None and again and upload.tries + 1 < _TRIES:
            self.waiting = replace(upload, tries=upload.tries + 1)
            self._not_before = self._clock() + _RETRY_SECONDS
        else:
            upload.pin.release()
            self._give_up(upload, message)

    def _give_up(self, upload: Upload, message: str) -> None:
        if upload.fingerprint:
            self._given_up.add(upload.fingerprint)
        self._reply(upload, {"error": message})

    def changed(self, file: str) -> None:
        """A file was written in place while it was read: nothing was committed, copies from now on."""
        upload = self._landed()
        log.warning("%s was written to during its upload; such files are copied from now on", file)
        self._copy = True
        self._known = {known for known in self._known if known[0] != upload.path}
        self._seen.pop(upload.path, None)
        when = "after the training's end" if upload.last else "during its upload"
        if upload.last or upload.request is not None:  # nobody finds it again
            self.lose(
                f"the checkpoint of step {upload.step} was written to {when}: {file}", since=upload.number
            )
        self._reply(upload, {"error": f"{file} was written to during its upload"})

    def _landed(self, *, release: bool = True) -> Upload:
        assert self.under_way is not None
        upload, self.under_way = self.under_way, None
        if release:
            upload.pin.release()
        return upload

    def _skip(self, upload: Upload) -> None:
        upload.pin.release()
        log.warning(
            "step %d (%d bytes) would not fit into what is left; not begun",
            upload.step,
            upload.pin.total_bytes,
        )
        self.lose(f"step {upload.step} did not fit into the time that was left", since=upload.number - 1)
        self._give_up(upload, "no time left")

    def _new(self) -> Iterable[tuple[Found, Fingerprint]]:
        for found in self._format.find(self._options.directory):
            fingerprint = self._fingerprint(found)
            if fingerprint and fingerprint not in self._known and not self._is_remains(*fingerprint):
                yield found, fingerprint

    def _is_remains(self, path: str, stamps: Collection[tuple[str, Stamp]]) -> bool:
        """Whether nothing came to it since it, or a newer one beside it, was taken; some may have gone."""
        return bool(stamps) and self._seen.get(path, set()).issuperset(stamps)

    def _fingerprint(self, found: Found) -> Fingerprint | None:
        compared = [name for name in found.files if name not in found.appended]
        try:
            return found.path, tuple(stamps_of(self._options.directory, compared).items())
        except Changed:
            return None

    def _is_settled(self, found: Found, fingerprint: Fingerprint) -> bool:
        if found.doubtful:
            return False
        if found.settled:
            return True
        before, since = self._settling.get(found.path, (None, 0.0))
        if before != fingerprint:
            self._settling[found.path] = fingerprint, self._clock()
            return False
        still = self._clock() - since >= SETTLE_SECONDS
        # A log that is appended to stays open all the time.
        written = set(found.files) - found.appended
        return still and not is_open_for_writing(self._options.directory / name for name in written)

    def _pin(self, found: Found, fingerprint: Fingerprint, *, final: bool) -> None:
        source = self._options.directory
        carried = set(self._carried()) - set(found.files)
        target = self._state.pins / f"{time.time_ns()}-{next(self._numbers)}"
        try:
            pin = pin_files(
                source,
                {*found.files, *carried},
                target,
                # Nobody writes any more at the end, so even a full disk holds all of it by links.
                appended=frozenset() if final else carried | found.appended,
                copy=(self._copy or found.in_place) and not final,
            )
        except (Changed, OSError) as error:
            self._not_held(found.step, error, final=final)
            self._forget(*fingerprint)
            return
        self._offer(
            Upload(
                pin,
                found.step,
                found.path,
                self._format.label,
                fingerprint=fingerprint,
                metrics={**found.metrics, **self._state.read_metrics()},
                configuration=self._configuration,
                world_size=found.world_size or self._options.processes,
                last=final,
            )
        )

    def _not_held(self, step: int, error: Exception, *, final: bool) -> None:
        message = f"the checkpoint of step {step} could not be held: {error}"
        log.warning("%s", message)
        if isinstance(error, OSError):  # the disk, which does not become better by the second
            self._hold_after = self._clock() + _RETRY_SECONDS
        if isinstance(error, OSError) or final:
            self.lose(message)

    def _carried(self) -> Iterable[str]:
        for name in small_files(self._options.directory, _CARRY_LIMIT):
            if any(fnmatch(name, glob) for glob in self._options.carry) and not is_temporary(name):
                yield name

    def _offer(self, upload: Upload) -> None:
        if self.waiting is not None:
            log.info("step %d takes the place of step %d, still waiting", upload.step, self.waiting.step)
            self.waiting.pin.release()
            self._reply(self.waiting, {"error": "a newer checkpoint took its place"})
        self._offered += 1
        self.waiting = replace(upload, number=self._offered)
        self._not_before = 0.0

    def _take_requests(self) -> None:
        for path, request in self._state.read_requests():
            if path not in self._taken:
                self._taken.add(path)
                self._offer(self._requested(path, request))

    def _requested(self, path: Path, request: Mapping[str, Any]) -> Upload:
        stamps = {name: tuple(stamp) for name, stamp in request["stamps"].items()}
        return Upload(
            Pin(Path(request["directory"]), stamps),
            request["step"],
            request["path"],
            "sdk",
            metrics={**self._state.read_metrics(), **request["metrics"]},
            metadata=request["metadata"],
            configuration=self._configuration,
            world_size=self._options.processes,
            request=path,
            answered=request["answered"],
        )

    def _reply(self, upload: Upload, answer: dict[str, Any]) -> None:
        """Answer the SDK's request, whose file stays until now so that nobody's death loses it."""
        if upload.request is not None:
            if upload.answered:
                try:
                    self._state.write(upload.request.with_suffix(".answer"), answer)
                except NoSpace as error:  # no reason to end the training
                    log.warning("%s", error)
            upload.request.unlink(missing_ok=True)

    def ledger(self) -> dict[str, Any]:
        """Return what is in the store or was never ours, for a process that goes on after this one."""
        there = (upload.fingerprint for upload in (self.under_way, self.waiting) if upload)
        waiting = {fingerprint for fingerprint in there if fingerprint}
        known = [each for each in self._known if each not in waiting | self._given_up]
        left = {path for path, _ in waiting | self._given_up}
        seen = {path: sorted(stamps) for path, stamps in self._seen.items() if path not in left}
        return {"known": known, "seen": seen, "unsaved": self.unsaved}

    def know(self, ledger: Mapping[str, Any]) -> None:
        """Take over another process's ledger, as it comes out of JSON."""
        for path, stamps in ledger["known"]:
            self._known.add((path, tuple((name, tuple(stamp)) for name, stamp in stamps)))
        for path, stamps in ledger["seen"].items():
            self._see([(path, tuple((name, tuple(stamp)) for name, stamp in stamps))])
        self.unsaved = ledger["unsaved"]
