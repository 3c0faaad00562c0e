"""Which checkpoints to keep: the newest n, the best k by a metric, every m-th. Pure.

Never deleted, whatever the rules say: the newest complete one, those that an
attempt resumes from, and those that a person has pinned; and all, when none of
them can be restored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What to keep; 0 switches a rule off.

    Attributes:
        keep_last: the newest n.
        keep_best: the best k by `metric`, whose parts are separated by dots.
        mode: whether a small or a large value of `metric` is good.
        keep_every: those whose index is a multiple of m.
    """

    keep_last: int = 0
    keep_best: int = 0
    metric: str = ""
    mode: Literal["min", "max"] = "min"
    keep_every: int = 0

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_best", "keep_every"):
            names.positive(getattr(self, name), name, least=0)
        if self.mode not in ("min", "max"):
            raise InvalidInput(f"mode is {self.mode!r}, not min or max.", parameter="mode", value=self.mode)
        if self.keep_best and not self.metric:
            raise InvalidInput("keep_best needs the name of a metric.", parameter="metric", value="")
        if not (self.keep_last or self.keep_best or self.keep_every):
            raise InvalidInput("No rule says what to keep.", parameter="keep_last", value=0)


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with a manifest. `defect` says why it cannot be restored, or is empty."""

    reference: Reference
    defect: str = ""


def check_metric(candidates: Sequence[Candidate], policy: Policy) -> None:
    """Raise `InvalidInput` when the best are asked for by a metric that no checkpoint has."""
    measured = [candidate.reference.metrics for candidate in candidates]
    if not policy.keep_best or not measured or any(metric(m, policy.metric) is not None for m in measured):
        return
    there = sorted({name for metrics in measured for name in metric_names(metrics)})
    raise InvalidInput(
        f"No checkpoint has the metric {policy.metric!r}; there is {', '.join(there) or 'none at all'}.",
        did="Nothing was deleted.",
        parameter="metric",
        value=policy.metric,
    )


def metric_names(metrics: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted names of all numbers."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from metric_names(value, f"{above}{name}.")
        elif metric({"it": value}, "it") is not None:
            yield f"{above}{name}"


def keep(candidates: Sequence[Candidate], policy: Policy, protected: Collection[str]) -> Mapping[str, str]:
    """Return the URIs to keep, each with the reason why."""
    chain = sorted(candidates, key=lambda c: (c.reference.attempt, c.reference.index))
    good = [c.reference for c in chain if not c.defect]
    kept: dict[str, str] = {}
    if not good:
        return {c.reference.uri: "no checkpoint can be restored, so none is deleted" for c in chain}
    for reference in good[-1:]:
        kept[reference.uri] = "the newest complete one"
    for candidate in chain:
        if candidate.reference.uri in protected:
            kept.setdefault(candidate.reference.uri, "pinned, or needed to resume from")
    for reference in good[max(0, len(good) - policy.keep_last) :]:
        kept.setdefault(reference.uri, f"among the newest {policy.keep_last}")
    for reference in _best(good, policy):
        kept.setdefault(reference.uri, f"among the best {policy.keep_best} by {policy.metric}")
    for reference in good:
        if policy.keep_every and reference.index % policy.keep_every == 0:
            kept.setdefault(reference.uri, f"one of every {policy.keep_every}")
    return kept


def _best(good: Sequence[Reference], policy: Policy) -> Sequence[Reference]:
    if not policy.keep_best:
        return ()
    sign = 1 if policy.mode == "min" else -1
    values = {n: metric(reference.metrics, policy.metric) for n, reference in enumerate(good)}
    ranked = sorted((sign * value, -n) for n, value in values.items() if value is not None)
    return [good[-n] for _, n in ranked[: policy.keep_best]]


def metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric by its dotted name, or `None` when it is absent or no finite number."""
    if name in metrics:
        value: Any = metrics[name]
    else:
        value = metrics
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None
