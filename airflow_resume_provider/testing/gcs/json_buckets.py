"""Buckets over the JSON API."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .call import Call
from .names import check_bucket
from .preconditions import Preconditions
from .refusals import Refusal, precondition_failed, required
from .resources import bucket_resource, wants_full
from .responses import page_size, respond
from .settings import bucket_settings, policy_settings


async def insert(call: Call) -> web.Response:
    """POST /b."""
    resource = await call.json()
    if "name" not in resource:
        raise required("Required", location="name")
    if not call.query.get("project"):
        raise required("Required parameter: project", location="project")
    name = check_bucket(str(resource["name"]))
    bucket = call.store.catalogue.create_bucket(name, bucket_settings(resource))
    return respond(call, bucket_resource(bucket, call.base, full=wants_full(call.query)))


async def get(call: Call) -> web.Response:
    """GET /b/BUCKET."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    conditions = Preconditions.from_query(call.query)
    if conditions.metageneration_match not in (None, bucket.metageneration):
        raise precondition_failed()
    if conditions.metageneration_not_match == bucket.metageneration:
        raise Refusal(304, "notModified", "Not Modified")
    return respond(call, bucket_resource(bucket, call.base, full=wants_full(call.query)))


async def list_all(call: Call) -> web.Response:
    """GET /b."""
    if not call.query.get("project"):
        raise required("Required parameter: project", location="project")
    prefix, token = call.query.get("prefix", ""), call.query.get("pageToken", "")
    limit = page_size(call)
    found = [b for b in call.store.catalogue.buckets() if b.name.startswith(prefix) and b.name > token]
    items = [bucket_resource(bucket, call.base, full=wants_full(call.query)) for bucket in found[:limit]]
    page: dict[str, Any] = {"kind": "storage#buckets", **({"items": items} if items else {})}
    if len(found) > limit:
        page["nextPageToken"] = found[limit - 1].name
    return respond(call, page)


async def patch(call: Call) -> web.Response:
    """PATCH /b/BUCKET."""
    return await _change(call, replace=False)


async def update(call: Call) -> web.Response:
    """PUT /b/BUCKET."""
    return await _change(call, replace=True)


async def _change(call: Call, *, replace: bool) -> web.Response:
    given = await call.json()
    bucket = call.store.catalogue.bucket(call.parts[1])  # as it is now, not before the body came
    _check_metageneration(call, bucket.metageneration)
    fixed = {key: bucket.settings[key] for key in ("location",) if key in bucket.settings}
    settings = bucket_settings(given, fixed if replace else bucket.settings)
    changed = call.store.catalogue.change_bucket(bucket, settings)
    return respond(call, bucket_resource(changed, call.base, full=wants_full(call.query)))


def _check_metageneration(call: Call, metageneration: int) -> None:
    conditions = Preconditions.from_query(call.query)
    if conditions.metageneration_match not in (None, metageneration):
        raise precondition_failed()
    if conditions.metageneration_not_match == metageneration:
        raise precondition_failed()


async def delete(call: Call) -> web.Response:
    """DELETE /b/BUCKET."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    _check_metageneration(call, bucket.metageneration)
    call.store.catalogue.delete_bucket(bucket.name)
    return web.Response(status=204)


async def storage_layout(call: Call) -> web.Response:
    """GET /b/BUCKET/storageLayout: a flat namespace, always."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    full = bucket_resource(bucket, call.base)
    layout = {
        "kind": "storage#storageLayout",
        "bucket": bucket.name,
        "location": full["location"],
        "locationType": full["locationType"],
        "hierarchicalNamespace": {"enabled": False},
    }
    return respond(call, layout)


async def get_policy(call: Call) -> web.Response:
    """GET /b/BUCKET/iam."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    policy = bucket.settings.get("iamPolicy", {"version": 1, "bindings": [], "etag": "CAE="})
    return respond(
        call, {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket.name}", **policy}
    )


async def set_policy(call: Call) -> web.Response:
    """PUT /b/BUCKET/iam: kept and shown, not enforced."""
    bucket = call.store.catalogue.bucket(call.parts[1])
    policy = policy_settings(await call.json())
    call.store.catalogue.change_bucket(bucket, bucket.settings | {"iamPolicy": policy})
    return respond(call, {"kind": "storage#policy", "etag": "CAE=", **policy})


async def test_permissions(call: Call) -> web.Response:
    """GET /b/BUCKET/iam/testPermissions: everybody may do everything."""
    call.store.catalogue.bucket(call.parts[1])
    asked = call.request.query.getall("permissions", []) if call.request is not None else []
    return respond(call, {"kind": "storage#testIamPermissionsResponse", "permissions": asked})


async def service_account(call: Call) -> web.Response:
    """GET /projects/PROJECT/serviceAccount."""
    address = f"service-{call.parts[1]}@gs-project-accounts.iam.gserviceaccount.com"
    return respond(call, {"kind": "storage#serviceAccount", "email_address": address})


async def notifications(call: Call) -> web.Response:
    """GET /b/BUCKET/notificationConfigs: there are none."""
    call.store.catalogue.bucket(call.parts[1])
    return respond(call, {"kind": "storage#notifications"})


async def folders(call: Call) -> web.Response:
    """GET /b/BUCKET/folders: refused, as for every bucket with a flat namespace."""
    call.store.catalogue.bucket(call.parts[1])
    raise Refusal(409, "conflict", "The bucket does not support hierarchical namespace.")


async def managed_folders(call: Call) -> web.Response:
    """GET /b/BUCKET/managedFolders: there are none; `gcloud storage rm --recursive` asks."""
    call.store.catalogue.bucket(call.parts[1])
    return respond(call, {"kind": "storage#managedFolders"})
