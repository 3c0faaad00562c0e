"""How an attempt ended, from what was seen: a pure function, so that every death is one test."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from airflow_resume_provider.checkpoints.records import EndState
from airflow_resume_provider.errors import ExitCode


@dataclass(frozen=True)
class Seen:
    """What the supervisor saw of one attempt.

    `child` is the exit code as Popen has it (negative for a signal), or None when the training
    never ran. `notice` is the notice's source when it came before the training's end.
    """

    child: int | None
    notice: str = ""
    finished: bool = False
    superseded: str = ""
    unsaved: str = ""
    oom: bool = False
    disk_full: bool = False


@dataclass(frozen=True)
class Outcome:
    """The attempt's own account of its end, and the exit code of `resume-run`.

    `by_training` says that a failure's code is the training's own, whatever our codes mean.
    """

    state: EndState
    exit_code: int
    reason: str
    by_training: bool = False


def outcome(seen: Seen) -> Outcome:
    """Return how the attempt ended.

    A newer attempt wins over everything, since then nothing we say counts. A training that says it
    is finished, or exits 0 without a notice, is finished, but only when its last checkpoint is in
    the store; what a notice does to it afterwards does not matter. Exit 0 after a notice is a
    preemption: trainers that save and leave on SIGTERM do exactly that
    (https://github.com/marian-nmt/marian-dev/pull/551). Any other exit code of the training is
    passed through; after a notice it counts as preempted too.
    """
    if seen.superseded:
        return Outcome(EndState.SUPERSEDED, ExitCode.SUPERSEDED, seen.superseded)
    if seen.child is None:
        return Outcome(
            EndState.PREEMPTED, ExitCode.PREEMPTED, f"notice from {seen.notice} before the training started"
        )
    code = exit_code_of(seen.child)
    done = bool(seen.finished) if seen.notice else code == 0
    if done and seen.unsaved:
        return Outcome(EndState.FAILED, ExitCode.UPLOAD_FAILED, seen.unsaved)
    if done:
        return Outcome(EndState.FINISHED, ExitCode.FINISHED, "the training finished")
    if seen.notice:
        return Outcome(EndState.PREEMPTED, code or ExitCode.PREEMPTED, f"notice from {seen.notice}")
    return Outcome(EndState.FAILED, code, _failure(seen), by_training=True)


def exit_code_of(returncode: int) -> int:
    """Return the code a shell would show: 128 + n for a process that signal n ended."""
    return 128 - returncode if returncode < 0 else returncode


def _failure(seen: Seen) -> str:
    parts = [_ending(seen.child or 0)]
    if seen.oom:
        parts.append("the kernel killed it for want of memory")
    if seen.disk_full:
        parts.append("the disk is full (ENOSPC)")
    if seen.unsaved:
        parts.append(seen.unsaved)
    return "; ".join(parts)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the training exited with {code}"
    try:
        return f"the training was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the training was ended by signal {-code}"
