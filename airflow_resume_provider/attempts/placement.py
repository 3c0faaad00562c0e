"""Where and on what attempts run: the ladder of placements, checked when the DAG is parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, NoReturn

from airflow_resume_provider.attempts.ledger import Ledger
from airflow_resume_provider.attempts.verdict import Kind
from airflow_resume_provider.errors import InvalidInput

PROVISIONING_MODELS = frozenset({"STANDARD", "SPOT", "PREEMPTIBLE", "RESERVATION_BOUND", "FLEX_START"})
# Words that people use for the same things.
_SYNONYMS = {"ON_DEMAND": "STANDARD", "ONDEMAND": "STANDARD"}
_REGION = re.compile(r"[a-z]+(-[a-z]+)*-[a-z]+[0-9]+")
_ZONE = re.compile(rf"({_REGION.pattern})-[a-z]")


class Policy(StrEnum):
    """What happens with the rung after an attempt on a lower one has run."""

    STICKY = "sticky"  # stay where it worked
    RETURN = "return"  # try the first rung again


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One rung of the ladder.

    Attributes:
        region: the job's location.
        zones: zones of that region; empty means any.
        machine_type, accelerator_type, accelerator_count, provisioning_model: as in Batch.
        attempts: how many attempts in a row this rung gets, `None` is as many as the budgets allow.
        queue_timeout: seconds after which a job that has not started moves to the next rung.
    """

    region: str
    zones: tuple[str, ...] = ()
    machine_type: str = "e2-standard-4"
    accelerator_type: str | None = None
    accelerator_count: int = 0
    provisioning_model: str = "SPOT"
    attempts: int | None = None
    queue_timeout: float | None = None

    @property
    def allowed_locations(self) -> list[str]:
        """The locations as Batch writes them: one region, or zones of that region."""
        return [f"zones/{zone}" for zone in self.zones] or [f"regions/{self.region}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "zones": list(self.zones)}

    def __str__(self) -> str:
        where = ",".join(self.zones) or self.region
        gpus = f" with {self.accelerator_count} x {self.accelerator_type}" if self.accelerator_type else ""
        return f"{self.provisioning_model} {self.machine_type}{gpus} in {where}"


KEYS = frozenset(f.name for f in fields(Placement))


def templated(value: Any) -> bool:
    """Return whether a value is still a template (Jinja, or a task's result) and cannot be checked yet."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve")  # an XComArg


def ladder(defaults: Placement, rungs: Sequence[Mapping[str, Any]] | None) -> tuple[Placement, ...]:
    """Return the ladder: each rung is the operator's own placement with some keys changed.

    Raises:
        InvalidInput: with the name of the parameter, for what can never work.
    """
    if rungs is None:
        return (checked(defaults, ""),)
    if isinstance(rungs, Mapping | str) or not isinstance(rungs, Sequence) or not rungs:
        _refuse("placements", rungs, "a non-empty list of dictionaries")
    return tuple(_rung(defaults, rung, f"placements[{i}]") for i, rung in enumerate(rungs))


def _rung(defaults: Placement, rung: Any, where: str) -> Placement:
    if not isinstance(rung, Mapping):
        _refuse(where, rung, "a dictionary")
    if unknown := sorted(set(rung) - KEYS):
        _refuse(where, unknown[0], f"one of the keys {', '.join(sorted(KEYS))}")
    changes = dict(rung)
    if "zones" in changes:
        changes["zones"] = _names(changes["zones"], f"{where}.zones")
        if "region" not in changes and (found := _ZONE.fullmatch((changes["zones"] or ("",))[0])):
            changes["region"] = found.group(1)
    elif changes.get("region", defaults.region) != defaults.region:
        changes["zones"] = ()  # the default's zones lie in another region
    return checked(replace(defaults, **changes), f"{where}.")


def _names(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        _refuse(where, value, "a list of zone names")
    return tuple(str(zone).removeprefix("zones/") for zone in value)


def checked(placement: Placement, prefix: str) -> Placement:
    """Return the placement with its words in Batch's spelling; what is still templated is left alone."""
    model = placement.provisioning_model
    if not templated(model):
        model = _model(model, f"{prefix}provisioning_model")
    if not templated(placement.region) and not _REGION.fullmatch(str(placement.region)):
        _refuse(f"{prefix}region", placement.region, 'a region such as "us-central1"')
    for zone in placement.zones:
        _check_zone(zone, placement.region, f"{prefix}zones")
    _check_numbers(placement, prefix)
    return replace(placement, provisioning_model=model)


def _model(value: Any, parameter: str) -> str:
    word = str(value).upper().replace("-", "_")
    word = _SYNONYMS.get(word, word)
    if word not in PROVISIONING_MODELS:
        _refuse(parameter, value, f"one of {', '.join(sorted(PROVISIONING_MODELS))}")
    return word


def _check_zone(zone: str, region: str, parameter: str) -> None:
    if templated(zone) or templated(region):
        return
    found = _ZONE.fullmatch(zone)
    if found is None:
        _refuse(parameter, zone, 'zones such as "us-central1-a"')
    if found.group(1) != region:
        _refuse(parameter, zone, f"zones of {region}: one job stays in one region, add a rung for another")


def _check_numbers(placement: Placement, prefix: str) -> None:
    count = placement.accelerator_count
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        _refuse(f"{prefix}accelerator_count", count, "0 or more")
    if bool(placement.accelerator_type) != bool(count):
        _refuse(
            f"{prefix}accelerator_count", count, "both accelerator_type and accelerator_count, or neither"
        )
    if placement.attempts is not None and (not isinstance(placement.attempts, int) or placement.attempts < 1):
        _refuse(f"{prefix}attempts", placement.attempts, "1 or more, or None")
    timeout = placement.queue_timeout
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0
    ):
        _refuse(f"{prefix}queue_timeout", timeout, "seconds above 0, or None")


def _refuse(parameter: str, value: Any, wanted: str) -> NoReturn:
    raise InvalidInput(f"{parameter} is {value!r}.", can=f"Give {wanted}.", parameter=parameter, value=value)


def next_rung(ladder: Sequence[Placement], ledger: Ledger, policy: Policy) -> int | None:
    """Return the rung of the next attempt, `None` when the ladder is used up.

    A stocked-out rung is left at once. A rung with `attempts` is left when so
    many attempts in a row ran on it. With `return`, an attempt that ran on a
    lower rung is followed by another go at the first one.
    """
    if not ledger.entries:
        return 0
    last = ledger.entries[-1]
    here = min(last.rung, len(ladder) - 1)
    if last.verdict is Kind.STOCKED_OUT:
        return _after(ladder, here)
    if here > 0 and policy is Policy.RETURN:
        return 0
    limit = ladder[here].attempts
    stay = ledger.tail(lambda e: e.rung == last.rung and e.clears == last.clears)
    if limit is not None and len(stay) >= limit:
        return _after(ladder, here)
    return here


def _after(ladder: Sequence[Placement], here: int) -> int | None:
    return here + 1 if here + 1 < len(ladder) else None
