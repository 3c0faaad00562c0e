"""Listing: filter, order, page; a page token belongs to the request that it came from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import invalid

_ORDERS = {
    "": (lambda job: job.name, False),
    "name": (lambda job: job.name, False),
    "name desc": (lambda job: job.name, True),
    "create_time": (lambda job: (job.create_time.seconds, job.create_time.nanos), False),
    "create_time desc": (lambda job: (job.create_time.seconds, job.create_time.nanos), True),
}


def order_of(text: str) -> tuple[Callable[[Any], Any], bool]:
    """Sort key and direction of an `order_by`."""
    wanted = " ".join(text.split())
    wanted = wanted.removesuffix(" asc").replace("createTime", "create_time")
    if wanted not in _ORDERS:
        raise invalid(
            f'Invalid order_by "{text}": supported are "name", "name desc", "create_time" and '
            '"create_time desc".',
            "order_by",
        )
    return _ORDERS[wanted]


def page_size_of(size: int, limit: int) -> int:
    """How long a page is."""
    if size < 0:
        raise invalid(f"page_size must not be negative, got {size}.", "page_size")
    return min(size or limit, limit)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def page_token(position: int, last: str, request: Sequence[str]) -> str:
    """An opaque token: where the next page begins, and which request it belongs to."""
    content = json.dumps([position, last, _digest(request)])
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def read_token(token: str, request: Sequence[str]) -> tuple[int, str]:
    """Position and last name of a token.

    Raises:
        ApiError: the token is not one of ours, or comes from another request.
    """
    if not token:
        return 0, ""
    try:
        padded = token + "=" * (-len(token) % 4)
        position, last, digest = json.loads(base64.urlsafe_b64decode(padded.encode()))
        valid = isinstance(position, int) and isinstance(last, str) and digest == _digest(request)
    except (ValueError, TypeError, binascii.Error):
        valid = False
    if not valid:
        raise invalid("Invalid page_token: it does not belong to this request.", "page_token")
    return position, last


def page(items: Sequence[Any], size: int, token: str, request: Sequence[str]) -> tuple[list[Any], str]:
    """One page of a sorted list, and the token of the next one.

    The page goes on behind the last item that was given out, wherever it is by
    now; if that has been deleted, at the place where it was.
    """
    position, last = read_token(token, request)
    if last:
        found = next((index + 1 for index, item in enumerate(items) if item.name == last), None)
        position = found if found is not None else max(0, position - 1)
    chosen = list(items[position : position + size])
    end = position + len(chosen)
    return chosen, page_token(end, chosen[-1].name, request) if end < len(items) and chosen else ""
