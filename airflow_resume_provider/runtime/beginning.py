"""Beginning an attempt: restore, and tell the training by name what it starts from."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints.names import IN_MOUNT
from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.commits import Commits
from airflow_resume_provider.runtime.formats import Format, Found
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.state import Restored, State

log = logging.getLogger("resume-run")


@dataclass(frozen=True)
class Beginning:
    """What an attempt starts with: the options with the training's id, the checkpoint, the variables."""

    options: Options
    restored: Restored
    variables: Mapping[str, str]


def begin(options: Options, state: State, form: Format, commits: Commits) -> Beginning | None:
    """Restore and write what the training may read; None when a notice came first."""
    before = state.prepare(options.attempt)
    answer = commits.begin()
    if answer is None:
        return None
    options = dataclasses.replace(options, training_id=answer["training_id"])
    if before and not answer["reference"] and not options.sees_the_leaders_files:
        _put_aside(options.directory, before)
    options.directory.mkdir(parents=True, exist_ok=True)
    restored, found = _with_path(_restored_from(answer, options.lazy), form, options)
    _say_where_it_starts(restored, answer)
    _link_checkpoint(state, options, restored)
    state.write(state.checkpoint, restored.to_dict())
    variables = {**training_environment(options, state, restored), **form.environment(found)}
    state.write_environment(variables)
    return Beginning(options, restored, variables)


def training_environment(options: Options, state: State, restored: Restored) -> dict[str, str]:
    """Return the variables of the container contract."""
    here = restored.uri and not restored.lazy
    return {
        env.DIR: str(options.directory),
        env.ATTEMPT: str(options.attempt),
        env.TRAINING_ID: options.training_id,
        env.FROM: restored.uri,
        env.STEP: str(restored.step),
        env.INDEX: str(restored.index),
        env.RESUMED: "1" if restored.uri else "0",
        env.CHECKPOINT: str(options.directory / restored.path) if here else "",
        env.STATE_DIR: str(state.directory),
        env.METRICS_FILE: str(state.metrics),
        env.NOTICE_FILE: str(state.notice),
    }


def _put_aside(directory: Path, attempt: int) -> None:
    """Give a fresh start a fresh directory: what an earlier attempt left here was never committed."""
    # What a link points to, since the link itself says where its owner wants the bytes.
    there = Path(os.path.realpath(directory))
    left = [path for path in there.iterdir() if not path.name.startswith(IN_MOUNT)] if there.is_dir() else []
    if not left:
        return
    mounted = os.path.ismount(there)
    aside = there / ".resume-uncommitted" if mounted else there.with_name(f"{there.name}.uncommitted")
    shutil.rmtree(aside, ignore_errors=True)
    if mounted:  # it cannot be renamed
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)
    else:
        there.rename(aside)
        there.mkdir()
    log.warning("what attempt %d left in %s was never committed; moved to %s", attempt, directory, aside)


def _restored_from(answer: Mapping[str, Any], lazy: bool) -> Restored:
    reference = answer["reference"]
    if not reference:
        return Restored(why=answer["why"])
    metadata = answer["metadata"]
    return Restored(
        uri=reference["uri"],
        step=reference["step"],
        index=reference["index"],
        why=answer["why"],
        path=metadata.get("resume", {}).get("path", ""),
        format=answer["format"],
        metrics=reference["metrics"],
        metadata=metadata,
        world_size=answer["world_size"],
        lazy=lazy,
    )


def _with_path(restored: Restored, form: Format, options: Options) -> tuple[Restored, Found | None]:
    """Find the restored checkpoint on disk: what the manifest says, else what the format sees."""
    if not restored.uri or restored.lazy:
        return restored, None
    found = {each.path: each for each in form.find(options.directory)}
    newest = max(found.values(), key=lambda each: each.step, default=None)
    here = found.get(restored.path, newest)
    path = restored.path or (here.path if here else ".")
    return dataclasses.replace(restored, path=path), here


def _link_checkpoint(state: State, options: Options, restored: Restored) -> None:
    """Point `<state>/checkpoint` at what was restored: a path that is known before the job runs."""
    state.link.unlink(missing_ok=True)
    if restored.uri and not restored.lazy:
        state.link.symlink_to(options.directory / restored.path)


def _say_where_it_starts(restored: Restored, answer: Mapping[str, Any]) -> None:
    """Put into the log what a person asks first: resumed from where, or why not."""
    for line in answer["passed_over"]:
        log.warning("passed over %s", line)
    for line in answer["changes"]:
        log.warning("the configuration changed since the checkpoint: %s", line)
    if restored.uri:
        done = "will restore" if restored.lazy else "restored"
        log.info("%s step %d from %s", done, restored.step, restored.uri)
    log.info("%s", restored.why)
