"""Access control lists, kept and shown but not enforced, and the dates of signed addresses, enforced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from .call import Call
from .preconditions import NOTHING
from .refusals import Refusal, invalid
from .responses import respond
from .store import check_generation


def check_signature_age(call: Call) -> None:
    """Refuse a signed address after its end. Signatures themselves are not looked at."""
    date, seconds = call.query.get("X-Goog-Date"), call.query.get("X-Goog-Expires")
    if date is None or seconds is None:
        return
    try:
        start = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        end = start + timedelta(seconds=int(seconds))
    except (ValueError, OverflowError):
        raise invalid("Invalid X-Goog-Date or X-Goog-Expires.") from None
    if call.store.catalogue.micros() / 1e6 > end.timestamp():
        raise Refusal(
            400, "expired", "Invalid argument.", code="ExpiredToken", details="Request signature expired"
        )


def _entry(given: dict[str, Any]) -> dict[str, Any]:
    if not given.get("entity") or not given.get("role"):
        raise Refusal(400, "required", "Required", location="entity")
    if not isinstance(given["entity"], str) or not isinstance(given["role"], str):
        raise invalid("Invalid value for: entity and role are texts.", location="entity")
    return {"kind": "storage#accessControl", "entity": given["entity"], "role": given["role"]}


def _list(call: Call) -> tuple[str, list[dict[str, Any]]]:
    """Return the name under which the list is kept, and the list."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    if call.parts[2] == "o":
        version = call.store.find(bucket.name, call.parts[3], check_generation(call.query.get("generation")))
        return "acl", version.settings.get("acl", [])
    return call.parts[2], bucket.settings.get(call.parts[2], [])


def _save(call: Call, key: str, entries: list[dict[str, Any]]) -> None:
    if call.parts[2] == "o":
        generation = check_generation(call.query.get("generation"))
        call.store.change(
            call.parts[1], call.parts[3], generation, NOTHING, lambda before: before | {"acl": entries}
        )
        return
    bucket = call.store.catalogue.bucket(call.parts[1])
    call.store.catalogue.change_bucket(bucket, bucket.settings | {key: entries})


async def list_entries(call: Call) -> web.Response:
    """GET …/acl or …/defaultObjectAcl."""
    return respond(call, {"kind": "storage#accessControls", "items": _list(call)[1]})


async def add_entry(call: Call) -> web.Response:
    """POST …/acl: add an entry, or give an entity another role."""
    key, entries = _list(call)
    entry = _entry(await call.json())
    _save(call, key, [other for other in entries if other["entity"] != entry["entity"]] + [entry])
    return respond(call, entry)


async def get_entry(call: Call) -> web.Response:
    """GET …/acl/ENTITY."""
    entity = call.parts[-1]
    for entry in _list(call)[1]:
        if entry["entity"] == entity:
            return respond(call, entry)
    raise Refusal(404, "notFound", f"The specified ACL entry {entity} does not exist.")


async def delete_entry(call: Call) -> web.Response:
    """DELETE …/acl/ENTITY."""
    await get_entry(call)
    key, entries = _list(call)
    _save(call, key, [entry for entry in entries if entry["entity"] != call.parts[-1]])
    return web.Response(status=204)
