"""Finds out the format by looking; once one has been recognised it stays."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_resume_provider.runtime.formats.directory import DirectoryFormat
from airflow_resume_provider.runtime.formats.files import FilesFormat
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.registry import OWN, format_named

log = logging.getLogger("resume-run")
_GENERIC = ("directory", "files")


class AutoFormat(Format):
    """The first of our formats that recognises what lies there."""

    name = "auto"

    def __init__(self) -> None:
        self._candidates = [format_named(name) for name in OWN if name not in _GENERIC]
        self._directories = DirectoryFormat(cautious=True)
        self._candidates += [self._directories, FilesFormat(cautious=True)]
        self.chosen: Format | None = None
        self._sure = False

    @property
    def label(self) -> str:
        """The recognised format's name."""
        return self.chosen.label if self.chosen else self.name

    @property
    def settles(self) -> bool:
        """Whether the format is known for good: a generic one yields to a framework's traces."""
        return self.chosen is not None and self.chosen.name not in _GENERIC

    def find(self, directory: Path) -> Sequence[Found]:
        """Return what the recognised format finds."""
        if not self.settles:
            self.chosen = next((f for f in self._candidates if f.recognises(directory)), None)
        self._sure = self._sure or self.chosen is not None
        if not self._sure and (doubtful := self._directories.find(directory)):
            self.chosen = self._directories
            return doubtful
        return self.chosen.find(directory) if self.chosen else ()

    def present(self, directory: Path) -> Sequence[Found]:
        """Return what any of the formats could take: which of them it is may show only later."""
        found = list(self.find(directory))
        for form in self._candidates:
            try:
                found += form.present(directory)
            except Exception as error:  # it was not made for what lies there
                log.info("The format %r cannot read %s: %r", form.name, directory, error)
        return found

    def environment(self, restored: Found | None) -> Mapping[str, str]:
        """Return what the recognised format says."""
        return self.chosen.environment(restored) if self.chosen else {}
