"""Disturbances of single requests: statuses, latency, cut, stalled or wrong bytes, a slow line."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to one request.

    Args:
        status: answer with this HTTP error instead of doing anything.
        latency: wait this many seconds first.
        reset: close the connection without an answer.
        after: serve the request, then break the response body after this many
            bytes: with `stall` seconds of silence first, then a closed connection.
        stall: seconds of silence at `after`; then the rest follows, unless `reset`.
        corrupt: flip a bit of the byte at this offset of the response body.
        bandwidth: bytes per second, of the request's body and of the response's.
        retry_after: seconds for the Retry-After header of `status`.
    """

    status: int | None = None
    latency: float = 0.0
    reset: bool = False
    after: int | None = None
    stall: float = 0.0
    corrupt: int | None = None
    bandwidth: int | None = None
    retry_after: int | None = None

    @property
    def touches_body(self) -> bool:
        """Whether the response has to be sent piece by piece."""
        return self.after is not None or self.corrupt is not None or self.bandwidth is not None


@dataclass
class Rule:
    """A fault for the requests that match.

    Args:
        fault: what to do.
        method: regular expression of the HTTP method.
        path: regular expression, searched in the undecoded path and query.
        skip: let this many matching requests pass first.
        times: how often at most; None for always.
        probability: with which a matching request is hit.
    """

    fault: Fault
    method: str = ".*"
    path: str = ""
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    hits: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)

    def matches(self, method: str, path: str) -> bool:
        """Whether the rule is about such a request at all."""
        return bool(re.fullmatch(self.method, method) and re.search(self.path, path))


class FaultPlan:
    """A `before_request` hook made of rules; the same seed gives the same faults in the same order."""

    def __init__(self, rules: list[Rule] | None = None, *, seed: int = 0) -> None:
        self.rules = list(rules or [])
        self._random = random.Random(seed)  # noqa: S311

    def add(self, fault: Fault, **options: object) -> Rule:
        """Add a rule, see `Rule`."""
        rule = Rule(fault, **options)  # type: ignore[arg-type]
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Disturb nothing from now on."""
        self.rules.clear()

    async def __call__(self, request: web.Request) -> Fault | None:
        """Return the fault of the first rule that hits."""
        for rule in self.rules:
            if rule.matches(request.method, request.raw_path) and self._hits(rule):
                return rule.fault
        return None

    def _hits(self, rule: Rule) -> bool:
        rule.seen += 1
        if rule.seen <= rule.skip or (rule.times is not None and rule.hits >= rule.times):
            return False
        if rule.probability < 1 and self._random.random() >= rule.probability:
            return False
        rule.hits += 1
        return True


class Line:
    """A response body's way to the client, with a fault on it."""

    def __init__(self, fault: Fault, response: web.StreamResponse) -> None:
        self._fault, self._response = fault, response
        self._sent = 0

    async def send(self, data: bytes) -> bool:
        """Send `data`, or what the fault leaves of it; returns whether the connection ends here."""
        fault = self._fault
        data = self._corrupted(data)
        if fault.bandwidth:
            await asyncio.sleep(len(data) / fault.bandwidth)
        cut = fault.after - self._sent if fault.after is not None else -1
        self._sent += len(data)
        if not 0 <= cut < len(data):
            await self._response.write(data)
            return False
        await self._response.write(data[:cut])
        if fault.stall:
            await asyncio.sleep(fault.stall)
        if fault.reset or not fault.stall:
            return True
        await self._response.write(data[cut:])
        return False

    def _corrupted(self, data: bytes) -> bytes:
        at = self._fault.corrupt - self._sent if self._fault.corrupt is not None else -1
        if not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
