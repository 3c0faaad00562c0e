"""The Range header, in the forms Cloud Storage honours."""

from __future__ import annotations

import re

from .refusals import bad_range

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def parse(header: str | None, size: int) -> tuple[int, int] | None:
    """Return [start, end) of the bytes asked for, or None for the whole object.

    What is no byte range at all (other units, several ranges, end before
    start) is ignored, as HTTP says; a range with no byte in the object is
    refused with 416.
    """
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
        if int(last) == 0:
            raise bad_range(size)
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise bad_range(size)
    return start, end
