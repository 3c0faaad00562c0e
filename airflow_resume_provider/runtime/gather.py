"""One checkpoint of several nodes' files, over the store alone.

The first node announces where a checkpoint goes; each other node puts its own files there and says
which; the first node writes the manifest when all have. A part that never arrives means that there
is no manifest, so the checkpoint before is used
(https://github.com/ray-project/ray/pull/66225). Nodes need no network to each other.

    attempts/0001/parts/000007/call.json         from the first node: step, path, taken names
    attempts/0001/parts/000007/node-0001.json    from each other node: its files, or why not
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.manifest import FileEntry
from airflow_resume_provider.checkpoints.progress import Meter
from airflow_resume_provider.checkpoints.sources import Source, scan
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.upload import Upload
from airflow_resume_provider.checkpoints.view import read_json
from airflow_resume_provider.errors import ResumeError, UploadFailed
from airflow_resume_provider.runtime.formats.evidence import all_whole
from airflow_resume_provider.runtime.formats.names import files_below, is_temporary
from airflow_resume_provider.runtime.peers import say
from airflow_resume_provider.runtime.pin import stamp_of

_POLL_SECONDS = 0.5
_QUIET_LIMIT = 30.0


class Gathering:
    """The first node's part: calls the others and waits for all of them.

    `needs` are files that the checkpoint itself names, with the sizes that they at least have:
    without one of them it could not be loaded, whichever node should have had it.
    """

    def __init__(self, store: Store, count: int, path: str, session: str, needs: Mapping[str, int]) -> None:
        self._store, self._count, self._path, self._session = store, count, path, session
        self._needs, self._own = needs, frozenset[str]()

    def announce(self, prefix: str, step: int, paths: Sequence[str]) -> None:
        """Tell the others which checkpoint is being committed; the names in `paths` are taken."""
        self._own = frozenset(paths)
        call = {"prefix": prefix, "step": step, "path": self._path, "taken": list(paths)}
        call["session"] = self._session
        say(self._store, f"{_parts_of(prefix)}/call.json", call)

    def collect(self, prefix: str) -> list[FileEntry]:
        """Wait for every node's part; raises `UploadFailed` when one says no or does not come."""
        until = time.monotonic() + self._store.options.max_total_seconds
        waiting = set(range(1, self._count))
        entries: list[FileEntry] = []
        while waiting:
            for node in sorted(waiting):
                part = read_json(self._store, f"{_parts_of(prefix)}/node-{node:04d}.json")
                if part.get("error"):
                    raise _incomplete(f"node {node} says: {part['error']}", prefix)
                if part:
                    entries.extend(_entries(part, entries))
                    waiting.discard(node)
            if waiting and time.monotonic() > until:
                raise _incomplete(f"nothing came from nodes {sorted(waiting)}", prefix)
            time.sleep(_POLL_SECONDS if waiting else 0)
        there = {entry.path: entry.size for entry in entries}
        absent = [
            name for name, size in self._needs.items() if name not in self._own and there.get(name, -1) < size
        ]
        if absent:
            raise _incomplete(f"no node has the whole of {', '.join(sorted(absent)[:5])}", prefix)
        return entries


class Following:
    """Another node's part: answers the newest call with its own files."""

    def __init__(self, store: Store, attempt: int, node: int, directory: Path, session: str) -> None:
        self._store, self._node, self._directory, self._session = store, node, directory, session
        self._parts = f"{names.attempt_prefix(attempt)}/parts"
        self._answered: set[str] = set()

    def answer(self) -> dict[str, Any]:
        """Answer the newest call if it is a new one; an empty answer means that there was none."""
        calls = sorted(set(self._store.directories(self._parts)) - self._answered)
        if not calls:
            return {}
        self._answered.update(calls)
        call = read_json(self._store, f"{self._parts}/{calls[-1]}/call.json")
        if not call:
            self._answered.discard(calls[-1])
            return {}
        if call.get("session") != self._session:
            return {}  # an earlier run of this attempt has called, and what it committed must stay as it is
        part = self._part(call)
        say(self._store, f"{self._parts}/{calls[-1]}/node-{self._node:04d}.json", part)
        return {"step": call["step"], "files": len(part.get("files", ())), "error": part.get("error", "")}

    def _part(self, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            sources = self._own(call)
            meter = Meter(sum(source.size for source in sources), len(sources), None)
            entries = Upload(self._store, call["prefix"], meter).run(sources)
        except ResumeError as error:
            return {"error": str(error)}
        return {"files": [entry.to_dict() for entry in entries]}

    def _own(self, call: Mapping[str, Any]) -> list[Source]:
        """This node's files of the checkpoint, without those that the first node has, too."""
        path, taken = call["path"], set(call["taken"])
        _await_quiet(self._directory / path)
        found = files_below(self._directory / path, "" if path == "." else f"{path}/")
        own = [n for n in found if n not in taken and not any(map(is_temporary, n.split("/")))]
        if not (self._directory / path).is_dir():
            raise UploadFailed(f"{path} is not there")
        if not all_whole(self._directory, own):
            raise UploadFailed(f"{path} is not whole")
        return list(scan(self._directory, own).files) if own else []


def _await_quiet(directory: Path) -> None:
    """Wait until nothing in the checkpoint has changed for a moment: a slower rank may still write."""
    until = time.monotonic() + _QUIET_LIMIT
    before = None
    while time.monotonic() < until:
        names = files_below(directory)
        now = [stamp_of(directory / name) for name in names]
        if now and now == before:
            return
        before = now
        time.sleep(_POLL_SECONDS)


def _parts_of(prefix: str) -> str:
    attempt, _, index = prefix.partition("/checkpoints/")
    return f"{attempt}/parts/{index}"


def _entries(part: Mapping[str, Any], so_far: Sequence[FileEntry]) -> list[FileEntry]:
    there = {entry.path: entry for entry in so_far}
    listed = [
        FileEntry(
            path=row["path"], size=row["size"], crc32c=row["crc32c"], stored_as=row.get("stored_as", "")
        )
        for row in part["files"]
    ]
    for entry in listed:
        if entry.path in there and entry != there[entry.path]:
            raise UploadFailed(f"Two nodes have different files {entry.path}.", did="Nothing was committed.")
    return [entry for entry in listed if entry.path not in there]


def _incomplete(why: str, prefix: str) -> UploadFailed:
    return UploadFailed(f"The checkpoint {prefix} is not complete: {why}.", did="It was not committed.")
