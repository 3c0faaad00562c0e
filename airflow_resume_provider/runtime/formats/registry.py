"""Formats by name: our own, and those that other packages add through an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.runtime.formats.found import Format

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "airflow_resume_provider.formats"
_HERE = "airflow_resume_provider.runtime.formats"
#: In the order in which `auto` asks: the more telling evidence first.
OWN: Mapping[str, str] = {
    "marian": "marian:MarianFormat",
    "huggingface": "huggingface:HuggingFaceFormat",
    "dcp": "dcp:DcpFormat",
    "orbax": "orbax:OrbaxFormat",
    "keras": "keras:KerasFormat",
    "lightning": "lightning:LightningFormat",
    "directory": "directory:DirectoryFormat",
    "files": "files:FilesFormat",
}


def format_named(name: str) -> Format:
    """Return the format called `name`; raises `InvalidInput` for a name nobody registered."""
    if name in ("", "auto"):
        return _load("auto:AutoFormat")
    if name in OWN:
        return _load(OWN[name])
    for entry in _others():
        if entry.name == name:
            return _made(entry.load())
    raise InvalidInput(
        f"There is no checkpoint format {name!r}.",
        can=f"Choose one of {', '.join(format_names())}, or register yours under {GROUP!r}.",
        parameter="format",
        value=name,
    )


def format_names() -> list[str]:
    """Return every name that `format_named` accepts."""
    return ["auto", *OWN, *sorted(entry.name for entry in _others())]


def is_elastic(name: str) -> bool:
    """Return whether the format called `name`, if there is one, suits another number of processes."""
    return (name in OWN or name in format_names()) and format_named(name).elastic


def _others() -> EntryPoints:
    # Importing it takes as long as all of the runtime's own modules, and hardly anybody needs it.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _load(where: str) -> Format:
    module, _, name = where.partition(":")
    return _made(getattr(import_module(f"{_HERE}.{module}"), name))


def _made(made: object) -> Format:
    found = made() if callable(made) else made
    if not isinstance(found, Format):
        raise TypeError(f"{made!r} is no Format")
    return found
