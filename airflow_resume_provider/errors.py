"""Every error this project raises on purpose.

::

    ResumeError
    ├── InvalidInput                 a parameter or option that can never work
    ├── StoreError                   the store of checkpoints
    │   ├── StoreUnavailable         could not look: never the same as "nothing there"
    │   ├── PermissionDenied         the store refuses; names the missing permission
    │   ├── StoreMisconfigured       requester pays, disabled key, no such bucket
    │   ├── ObjectNotFound           one object is not there
    │   └── AlreadyExists            a create-only write came second
    ├── ManifestError                a manifest that cannot be trusted
    │   ├── ManifestUnreadable       not JSON, truncated, or fields missing
    │   ├── UnknownSchema            written by a newer major version
    │   ├── DuplicatePath            two entries for one file
    │   ├── EscapingPath             a name that leaves its directory
    │   └── WrongSize                sizes that contradict each other
    ├── CheckpointError
    │   ├── CheckpointNotFound       an explicitly named checkpoint is not there
    │   ├── CheckpointBroken         its bytes are not what its manifest says
    │   ├── NoSpace                  the disk cannot hold it
    │   └── CommitConflict           another writer holds the same place
    ├── Superseded                   a newer attempt exists; this one must stop
    ├── NoProgressError              attempts die again and again without a commit
    ├── ContainerError               the container side
    │   ├── UploadFailed             a finished checkpoint did not reach the store
    │   ├── FormatError              files on disk that the format cannot explain
    │   └── ConfigChanged            strict mode: the training is not what it was
    └── JobError                     Google Cloud Batch
        ├── BatchUnavailable         the API did not answer within its budget
        ├── JobNotOurs               the name is taken by somebody else's job
        └── AttemptFailed            an attempt ended and nothing more will be tried

Each error says what was seen, what was done about it and what the person can
do, carries its data as attributes, and survives pickling.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The exit codes of `resume-run` that are its own, not the training's.

    They lie in 80–99, which neither shells, nor Python, nor Google Cloud
    Batch (50000–50006, 125–127, 128 + signal) use.
    """

    FINISHED = 0
    USAGE = 2
    PREEMPTED = 80
    STORE_UNAVAILABLE = 81
    UPLOAD_FAILED = 82
    SUPERSEDED = 83
    NO_SPACE = 84
    CHECKPOINT_BROKEN = 85
    PERMISSION_DENIED = 86
    CONFIG_CHANGED = 87
    NO_PROGRESS = 88
    COMMIT_CONFLICT = 89
    CHECKPOINT_NOT_FOUND = 90
    STORE_MISCONFIGURED = 91
    FORMAT_ERROR = 92
    COMMAND_NOT_FOUND = 93
    UNKNOWN_SCHEMA = 94
    FAILED = 99


def _rebuild(cls: type[ResumeError], seen: str, did: str, can: str, data: dict[str, Any]) -> ResumeError:
    return cls(seen, did=did, can=can, **data)


class ResumeError(Exception):
    """Root of all errors of this project.

    Args:
        seen: what was observed.
        did: what was done about it.
        can: what the person can do.
        **data: facts, each kept as an attribute.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, seen: str, *, did: str = "", can: str = "", **data: Any) -> None:
        self.seen, self.did, self.can, self.data = seen, did, can, data
        for name, value in data.items():
            setattr(self, name, value)
        super().__init__(" ".join(part for part in (seen, did, can) if part))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.seen, self.did, self.can, self.data)


class InvalidInput(ResumeError, ValueError):
    """A parameter or option that can never work; `parameter` names it."""

    exit_code = ExitCode.USAGE
    parameter: str
    value: Any


class StoreError(ResumeError):
    """Something about the store of checkpoints; `uri` says where."""

    exit_code = ExitCode.STORE_UNAVAILABLE
    uri: str


class StoreUnavailable(StoreError):
    """The store could not be asked; it never means that nothing is there."""


class PermissionDenied(StoreError):
    """The store refuses; `permission` is the one that is missing, where known."""

    exit_code = ExitCode.PERMISSION_DENIED
    permission: str


class StoreMisconfigured(StoreError):
    """Retrying cannot help: requester pays, a disabled key, no such bucket."""

    exit_code = ExitCode.STORE_MISCONFIGURED


class ObjectNotFound(StoreError):
    """One object is not there."""

    exit_code = ExitCode.CHECKPOINT_NOT_FOUND


class AlreadyExists(StoreError):
    """A create-only write came second."""

    exit_code = ExitCode.COMMIT_CONFLICT


class ManifestError(ResumeError):
    """A manifest that cannot be trusted; `uri` says which."""

    exit_code = ExitCode.CHECKPOINT_BROKEN
    uri: str


class ManifestUnreadable(ManifestError):
    """Not JSON, truncated, or fields are missing or of the wrong type."""


class UnknownSchema(ManifestError):
    """Written by a newer major version of the format.

    Never passed over: what this version cannot read may be the newest there is.
    """

    exit_code = ExitCode.UNKNOWN_SCHEMA


class DuplicatePath(ManifestError):
    """Two entries of one manifest name the same file."""


class EscapingPath(ManifestError):
    """A name that would leave its directory."""


class WrongSize(ManifestError):
    """Sizes in a manifest contradict each other."""


class CheckpointError(ResumeError):
    """Something about one checkpoint."""

    exit_code = ExitCode.CHECKPOINT_BROKEN


class CheckpointNotFound(CheckpointError):
    """An explicitly named checkpoint is not there."""

    exit_code = ExitCode.CHECKPOINT_NOT_FOUND
    uri: str


class CheckpointBroken(CheckpointError):
    """Its bytes are not what its manifest says."""

    uri: str
    reason: str


class NoSpace(CheckpointError):
    """The disk cannot hold it: `required` and `free` in bytes."""

    exit_code = ExitCode.NO_SPACE
    required: int
    free: int


class CommitConflict(CheckpointError):
    """Another writer holds the same place in the lineage."""

    exit_code = ExitCode.COMMIT_CONFLICT


class Superseded(ResumeError):
    """A newer attempt (`by`) exists, so this one (`attempt`) must stop."""

    exit_code = ExitCode.SUPERSEDED
    attempt: int
    by: int


class NoProgressError(ResumeError):
    """Attempts die again and again without committing anything."""

    exit_code = ExitCode.NO_PROGRESS


class ContainerError(ResumeError):
    """Something on the container side."""


class UploadFailed(ContainerError):
    """A finished checkpoint did not reach the store."""

    exit_code = ExitCode.UPLOAD_FAILED


class FormatError(ContainerError):
    """Files on disk that the format cannot explain."""

    exit_code = ExitCode.FORMAT_ERROR


class ConfigChanged(ContainerError):
    """The training is not what it was, and strict mode forbids going on."""

    exit_code = ExitCode.CONFIG_CHANGED


class JobError(ResumeError):
    """Something about a Google Cloud Batch job."""


class BatchUnavailable(JobError):
    """The Batch API did not answer within its budget."""


class JobNotOurs(JobError):
    """The job's name is taken by a job that this training did not submit."""


class AttemptFailed(JobError):
    """An attempt ended and nothing more will be tried by this task's try."""
