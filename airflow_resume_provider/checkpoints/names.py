"""Where things lie in a lineage, and which names are safe to write on a disk.

Numbers are compared as numbers: `000999` is older than `1000`, however many
zeros a writer used.
"""

from __future__ import annotations

import hashlib
import re

from airflow_resume_provider.errors import EscapingPath, InvalidInput

TRAINING = "training.json"
ATTEMPTS = "attempts"
CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
QUARANTINE = "quarantine"
CLAIMS = "claims"
PINS = "pins"
# What the format keeps for itself inside a checkpoint.
OWN = ".resume"
# The name of a local object that is still being written starts so.
STAGED = ".resume-staged-"

# What begins so at the top of a mount point is no part of a checkpoint: there is no room beside it.
IN_MOUNT = (".resume.", ".resume-", "lost+found")
MOST_ATTEMPTS = 999_999_999

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Digits of ASCII only: other scripts' digits would be other names for the same number.
_NUMBER = re.compile(r"[0-9]{1,18}")
_CHECKPOINT = re.compile(
    rf"(?P<root>.*)/{ATTEMPTS}/(?P<attempt>[0-9]{{1,18}})/{CHECKPOINTS}/(?P<index>[0-9]{{1,18}})"
)
_QUARANTINED = re.compile(r"([0-9]{1,18})-([0-9]{1,18})\.json")


def attempt_prefix(attempt: int) -> str:
    """Return the directory of an attempt below its lineage."""
    return f"{ATTEMPTS}/{attempt:04d}"


def checkpoint_prefix(attempt: int, index: int) -> str:
    """Return the directory of a checkpoint below its lineage."""
    return f"{attempt_prefix(attempt)}/{CHECKPOINTS}/{index:06d}"


def mark_name(directory: str, attempt: int, index: int) -> str:
    """Return the object that marks a checkpoint in `quarantine` or `pins`."""
    return f"{directory}/{attempt:04d}-{index:06d}.json"


def number(name: str) -> int | None:
    """Read a directory's number; anything that is not one yields `None`."""
    return int(name) if _NUMBER.fullmatch(name) else None


def marked(name: str) -> tuple[int, int] | None:
    """Read `(attempt, index)` from the last segment of a mark's name."""
    match = _QUARANTINED.fullmatch(name.rpartition("/")[2])
    return (int(match[1]), int(match[2])) if match else None


def split_checkpoint(uri: str) -> tuple[str, int, int] | None:
    """Split a checkpoint's URI into its lineage, attempt and index, or return `None`."""
    match = _CHECKPOINT.fullmatch(uri.rstrip("/"))
    return (match["root"], int(match["attempt"]), int(match["index"])) if match else None


def contained(path: str, *, where: str = "") -> str:
    """Return `path` if it stays inside its directory, byte for byte; else raise `EscapingPath`."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise EscapingPath(
            f"The name {path!r} is not a relative path inside its checkpoint.",
            did="Nothing was written.",
            uri=where,
        )
    return path


def stored_as(path: str) -> str:
    """Return the object's name where it cannot be the path itself, else an empty string.

    The format keeps `manifest.json` and `.resume` at the top of a checkpoint for
    itself, and no store lists names with control characters reliably.
    """
    parts = path.split("/")
    reserved = parts[0] in (MANIFEST, OWN) or any(part.startswith(STAGED) for part in parts)
    if not reserved and not _CONTROL.search(path):
        return ""
    return f"{OWN}/{MANIFEST if path == MANIFEST else hashlib.sha256(path.encode()).hexdigest()[:32]}"


def attempt_number(value: int) -> int:
    """Return `value` if it can be an attempt's number; else raise `InvalidInput`."""
    if positive(value, "attempt") > MOST_ATTEMPTS:
        raise InvalidInput(
            f"attempt is {value}; the highest number there can be is {MOST_ATTEMPTS}.",
            parameter="attempt",
            value=value,
        )
    return value


def positive(value: int, parameter: str, *, least: int = 1) -> int:
    """Return `value` if it is at least `least`; else raise `InvalidInput` naming the parameter."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(
            f"{parameter} must be a whole number of at least {least}, not {value!r}.",
            parameter=parameter,
            value=value,
        )
    return value


def parents(path: str) -> list[str]:
    """Return the directories above `path`, outermost first."""
    found, cut = [], path.find("/")
    while cut >= 0:
        found.append(path[:cut])
        cut = path.find("/", cut + 1)
    return found
