"""Listing: filter, order, page; a page token belongs to the request that it came from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import invalid

Order = tuple[Callable[[Any], Any], bool]


def _by_name(item: Any) -> list[Any]:
    return [item.name]


def _by_create_time(job: Any) -> list[Any]:
    return [job.create_time.seconds, job.create_time.nanos, job.name]


BY_NAME: Order = (_by_name, False)
_ORDERS: dict[str, Order] = {
    "": BY_NAME,
    "name": BY_NAME,
    "name desc": (_by_name, True),
    "create_time": (_by_create_time, False),
    "create_time desc": (_by_create_time, True),
}


def order_of(text: str) -> Order:
    """Sort key and direction of an `order_by`; a key is JSON and differs from item to item."""
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


def page_token(last: list[Any], request: Sequence[str]) -> str:
    """An opaque token: the sort key of the last item given out, and which request it belongs to."""
    content = json.dumps([last, _digest(request)])
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def read_token(token: str, request: Sequence[str]) -> list[Any]:
    """Sort key of the last item given out.

    Raises:
        ApiError: the token is not one of ours, or comes from another request.
    """
    try:
        padded = token + "=" * (-len(token) % 4)
        last, digest = json.loads(base64.urlsafe_b64decode(padded.encode()))
        valid = isinstance(last, list) and digest == _digest(request)
    except (ValueError, TypeError, binascii.Error):
        valid = False
    if not valid:
        raise invalid("Invalid page_token: it does not belong to this request.", "page_token")
    return list(last)


def page(
    items: Sequence[Any],
    size: int,
    token: str,
    request: Sequence[str],
    order: Order = BY_NAME,
    wanted: Callable[[Any], bool] = lambda _item: True,
) -> tuple[list[Any], str]:
    """One page of the wanted items in their order, and the token of the next one.

    The page goes on behind the last item that was given out, also when that
    one, or its whole page, has been deleted since. No more items are looked at
    than the page and the question for a next one need.
    """
    key, descending = order
    remaining = sorted(items, key=key, reverse=descending)
    if token:
        last = read_token(token, request)
        remaining = [item for item in remaining if (key(item) < last if descending else key(item) > last)]
    found = list(itertools.islice(filter(wanted, remaining), size + 1))
    chosen = found[:size]
    return chosen, page_token(key(chosen[-1]), request) if len(found) > size else ""
