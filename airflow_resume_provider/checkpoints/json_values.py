"""JSON that every reader understands: what is no JSON is one error, and no number is NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def parse(raw: bytes | str) -> Any:
    """Read JSON; raises `ValueError` for whatever is none, however deeply it is nested.

    The names that Python writes for numbers that JSON does not have are read as strings.
    """
    try:
        # Both are only called for such names, and for numbers with a point: manifests are long.
        return json.loads(raw, parse_constant=str, parse_float=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def finite(value: Any) -> Any:
    """Return `value` with strings ("NaN", "Infinity") in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return _name(value) if isinstance(value, float) and not math.isfinite(value) else value


def is_shallow(value: Any, levels: int = 100) -> bool:
    """Return whether a JSON value is nested at most so deeply that everybody can walk through it."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels > 0 and all(is_shallow(each, levels - 1) for each in inner)


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a JSON value are numbers that JSON has."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else _name(value)  # 1e999 is more than there is


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
