"""What the worker does with the lineage: begin an attempt, commit, end it."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_resume_provider.checkpoints.lineage import Lineage
from airflow_resume_provider.checkpoints.records import AttemptRecord, EndRecord, TrainingRecord
from airflow_resume_provider.checkpoints.store import StoreOptions
from airflow_resume_provider.errors import UploadFailed
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.pin import Pin

_GENTLE = StoreOptions(big_streams=1, small_streams=2, upload_streams=1)


class StoreService:
    """One attempt's dealings with its lineage."""

    def __init__(self, options: Options, report: Callable[[dict[str, Any]], None]) -> None:
        self._options = options
        self._report = report
        self._full = Lineage.open(options.lineage)
        gentle = dataclasses.replace(_GENTLE, bandwidth=options.bandwidth)
        self._gentle = Lineage.open(options.lineage, options=gentle)
        self._lineage = self._full

    def full_speed(self) -> None:
        """Use the whole machine from the next file on."""
        self._lineage = self._full

    def be_gentle(self) -> dict[str, Any]:
        """Leave the machine to the training from now on."""
        os.nice(self._options.nice)
        self._lineage = self._gentle
        return {}

    def begin(self) -> dict[str, Any]:
        """Restore what this attempt starts from, and only then say that it has started."""
        options = self._options
        named = (
            TrainingRecord(training_id=options.training_id, created=_now()) if options.training_id else None
        )
        training = self._full.ensure_training(named)
        restored = self._full.restore(
            options.attempt,
            options.directory,
            fallback=options.offered,
            explicit=options.explicit,
            restarted=True,
            progress=self._progress,
        )
        reference = restored.reference
        self._full.begin_attempt(
            AttemptRecord(
                attempt=options.attempt,
                resumed_from=reference.uri if reference else "",
                resumed_step=reference.step if reference else 0,
                why=restored.choice.why,
                job_name=options.job_name,
                writer=uuid.uuid4().hex,
                started=_now(),
            )
        )
        return {
            "training_id": training.training_id,
            "reference": reference.to_dict() if reference else None,
            "why": restored.choice.why,
            "passed_over": [f"{each.uri}: {each.reason}" for each in restored.choice.passed_over],
        }

    def commit(self, pin: str, **what: Any) -> dict[str, Any]:
        """Commit pinned files; the manifest is not written when one of them has changed meanwhile."""
        pinned = Pin.from_json(pin)
        started = time.monotonic()
        try:
            reference = self._lineage.commit(
                pinned.directory,
                attempt=self._options.attempt,
                files=pinned.files,
                progress=self._progress,
                **what,
            )
        except UploadFailed:
            pinned.check()  # a file that was written to is no failure of the store
            raise
        return {"reference": reference.to_dict(), "seconds": time.monotonic() - started}

    def prune(self) -> dict[str, Any]:
        """Keep the newest checkpoints only."""
        self._lineage.prune(keep_last=self._options.keep_last)
        return {}

    def end(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write the attempt's own account of its end."""
        self._full.end_attempt(EndRecord.from_dict({**record, "ended": _now()}))
        return {}

    def _progress(self, progress: Any) -> None:
        self._report({"done": progress.done_bytes, "total": progress.total_bytes})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
