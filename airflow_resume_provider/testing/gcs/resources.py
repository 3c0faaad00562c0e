"""Buckets and objects as the JSON API shows them, and what clients may set on them."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

from .catalogue import Bucket
from .checksums import crc_text, md5_text
from .refusals import Refusal
from .versions import Version, timestamp

PROJECT_NUMBER = "123456789012"
OWNER_ENTITY = f"project-owners-{PROJECT_NUMBER}"
_OWNER = {"entity": OWNER_ENTITY}


def bucket_resource(bucket: Bucket, base: str, *, full: bool = False) -> dict[str, Any]:
    """Return the `storage#bucket` resource."""
    settings = {"location": "US", "storageClass": "STANDARD", **bucket.settings}
    settings["location"] = str(settings["location"]).upper()
    versioned_etag = base64.b64encode(b"\x08" + bucket.metageneration.to_bytes(2, "little")).decode()
    resource = {
        "kind": "storage#bucket",
        "selfLink": f"{base}/storage/v1/b/{bucket.name}",
        "id": bucket.name,
        "name": bucket.name,
        "projectNumber": PROJECT_NUMBER,
        "generation": str(bucket.created),
        "metageneration": str(bucket.metageneration),
        "etag": versioned_etag,
        "timeCreated": timestamp(bucket.created),
        "updated": timestamp(bucket.updated),
        "locationType": "multi-region" if settings["location"] in ("US", "EU", "ASIA") else "region",
        "iamConfiguration": {
            "bucketPolicyOnly": {"enabled": False},
            "uniformBucketLevelAccess": {"enabled": False},
            "publicAccessPrevention": "inherited",
        },
        **settings,
    }
    return _with_access(resource, full, ("acl", "defaultObjectAcl"))


def _with_access(resource: dict[str, Any], full: bool, lists: tuple[str, ...]) -> dict[str, Any]:
    """Show who may do what, or hide it (projection=noAcl)."""
    access = {name: resource.pop(name, []) for name in lists}
    return resource | access | {"owner": _OWNER} if full else resource


def object_resource(version: Version, base: str, *, full: bool = False) -> dict[str, Any]:
    """Return the `storage#object` resource. 64-bit numbers are strings, as in the cloud."""
    bucket, name = version.bucket, quote(version.name, safe="")
    generation = str(version.generation)
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{bucket}/{version.name}/{generation}",
        "selfLink": f"{base}/storage/v1/b/{bucket}/o/{name}",
        "mediaLink": f"{base}/download/storage/v1/b/{bucket}/o/{name}?generation={generation}&alt=media",
        "name": version.name,
        "bucket": bucket,
        "generation": generation,
        "metageneration": str(version.metageneration),
        "storageClass": "STANDARD",
        "size": str(version.size),
        "crc32c": crc_text(version.crc32c),
        "etag": version.etag,
        "timeCreated": timestamp(version.created),
        "updated": timestamp(version.updated),
        "timeStorageClassUpdated": timestamp(version.created),
        "timeFinalized": timestamp(version.created),
        **version.settings,
    }
    if version.md5 is not None:
        resource["md5Hash"] = md5_text(version.md5)
    if version.components is not None:
        resource["componentCount"] = version.components
    if version.deleted is not None:
        resource["timeDeleted"] = timestamp(version.deleted)
    return _with_access(resource, full, ("acl",))


def wants_full(query: dict[str, str]) -> bool:
    """Read the `projection` parameter."""
    projection = query.get("projection", "noAcl")
    if projection not in ("noAcl", "full"):
        raise Refusal(400, "invalidParameter", f"Invalid string value: '{projection}'. Allowed values: "
                      "[full, noAcl]", location="projection")  # fmt: skip
    return projection == "full"
