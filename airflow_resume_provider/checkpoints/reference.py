"""The reference: the few hundred bytes that name a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reference:
    """Names a checkpoint; handing it over moves no checkpoint bytes.

    Attributes:
        uri: the checkpoint's own directory in the store, no trailing slash.
        index: position in the lineage, 0, 1, 2 …, monotone.
        step: the trainer's own counter.
        attempt: the attempt that committed it.
        metrics: what the trainer reported, JSON values only.
        total_bytes: size of all its files.
    """

    uri: str
    index: int
    step: int
    attempt: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    total_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that travels through XCom and the CLI."""
        return {
            "uri": self.uri,
            "index": self.index,
            "step": self.step,
            "attempt": self.attempt,
            "metrics": dict(self.metrics),
            "total_bytes": self.total_bytes,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reference:
        """Read the JSON form; unknown fields are ignored, a reference carries no history."""
        return cls(
            uri=str(data["uri"]),
            index=int(data["index"]),
            step=int(data["step"]),
            attempt=int(data["attempt"]),
            metrics=dict(data.get("metrics") or {}),
            total_bytes=int(data.get("total_bytes") or 0),
        )
