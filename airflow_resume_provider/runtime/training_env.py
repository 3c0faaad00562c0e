"""What the training process sees: by name, never by position."""

from __future__ import annotations

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.options import Options
from airflow_resume_provider.runtime.state import Restored, State


def training_environment(options: Options, state: State, restored: Restored) -> dict[str, str]:
    """Return the variables of the container contract."""
    return {
        env.DIR: str(options.directory),
        env.ATTEMPT: str(options.attempt),
        env.TRAINING_ID: options.training_id,
        env.FROM: restored.uri,
        env.STEP: str(restored.step),
        env.INDEX: str(restored.index),
        env.RESUMED: "1" if restored.uri else "0",
        env.CHECKPOINT: str(options.directory / restored.path) if restored.uri else "",
        env.STATE_DIR: str(state.directory),
        env.METRICS_FILE: str(state.metrics),
        env.NOTICE_FILE: str(state.notice),
    }


def link_checkpoint(state: State, options: Options, restored: Restored) -> None:
    """Point `<state>/checkpoint` at what was restored: a path that is known before the job runs."""
    state.link.unlink(missing_ok=True)
    if restored.uri:
        state.link.symlink_to(options.directory / restored.path)
