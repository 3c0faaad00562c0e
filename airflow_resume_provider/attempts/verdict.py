"""What an attempt's end means, from what was seen of its job and what its container said.

Sources: https://cloud.google.com/batch/docs/troubleshooting (reserved exit
codes 50001-50006) and the container contract (exit codes 80-99).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from airflow_resume_provider.attempts.observation import GONE, EventSeen, JobSeen, TaskSeen, newest_first
from airflow_resume_provider.checkpoints.records import EndRecord, EndState
from airflow_resume_provider.errors import ExitCode


class Kind(StrEnum):
    """The verdicts; PENDING means that the attempt is not over."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"
    INFRASTRUCTURE = "infrastructure"
    STOCKED_OUT = "stocked_out"
    USER_ERROR = "user_error"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An attempt's end in one word, in a sentence, and whether repeating it can help.

    `hopeless` is true when the same attempt cannot succeed however often it is repeated.
    """

    kind: Kind
    reason: str
    exit_code: int | None = None
    hopeless: bool = False


@dataclass(frozen=True)
class _Meaning:
    kind: Kind
    words: str
    hopeless: bool = False


_BATCH_CODES = {
    50001: _Meaning(Kind.PREEMPTED, "the Spot VM was preempted"),
    50002: _Meaning(Kind.INFRASTRUCTURE, "the VM stopped reporting to Batch"),
    50003: _Meaning(Kind.INFRASTRUCTURE, "the VM rebooted while the task ran"),
    50004: _Meaning(Kind.INFRASTRUCTURE, "the VM and its task did not respond"),
    50005: _Meaning(Kind.TIMED_OUT, "the task ran longer than its maximum run duration", True),
    50006: _Meaning(Kind.INFRASTRUCTURE, "the VM was recreated while the task ran"),
}
_CONTAINER_CODES = {
    ExitCode.PREEMPTED: _Meaning(Kind.PREEMPTED, "the container stopped after a preemption notice"),
    ExitCode.STORE_UNAVAILABLE: _Meaning(
        Kind.INFRASTRUCTURE, "the store of checkpoints could not be reached"
    ),
    ExitCode.UPLOAD_FAILED: _Meaning(Kind.INFRASTRUCTURE, "a checkpoint could not be uploaded"),
    ExitCode.SUPERSEDED: _Meaning(Kind.SUPERSEDED, "a newer attempt exists, this one stopped for it"),
    ExitCode.NO_SPACE: _Meaning(Kind.USER_ERROR, "the disk is full; ask for a larger boot disk", True),
    ExitCode.CHECKPOINT_BROKEN: _Meaning(
        Kind.USER_ERROR, "the named checkpoint, or the lineage's training.json, is broken", True
    ),
    ExitCode.PERMISSION_DENIED: _Meaning(
        Kind.USER_ERROR, "the job's service account may not use the store of checkpoints", True
    ),
    ExitCode.CONFIG_CHANGED: _Meaning(Kind.USER_ERROR, "the training's configuration has changed", True),
    ExitCode.NO_PROGRESS: _Meaning(Kind.USER_ERROR, "the container saw no progress over its attempts", True),
    ExitCode.COMMIT_CONFLICT: _Meaning(
        Kind.INFRASTRUCTURE, "another writer held the same place in the lineage"
    ),
    ExitCode.CHECKPOINT_NOT_FOUND: _Meaning(Kind.USER_ERROR, "the named checkpoint does not exist", True),
    ExitCode.STORE_MISCONFIGURED: _Meaning(
        Kind.USER_ERROR, "the store of checkpoints is misconfigured", True
    ),
    ExitCode.FORMAT_ERROR: _Meaning(Kind.USER_ERROR, "the files on disk do not fit the checkpoint format"),
    ExitCode.COMMAND_NOT_FOUND: _Meaning(Kind.USER_ERROR, "the command does not exist in the image", True),
    ExitCode.UNKNOWN_SCHEMA: _Meaning(
        Kind.USER_ERROR, "a checkpoint was written by a newer version; upgrade the image", True
    ),
    ExitCode.FAILED: _Meaning(Kind.USER_ERROR, "the container's runtime failed; its log says why"),
}
_SHELL_CODES = {
    126: _Meaning(Kind.USER_ERROR, "the command cannot be executed"),
    127: _Meaning(Kind.USER_ERROR, "the command, or one it calls, was not found in the image"),
    137: _Meaning(Kind.USER_ERROR, "the process was killed (SIGKILL), most often for lack of memory"),
    139: _Meaning(Kind.USER_ERROR, "the process crashed (SIGSEGV)"),
    143: _Meaning(Kind.USER_ERROR, "the process was terminated (SIGTERM)"),
}

_PREEMPTION = re.compile(r"Spot VM preemption|instance (was|has been) preempted|\b50001\b", re.I)
_DISK_FULL = re.compile(r"no space left on device|disk (is )?full|ENOSPC", re.I)
_IMAGE = re.compile(
    r"(pull(ing)?|download(ing)?)\b.{0,40}\bimage|image pull|manifest unknown|manifest for .* not found"
    r"|ErrImagePull|failed to resolve reference",
    re.I | re.S,
)
_IMAGE_ABSENT = re.compile(
    r"manifest unknown|not found|denied|unauthorized|does not exist|invalid reference", re.I
)
_DRIVER = re.compile(r"\b(gpu|nvidia|cuda)\b.{0,40}\bdrivers?\b", re.I | re.S)
_SETUP_FAILED = 255
_QUOTA = re.compile(r"quota", re.I)
_STOCK_OUT = re.compile(
    r"ZONE_RESOURCE_POOL_EXHAUSTED|RESOURCE_POOL_EXHAUSTED|STOCKOUT|stock.?out|does not have enough resources"
    r"|insufficient capacity|resource availability",
    re.I,
)
_UNKNOWN = 50000  # Batch's code for "failed, no other known code"
_CODE_IN_WORDS = re.compile(r"exit code (\d+)", re.I)

# Which of several tasks' ends speaks for the job. A preempted node makes the
# others fail by their broken collectives, so preemption wins over a worker's
# error: repeating is cheap, and a true error comes back. A timeout comes
# first since it must never be repeated blindly.
_PRECEDENCE = (
    Kind.TIMED_OUT,
    Kind.SUPERSEDED,
    Kind.PREEMPTED,
    Kind.INFRASTRUCTURE,
    Kind.USER_ERROR,
    Kind.SUCCEEDED,
)


def judge(job: JobSeen, end: EndRecord | None = None, *, started: bool = True) -> Verdict:
    """Return the one verdict on an attempt.

    Args:
        job: the job as last seen.
        end: the container's own account, `None` when it wrote none.
        started: whether the container wrote that it started.
    """
    if job.state == "SUCCEEDED":
        return _judge_success(end, started)
    if job.state == "FAILED" or (job.failed_tasks and job.state not in _ENDING):
        return _judge_failure(job, end, started)
    if job.state == "CANCELLED":
        return _or_finished(end, Kind.CANCELLED, "the job was cancelled")
    if job.state == "DELETION_IN_PROGRESS":
        return _or_finished(end, Kind.CANCELLED, "the job is being deleted by somebody")
    if job.state == GONE:
        return _or_finished(end, Kind.LOST, "the job is gone, somebody deleted it or it was never created")
    return Verdict(kind=Kind.PENDING, reason=f"the job is {job.state}")


_ENDING = frozenset({"CANCELLED", "CANCELLATION_IN_PROGRESS", "DELETION_IN_PROGRESS", GONE})


def waiting_reason(job: JobSeen) -> Verdict:
    """Return why a job that was given up on in the queue had not started."""
    for event in newest_first(job.events):
        if _QUOTA.search(event.description):
            return Verdict(kind=Kind.STOCKED_OUT, reason=f"quota: {_short(event.description)}")
        if _STOCK_OUT.search(event.description):
            return Verdict(kind=Kind.STOCKED_OUT, reason=f"no capacity: {_short(event.description)}")
    last = newest_first(job.events)[:1]
    said = f"; last event: {_short(last[0].description)}" if last else ""
    return Verdict(kind=Kind.STOCKED_OUT, reason=f"the job was still {job.state} at its queue deadline{said}")


def explained(job: JobSeen) -> bool:
    """Return whether a failed job says why; the API may tell the state before what its tasks went through."""
    failed = [task.events for task in job.tasks if task.state == "FAILED"]
    if failed:
        return all(_says_why(events) for events in failed)
    # A code that stands for "unknown" may be known to the tasks.
    return _exit_code(newest_first(job.events)) != _UNKNOWN and _says_why(job.events)


def _says_why(events: tuple[EventSeen, ...]) -> bool:
    patterns = (_PREEMPTION, _DISK_FULL, _IMAGE)
    coded = _exit_code(newest_first(events)) is not None
    return coded or any(pattern.search(event.description) for pattern in patterns for event in events)


def _judge_success(end: EndRecord | None, started: bool) -> Verdict:
    if end is not None and end.state is EndState.FINISHED:
        return Verdict(kind=Kind.SUCCEEDED, reason="the training finished", exit_code=0)
    if end is not None and end.state is EndState.PREEMPTED:
        words = "the trainer stopped with exit code 0 after a preemption notice, unfinished"
        return Verdict(kind=Kind.PREEMPTED, reason=words, exit_code=0)
    if end is not None and end.state is EndState.SUPERSEDED:
        return Verdict(kind=Kind.SUPERSEDED, reason=_CONTAINER_CODES[ExitCode.SUPERSEDED].words)
    if end is None and not started:
        words = "Batch reports success, but resume-run never started in the container"
        return Verdict(kind=Kind.USER_ERROR, reason=words, exit_code=0, hopeless=True)
    words = "Batch reports success, but the container left no word that the training finished"
    return Verdict(kind=Kind.USER_ERROR, reason=words, exit_code=0)


def _or_finished(end: EndRecord | None, kind: Kind, words: str) -> Verdict:
    # What is finished need not be paid for twice, whatever became of the job's record.
    if end is not None and end.state is EndState.FINISHED:
        return Verdict(kind=Kind.SUCCEEDED, reason=f"the training finished; afterwards {words}")
    return Verdict(kind=kind, reason=words)


def _judge_failure(job: JobSeen, end: EndRecord | None, started: bool) -> Verdict:
    failed = [task for task in job.tasks if task.state == "FAILED"]
    verdicts = [_judge_events(task.events, end, started, _short_name(task)) for task in failed]
    if not verdicts:
        verdicts = [_judge_events(job.events, end, started, "")]
    return min(verdicts, key=lambda verdict: _PRECEDENCE.index(verdict.kind))


def _short_name(task: TaskSeen) -> str:
    return "/".join(task.name.split("/")[-2:])


def _judge_events(events: tuple[EventSeen, ...], end: EndRecord | None, started: bool, who: str) -> Verdict:
    ordered = newest_first(events)
    code = _exit_code(ordered)
    if code in (None, _UNKNOWN) and _said(end):
        code = _said(end)
    words = " ".join(event.description for event in ordered[:5])
    meaning = _platform_meaning(code, words, end) or _meaning_of(code, words, started, _is_theirs(code, end))
    said = _short(_telling(ordered).description) if ordered else ""
    return Verdict(
        kind=meaning.kind,
        reason="".join((meaning.words, f" ({who})" if who else "", f": {said}" if said else "")),
        exit_code=code,
        hopeless=meaning.hopeless,
    )


def _platform_meaning(code: int | None, words: str, end: EndRecord | None) -> _Meaning | None:
    """What the platform did to the attempt; `None` when the end is the command's own."""
    meaning = _BATCH_CODES.get(code or 0)
    if meaning is None and code in (None, _UNKNOWN) and _PREEMPTION.search(words):
        meaning = _BATCH_CODES[50001]
    of_command = meaning is None and code not in (None, _UNKNOWN)
    if end is not None and end.state is EndState.FINISHED and not of_command:
        # What is finished need not be paid for twice, even when its VM died on the last metres.
        return _Meaning(Kind.SUCCEEDED, "the training finished; afterwards the VM was lost")
    if meaning is None and end is not None and end.state is EndState.PREEMPTED:
        # The VM went away while Batch was still learning of it.
        return _CONTAINER_CODES[ExitCode.PREEMPTED]
    return meaning


