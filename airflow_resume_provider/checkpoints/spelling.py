"""Which URIs name the same place: a path can be written in many ways, a lineage is still one.

A `file://` URI may be percent-encoded, go through `..`, a link or `localhost`, and
end in slashes. In `gs://` names every byte counts, but for slashes at the end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_resume_provider.checkpoints import names


@dataclass(frozen=True)
class Located:
    """A checkpoint's place: its lineage in the one canonical spelling, the path below, the numbers."""

    lineage: str
    below: str
    attempt: int
    index: int


def canonical(uri: str) -> str:
    """Return the one spelling that all URIs of a place share."""
    return _real(_tidy(uri))


def located(uri: str) -> Located | None:
    """Split a checkpoint's URI, however it is spelt; `None` when it is none of a lineage."""
    tidy = _tidy(uri)
    place = names.split_checkpoint(tidy)
    return Located(_real(place[0]), tidy[len(place[0]) + 1 :], *place[1:]) if place else None


def _tidy(uri: str) -> str:
    """Return a URI decoded and without detours."""
    path = unquote(uri.removeprefix("file://"))
    path = path.removeprefix("localhost") if path.startswith("localhost/") else path
    if not uri.startswith("file://") or not path.startswith("/") or "\0" in path:
        return uri.rstrip("/")
    return "file://" + os.path.normpath("/" + path.lstrip("/"))


def _real(tidy: str) -> str:
    try:
        return "file://" + os.path.realpath(tidy[7:]) if tidy.startswith("file:///") else tidy
    except ValueError:  # a name that no file can have
        return tidy
