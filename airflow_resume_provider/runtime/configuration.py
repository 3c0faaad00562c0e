"""What a training was started with, kept in its checkpoints and compared on resume."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_resume_provider.errors import ConfigChanged
from airflow_resume_provider.runtime.options import Options

_SECRET = re.compile(r"token|secret|passw|api[-_]?key|credential", re.IGNORECASE)
_HIDDEN = "***"


@dataclass(frozen=True)
class Configuration:
    """Command, number of processes and declared settings; an empty command is one we do not know."""

    command: tuple[str, ...] = ()
    world_size: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    spec_digest: str = ""

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return what this attempt was started with; secrets on the command line are not kept."""
        command = tuple(_without_secrets(options.command))
        return cls(command, options.processes, dict(options.settings), options.spec_digest)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form; what is missing is not compared."""
        return cls(
            tuple(data.get("command") or ()),
            int(data.get("world_size") or 1),
            dict(data.get("settings") or {}),
            str(data.get("spec_digest") or ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that goes into the manifest."""
        return {
            "command": list(self.command),
            "world_size": self.world_size,
            "settings": dict(self.settings),
            "spec_digest": self.spec_digest,
        }

    @property
    def digest(self) -> str:
        """A short name for all of it."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def changes_since(self, then: Configuration) -> list[str]:
        """Say what is different now, in words, besides the number of processes."""
        changes = list(_changed_settings(then.settings, self.settings))
        if then.command and self.command and then.command != self.command:
            changes.append(f"the command was {_changed_words(then.command, self.command)}")
        if then.spec_digest and self.spec_digest and then.spec_digest != self.spec_digest:
            changes.append(f"the specification's digest was {then.spec_digest}, is {self.spec_digest}")
        return changes


def check_configuration(then: Configuration, now: Configuration, *, elastic: bool, strict: bool) -> list[str]:
    """Return the changes, for a visible warning.

    Raises:
        ConfigChanged: `strict`, or the number of processes changed and the checkpoint's format
            does not say that another number can load it.
    """
    changes = now.changes_since(then)
    if then.world_size != now.world_size:
        resized = f"the number of processes was {then.world_size}, is {now.world_size}"
        if not elastic:
            raise ConfigChanged(
                f"The checkpoint cannot be resumed: {resized}, and its format does not say that it can.",
                did="Nothing was restored.",
                can="Run with the old number, or pass --elastic when your training can resume with another.",
            )
        changes.append(resized)
    if changes and strict:
        raise ConfigChanged(
            f"The configuration changed since the checkpoint: {'; '.join(changes)}.",
            did="Nothing was restored, since --strict is set.",
            can="Undo the change, start a new training, or run without --strict.",
        )
    return changes


def _without_secrets(command: Sequence[str]) -> Iterator[str]:
    hide = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            yield _HIDDEN
        else:
            yield f"{name}={_HIDDEN}" if equals and _SECRET.search(name) else word
        hide = word.startswith("-") and not equals and bool(_SECRET.search(word))


def _changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            yield f"{name} was {json.dumps(then.get(name))}, is {json.dumps(now.get(name))}"


def _changed_words(then: Sequence[str], now: Sequence[str]) -> str:
    gone = [word for word in then if word not in now]
    new = [word for word in now if word not in then]
    if not gone and not new:
        return f"{' '.join(then)!r}, is {' '.join(now)!r}"
    return f"with {' '.join(gone)!r}, is with {' '.join(new)!r}"