def _said(end: EndRecord | None) -> int | None:
    """The container's own code; beside an unmodified image it does not know it and says -1."""
    return end.exit_code if end is not None and end.exit_code >= 0 else None


def _telling(ordered: list[EventSeen]) -> EventSeen:
    """The newest event that says something of a code; where times are missing that is not the first."""
    return next((event for event in ordered if _exit_code([event]) is not None), ordered[0])


def _exit_code(ordered: list[EventSeen]) -> int | None:
    """The newest event that carries a code wins; a code in words counts as one."""
    for event in ordered:
        if event.exit_code:
            return event.exit_code
        if found := _CODE_IN_WORDS.search(event.description):
            return int(found.group(1))
    return None


def _is_theirs(code: int | None, end: EndRecord | None) -> bool:
    """Whether the container says that the code is the training's own, and none of ours."""
    return end is not None and end.extra.get("by") == "training" and end.exit_code in (code, -1)


def _meaning_of(code: int | None, words: str, started: bool, theirs: bool) -> _Meaning:
    if _DISK_FULL.search(words):
        return _CONTAINER_CODES[ExitCode.NO_SPACE]
    if not started and (code == 125 or _IMAGE.search(words)):
        return _image_failure(words)
    if not started and (code == _SETUP_FAILED or _DRIVER.search(words)):
        # https://github.com/DataBiosphere/dsub/issues/229
        return _Meaning(Kind.INFRASTRUCTURE, "the VM could not be set up, its GPU driver most likely")
    if code in _CONTAINER_CODES and not theirs:
        return _CONTAINER_CODES[ExitCode(code)]
    if code in _SHELL_CODES:
        return _SHELL_CODES[code]
    if code in (None, _UNKNOWN) and not started:
        return _Meaning(Kind.INFRASTRUCTURE, "the job failed before the user's command ran")
    if code in (None, _UNKNOWN):
        return _Meaning(Kind.USER_ERROR, "the command failed with no known exit code")
    return _Meaning(Kind.USER_ERROR, f"the command failed with exit code {code}")


def _image_failure(words: str) -> _Meaning:
    if _IMAGE_ABSENT.search(words):
        return _Meaning(Kind.USER_ERROR, "the image does not exist or may not be pulled", True)
    return _Meaning(Kind.INFRASTRUCTURE, "the image could not be pulled")


def _short(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
