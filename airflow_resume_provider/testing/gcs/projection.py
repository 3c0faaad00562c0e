"""The `fields` parameter: a partial response, in the selector language of Google's JSON APIs."""

from __future__ import annotations

import re
from typing import Any

from .refusals import invalid

Selection = dict[str, "Selection"]  # {} selects everything below
_TOKEN = re.compile(r"[^,/()\s]+|[,/()]")


def project(resource: Any, fields: str | None) -> Any:
    """Return only the selected fields, e.g. `items(name,size),nextPageToken`."""
    if not fields:
        return resource
    return _pick(resource, parse_fields(fields))


def parse_fields(fields: str) -> Selection:
    """Parse a selection, or refuse it."""
    tokens = _TOKEN.findall(fields)
    selection, at = _parse(tokens, 0)
    if at != len(tokens):
        raise _bad(fields)
    return selection


def _bad(fields: str) -> Exception:
    return invalid(f"Invalid field selection {fields}", location="fields")


def _parse(tokens: list[str], at: int) -> tuple[Selection, int]:
    selection: Selection = {}
    while at < len(tokens) and tokens[at] != ")":
        at = _parse_path(tokens, at, selection)
        if at < len(tokens) and tokens[at] == ",":
            at += 1
    return selection, at


def _parse_path(tokens: list[str], at: int, selection: Selection) -> int:
    if tokens[at] in ",/(":
        raise _bad("".join(tokens))
    here = selection.setdefault(tokens[at], {})
    at += 1
    if at < len(tokens) and tokens[at] == "/":
        if at + 1 >= len(tokens):
            raise _bad("".join(tokens))
        return _parse_path(tokens, at + 1, here)
    if at < len(tokens) and tokens[at] == "(":
        inner, at = _parse(tokens, at + 1)
        if at >= len(tokens):
            raise _bad("".join(tokens))
        here.update(inner)
        at += 1
    return at


def _pick(value: Any, selection: Selection) -> Any:
    if not selection or (set(selection) == {"*"} and not selection["*"]):
        return value
    if isinstance(value, list):
        return [_pick(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = {key: selection.get(key, selection.get("*")) for key in value}
    return {key: _pick(value[key], inner) for key, inner in chosen.items() if inner is not None}
