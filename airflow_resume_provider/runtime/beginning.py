"""From the restored files to what the training is told it starts from."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from airflow_resume_provider.runtime.formats import Format, Found
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.state import Restored

log = logging.getLogger("resume-run")


def restored_from(answer: Mapping[str, Any]) -> Restored:
    """Return what the worker restored."""
    reference, metadata = answer["reference"], answer.get("metadata") or {}
    if not reference:
        return Restored(why=answer["why"])
    own = metadata.get("resume", {})
    return Restored(
        uri=reference["uri"],
        step=reference["step"],
        index=reference["index"],
        why=answer["why"],
        path=own.get("path", ""),
        format=answer.get("format", ""),
        metrics=reference["metrics"],
        metadata=metadata,
        world_size=answer.get("world_size", 0),
    )


def with_path(restored: Restored, form: Format, options: Options) -> tuple[Restored, Found | None]:
    """Find the restored checkpoint on disk: what the manifest says, else what the format sees."""
    if not restored.uri:
        return restored, None
    found = {each.path: each for each in form.find(options.directory)}
    newest = max(found.values(), key=lambda each: each.step, default=None)
    here = found.get(restored.path, newest)
    path = restored.path or (here.path if here else ".")
    return dataclasses.replace(restored, path=path), here


def say_where_it_starts(restored: Restored, answer: Mapping[str, Any]) -> None:
    """Put into the log what a person asks first: resumed from where, or why not."""
    for line in answer["passed_over"]:
        log.warning("passed over %s", line)
    for line in answer["changes"]:
        log.warning("the configuration changed since the checkpoint: %s", line)
    if restored.uri:
        log.info("restored step %d from %s (%s)", restored.step, restored.uri, restored.why)
    else:
        log.info("fresh start: %s", restored.why)
