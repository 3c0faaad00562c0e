"""The conditions a request may set on what is there before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .refusals import invalid, no_object, not_modified, precondition_failed
from .versions import Version

_NAMES = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")


def integer(text: str | None, name: str) -> int | None:
    """Parse an optional integer parameter, or refuse it by name."""
    if text is None:
        return None
    return natural(text, name)


def natural(text: str, name: str) -> int:
    """Parse a 64-bit integer that is not negative, or refuse it by name."""
    if len(text) > 19 or not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        raise invalid(f"Invalid value for parameter {name}: '{text}'", location=name)
    return int(text)


@dataclass(frozen=True, slots=True)
class Preconditions:
    """Generations and metagenerations that must, or must not, be there."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str], prefix: str = "if") -> Preconditions:
        """Read `ifGenerationMatch` and its like (`ifSourceGenerationMatch` with prefix "ifSource")."""
        if not query:
            return NOTHING
        values = [integer(query.get(prefix + name), prefix + name) for name in _NAMES]
        if values[3] is None:  # google-cloud-storage spells it so when it uploads
            values[3] = integer(query.get(f"{prefix}MetaGenerationNotMatch"), "ifMetagenerationNotMatch")
        return cls(*values)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], prefix: str = "x-goog-if-") -> Preconditions:
        """Read the XML API's headers."""
        generation, meta = f"{prefix}generation-match", f"{prefix}metageneration-match"
        return cls(
            generation_match=integer(headers.get(generation), generation),
            metageneration_match=integer(headers.get(meta), meta),
        )

    def check_write(self, live: Version | None) -> None:
        """Refuse with 412 unless `live` (None when there is nothing) is what was asked for."""
        if not self._holds(live):
            raise precondition_failed()

    def check_read(self, found: Version) -> None:
        """Refuse with 412, or 304 when what must not match does."""
        generation, meta = found.generation, found.metageneration
        if self.generation_match not in (None, generation) or self.metageneration_match not in (None, meta):
            raise precondition_failed()
        if self.generation_not_match == generation or self.metageneration_not_match == meta:
            raise not_modified()

    def check_existing(self, found: Version | None, bucket: str, name: str) -> Version:
        """Refuse a change of what is not there with 404, else as for a write."""
        if found is None:
            raise no_object(bucket, name)
        self.check_write(found)
        return found

    def _holds(self, live: Version | None) -> bool:
        generation = live.generation if live else 0
        if self.generation_match not in (None, generation):
            return False
        if self.generation_not_match is not None and self.generation_not_match == generation:
            return False
        if self.metageneration_match is not None:
            return live is not None and live.metageneration == self.metageneration_match
        if self.metageneration_not_match is not None:
            return live is None or live.metageneration != self.metageneration_not_match
        return True


NOTHING = Preconditions()
