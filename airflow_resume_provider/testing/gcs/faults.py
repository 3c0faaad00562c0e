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
        bandwidth: bytes per second of the response body and of the request body.
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

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._sent = 0

    async def pass_on(self, data: bytes) -> tuple[bytes, bool]:
        """Return what of `data` goes out, and whether the connection ends there."""
        fault, start = self._fault, self._sent
        if fault.corrupt is not None and start <= fault.corrupt < start + len(data):
            at = fault.corrupt - start
            data = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
        if fault.bandwidth:
            await asyncio.sleep(len(data) / fault.bandwidth)
        cut = fault.after is not None and start <= fault.after < start + len(data)
        if cut and fault.after is not None and not (fault.stall and not fault.reset):
            data = data[: fault.after - start]
        if cut and fault.stall:
            await asyncio.sleep(fault.stall)
        self._sent += len(data)
        return data, cut and (fault.reset or not fault.stall)
