"""Which errors of the Batch API pass by themselves, and how long to wait for that.

The client's default retry covers only ServiceUnavailable, and only on reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

API_BUDGET = 300.0  # seconds that one call may be repeated in
# Waiting for an outage's end in a trigger costs nothing, while a try that ends uses up one of few.
ERROR_BUDGET = 7200.0
CALL_TIMEOUT = 60.0  # seconds that one request may take
_PASSING = {408, 429, 499, 500, 502, 503, 504}


def passing(error: BaseException) -> bool:
    """Return whether repeating the same call can help."""
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    if isinstance(error, exceptions.Aborted):
        return True
    if isinstance(error, exceptions.GoogleAPICallError):
        return int(error.code or 500) in _PASSING
    kinds = (exceptions.RetryError, TransportError, ConnectionError, TimeoutError)
    return isinstance(error, kinds) or _of_requests(error)


def _of_requests(error: BaseException) -> bool:
    # The REST transport lets these through; requests need not be imported to recognise them.
    return any(
        f"{kind.__module__}.{kind.__name__}" == "requests.exceptions.RequestException"
        for kind in type(error).__mro__
    )


def repeated(
    call: Callable[[], T],
    *,
    budget: float = API_BUDGET,
    sleep: Callable[[float], Any] | None = None,
    passes: Callable[[BaseException], bool] = passing,
) -> T:
    """Make a call, again and again with growing, jittered pauses while its errors are passing ones."""
    import time

    import tenacity

    retrying = tenacity.Retrying(
        sleep=sleep or time.sleep,
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=30),
        stop=tenacity.stop_after_delay(budget),
        reraise=True,
    )
    return retrying(call)
