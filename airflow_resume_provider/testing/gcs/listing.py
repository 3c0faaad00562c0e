"""Pages of a bucket's names: prefixes, delimiters, offsets, globs, tokens. For both APIs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .names import after, glob_pattern
from .refusals import invalid
from .versions import Version

# scan(start, end, after_generation, limit): versions beyond (start, after_generation), in order.
Scan = Callable[[str, str | None, int, int], list[Version]]
_NEWER_THAN_ALL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. `start` is inclusive, `start_after` exclusive, `end` exclusive."""

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    start_after: str = ""
    end: str = ""
    trailing_delimiter: bool = False
    glob: str = ""
    limit: int = 1000
    token: str = ""


@dataclass(slots=True)
class Page:
    """One page; `token` is empty on the last one."""

    items: list[Version] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str = ""

    def __len__(self) -> int:
        return len(self.items) + len(self.prefixes)


@dataclass(frozen=True, slots=True)
class _Position:
    name: str
    generation: int  # -1: before the name's first version

    def token(self) -> str:
        return page_token(self.name, self.generation)


def page_token(name: str, generation: int) -> str:
    """Return the token of the page behind one generation of a name."""
    return base64.urlsafe_b64encode(json.dumps([name, generation]).encode()).decode()


def _first(query: Query) -> _Position:
    if query.token:
        return _parse(query.token)
    position = _Position(max(query.prefix, query.start), -1)
    if query.start_after and query.start_after >= position.name:
        if _common(query.start_after, query) == query.start_after:  # a prefix: all below it was listed
            return _Position(after(query.start_after) or chr(0x10FFFF), -1)
        position = _Position(query.start_after, _NEWER_THAN_ALL)
    return position


def _parse(token: str) -> _Position:
    try:
        name, generation = json.loads(base64.urlsafe_b64decode(token.encode()))
        if not -1 <= int(generation) <= _NEWER_THAN_ALL:
            raise ValueError(generation)
        return _Position(str(name), int(generation))
    except (ValueError, TypeError, OverflowError):
        raise invalid("Invalid argument: page token", location="pageToken") from None


def _end(query: Query) -> str | None:
    ends = [end for end in (query.end, after(query.prefix)) if end]
    return min(ends) if ends else None


def list_page(scan: Scan, query: Query) -> Page:
    """Return the page of `query`, in at most `limit` names and prefixes together."""
    pattern = glob_pattern(query.glob) if query.glob else None
    page, end, batch = Page(), _end(query), 32
    position: _Position | None = _first(query)
    while position is not None and not page.token:
        wanted = min(batch, query.limit - len(page) + 1)
        found = scan(position.name, end, position.generation, wanted)
        position, skipped = _take(found, query, pattern, page, position)
        if len(found) < wanted and not skipped:
            break
        batch = 8 if skipped else min(batch * 2, 1000)  # most of a batch is wasted by a skip
    return page


def _take(
    found: list[Version], query: Query, pattern: re.Pattern[str] | None, page: Page, position: _Position
) -> tuple[_Position | None, bool]:
    """Move versions into the page; returns where to scan next (None at the end), and whether names were
    skipped.
    """
    for version in found:
        common = _common(version.name, query)
        if len(page) >= query.limit:
            page.token = position.token()
            return position, False
        shown = common is None or (query.trailing_delimiter and version.name == common)
        if shown and (pattern is None or pattern.fullmatch(version.name)):
            page.items.append(version)
        if common is None:
            position = _Position(version.name, version.generation)
            continue
        if pattern is None or pattern.fullmatch(common) or pattern.fullmatch(common.removesuffix("/")):
            page.prefixes.append(common)
        beyond = after(common)
        return None if beyond is None else _Position(beyond, -1), True
    return position, False


def _common(name: str, query: Query) -> str | None:
    if not query.delimiter:
        return None
    at = name.find(query.delimiter, len(query.prefix))
    return None if at < 0 else name[: at + len(query.delimiter)]
