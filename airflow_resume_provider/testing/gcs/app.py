"""The server: every request goes through one door, and every refusal leaves in its API's format."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from . import access, cross_origin, json_batch, json_buckets, json_objects, json_uploads, xml_objects
from .call import Call
from .faults import Fault
from .fields import check_fields
from .hooks import Hooks
from .refusals import Refusal, no_method, not_found
from .store import Store

log = logging.getLogger(__name__)

_ACL: dict[str, Any] = {"GET": access.list_entries, "POST": access.add_entry}
_ACL_ENTRY: dict[str, Any] = {"GET": access.get_entry, "DELETE": access.delete_entry}
_ROUTES: dict[tuple[str, ...], dict[str, Any]] = {
    ("b",): {"GET": json_buckets.list_all, "POST": json_buckets.insert},
    ("b", "*"): {
        "GET": json_buckets.get,
        "PATCH": json_buckets.patch,
        "PUT": json_buckets.update,
        "DELETE": json_buckets.delete,
    },
    ("b", "*", "o"): {"GET": json_objects.list_all},
    ("b", "*", "o", "*"): {
        "GET": json_objects.get,
        "HEAD": json_objects.get,
        "PATCH": json_objects.patch,
        "PUT": json_objects.update,
        "DELETE": json_objects.delete,
    },
    ("b", "*", "o", "*", "compose"): {"POST": json_objects.compose},
    ("b", "*", "o", "*", "moveTo", "o", "*"): {"POST": json_objects.move},
    ("b", "*", "o", "*", "copyTo", "b", "*", "o", "*"): {"POST": json_objects.copy},
    ("b", "*", "o", "*", "rewriteTo", "b", "*", "o", "*"): {"POST": json_objects.rewrite},
    ("b", "*", "acl"): _ACL,
    ("b", "*", "acl", "*"): _ACL_ENTRY,
    ("b", "*", "defaultObjectAcl"): _ACL,
    ("b", "*", "defaultObjectAcl", "*"): _ACL_ENTRY,
    ("b", "*", "o", "*", "acl"): _ACL,
    ("b", "*", "o", "*", "acl", "*"): _ACL_ENTRY,
    ("b", "*", "storageLayout"): {"GET": json_buckets.storage_layout},
    ("b", "*", "folders"): {"GET": json_buckets.folders},
    ("b", "*", "managedFolders"): {"GET": json_buckets.managed_folders},
    ("b", "*", "notificationConfigs"): {"GET": json_buckets.notifications},
    ("b", "*", "iam"): {"GET": json_buckets.get_policy, "PUT": json_buckets.set_policy},
    ("b", "*", "iam", "testPermissions"): {"GET": json_buckets.test_permissions},
    ("projects", "*", "serviceAccount"): {"GET": json_buckets.service_account},
}
_UPLOADS = {"POST": json_uploads.insert, "PUT": json_uploads.insert, "DELETE": json_uploads.insert}


class Door:
    """Answers requests of both APIs from one store."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store, self._hooks = store, hooks

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        response = await self._answer(request)
        if "Origin" in request.headers and not response.prepared:  # a download has set them itself
            response.headers.update(cross_origin.allowed_origin(request.raw_path, request.headers))
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        fault = await self._disturb(request)
        if isinstance(fault, web.StreamResponse):
            return fault
        if request.method == "OPTIONS" and "Origin" in request.headers:
            return cross_origin.preflight(request.raw_path, request.headers)
        try:
            call = Call.of(request, self._store, self._hooks)
        except Refusal as refusal:
            return _refuse(refusal, as_json=False)
        call.fault = fault
        try:
            return await answer(call)
        except Refusal as refusal:
            return _refuse(refusal, as_json=call.kind != "xml", plain=call.kind != "xml" and call.is_media)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s", request.method, request.raw_path)
            bug = Refusal(500, "backendError", f"{type(error).__name__}: {error}")
            return _refuse(bug, as_json=call.kind != "xml")

    async def _disturb(self, request: web.Request) -> web.StreamResponse | Fault | None:
        if self._hooks.before_request is None:
            return None
        fault = await self._hooks.before_request(request)
        return await _inflict(request, fault) if isinstance(fault, Fault) else fault


async def _inflict(request: web.Request, fault: Fault) -> web.StreamResponse | Fault:
    if fault.latency:
        await asyncio.sleep(fault.latency)
    if fault.reset and not fault.touches_body:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError("reset by a fault")
    if fault.status is not None:
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else None
        reason = "rateLimitExceeded" if fault.status == 429 else "backendError"
        refusal = Refusal(fault.status, reason, f"Injected fault {fault.status}.", headers=headers)
        return _refuse(refusal, as_json="/storage/v1" in request.raw_path)
    return fault


def _refuse(refusal: Refusal, *, as_json: bool, plain: bool = False) -> web.Response:
    if refusal.status == 304:
        return web.Response(status=304, headers=refusal.headers)
    if plain:  # the cloud answers for media in plain text
        return web.Response(status=refusal.status, text=refusal.message, headers=refusal.headers)
    body, kind = (refusal.as_json(), "json") if as_json else (refusal.as_xml(), "xml")
    return web.Response(
        status=refusal.status,
        text=body,
        headers=refusal.headers,
        content_type=f"application/{kind}",
        charset="UTF-8",
    )


async def answer(call: Call) -> web.StreamResponse:
    """Answer a request that has been taken apart."""
    call.store.catalogue.refresh()
    _check_payer(call)
    access.check_signature_age(call)
    if call.kind == "xml":
        return await xml_objects.answer(call)
    if call.kind == "batch":
        return await json_batch.batch(call, answer)
    methods = _methods(call)
    if call.method not in methods:
        raise no_method()
    check_fields(call)
    found: web.StreamResponse = await methods[call.method](call)
    return found


def _names(parts: list[str]) -> set[int]:
    """Return which segments of a path are names that clients chose."""
    if parts[2:3] == ["o"]:
        return {1, 3, 5} if parts[4:5] == ["acl"] else {1, 3, 6, 8}
    return {1, 3} if parts[2:3] in (["acl"], ["defaultObjectAcl"]) else {1}


def _methods(call: Call) -> dict[str, Any]:
    if call.kind == "upload":
        if len(call.parts) == 3 and (call.parts[0], call.parts[2]) == ("b", "o"):
            return _UPLOADS
        raise not_found()
    shape = tuple("*" if index in _names(call.parts) else part for index, part in enumerate(call.parts))
    if (methods := _ROUTES.get(shape)) is None:
        raise not_found()
    return methods


def _check_payer(call: Call) -> None:
    """Refuse requests on a requester-pays bucket that name no project to pay."""
    index = 0 if call.kind == "xml" else 1
    if len(call.parts) <= index or not call.store.catalogue.has_bucket(call.parts[index]):
        return
    if not call.store.catalogue.bucket(call.parts[index]).requester_pays:
        return
    if "userProject" in call.query or "x-goog-user-project" in call.headers:
        return
    if call.kind != "xml" and len(call.parts) == 2 and call.method == "PATCH":
        return  # the owner may always switch it off again
    message = "Bucket is a requester pays bucket but no user project provided."
    raise Refusal(400, "required", message, code="UserProjectMissing")
