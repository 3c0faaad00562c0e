"""Reads what happened from where it is recorded: the lineage, the jobs' logs, the task's XComs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, Reference, StoreOptions
from airflow_resume_provider.testing.demo.story import Attempt, Commit, Loss


def lines(output: str) -> list[dict[str, Any]]:
    """Return the JSON lines that the trainer printed, whatever else was printed between them."""
    found = []
    for line in output.splitlines():
        start = line.find("{")
        try:
            value = json.loads(line[start:]) if start >= 0 else None
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def losses(printed: Iterable[Mapping[str, Any]]) -> tuple[Loss, ...]:
    """Return one entry a step that was trained."""
    return tuple(
        Loss(int(line["step"]), float(line["loss"]), float(line["time"]))
        for line in printed
        if "loss" in line
    )


def last(printed: Sequence[Mapping[str, Any]], event: str) -> Mapping[str, Any]:
    """Return the last line with this event, or nothing."""
    return next((line for line in reversed(printed) if line.get("event") == event), {})


def seconds(moment: str | None) -> float:
    """Return an ISO time as seconds since the epoch, 0 when there is none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


class LineageObserver:
    """Reads one training's lineage.

    Args:
        uri: the lineage's directory.
        options: how to reach the store.
    """

    def __init__(self, uri: str, options: StoreOptions) -> None:
        self.lineage, self._options = Lineage.open(uri, options=options), options

    def attempts(self, entries: Sequence[Mapping[str, Any]], logs: Mapping[str, str]) -> tuple[Attempt, ...]:
        """Return every attempt.

        Args:
            entries: the operator's own history, from its XCom `attempts`.
            logs: what each job printed, by job name.
        """
        verdicts = {int(entry["number"]): entry for entry in entries}
        return tuple(
            self._attempt(found, verdicts.get(found.number, {}), logs)
            for found in self.lineage.history().attempts
        )

    def _attempt(self, found: Any, entry: Mapping[str, Any], logs: Mapping[str, str]) -> Attempt:
        job = found.intent.job_name if found.intent else ""
        trained = losses(lines(logs.get(job, "")))
        began = seconds(found.started.started) if found.started else 0.0
        ended = seconds(found.end.ended) if found.end else seconds(entry.get("ended"))
        return Attempt(
            number=found.number,
            job_name=job,
            verdict=str(entry.get("verdict") or (found.end.state if found.end else "unknown")),
            submitted=seconds(found.intent.created) if found.intent else began,
            started=began or ended,
            ended=max(ended, trained[-1].time if trained else 0.0),
            resumed_from=found.started.resumed_from if found.started else "",
            resumed_step=found.started.resumed_step if found.started else 0,
            commits=tuple(self._commit(reference) for reference in found.checkpoints),
            losses=trained,
            account=found.end.reason if found.end else "",
        )

    def _commit(self, reference: Reference) -> Commit:
        manifest = Checkpoint.from_uri(reference.uri, options=self._options).manifest
        accuracy = float(reference.metrics.get("accuracy") or 0.0)
        return Commit(reference.index, reference.step, seconds(manifest.created), accuracy)

    def digest(self, uri: str) -> str:
        """Return the sha256 of the weights in a checkpoint, as downloaded and verified from the store."""
        with Checkpoint.from_uri(uri, options=self._options).as_directory() as directory:
            found = sorted(directory.rglob("weights.npy"))
            return hashlib.sha256(found[0].read_bytes()).hexdigest() if found else ""

    def samples(self, uri: str) -> str:
        """Return the digest of all sample ids in the order in which they were trained on."""
        with Checkpoint.from_uri(uri, options=self._options).as_directory() as directory:
            found = sorted(directory.rglob("state.json"))
            return str(json.loads(found[0].read_text())["samples_digest"]) if found else ""
