"""The fields that resources have, also those that this server never sends: others cannot be selected."""

from __future__ import annotations

from .call import Call
from .projection import Selection, parse_fields
from .refusals import invalid

_OBJECT = {
    *("acl", "bucket", "cacheControl", "componentCount", "contentDisposition", "contentEncoding"),
    *("contentLanguage", "contentType", "contexts", "crc32c", "customTime", "customerEncryption", "etag"),
    *("eventBasedHold", "generation", "hardDeleteTime", "id", "kind", "kmsKeyName", "md5Hash", "mediaLink"),
    *("metadata", "metageneration", "name", "owner", "restoreToken", "retention"),
    *("retentionExpirationTime", "selfLink", "size", "softDeleteTime", "storageClass", "temporaryHold"),
    *("timeCreated", "timeDeleted", "timeFinalized", "timeStorageClassUpdated", "updated"),
}
_BUCKET = {
    *("acl", "autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold"),
    *("defaultObjectAcl", "encryption", "etag", "generation", "hardDeleteTime", "hierarchicalNamespace"),
    *("iamConfiguration", "id", "ipFilter", "kind", "labels", "lifecycle", "location", "locationType"),
    *("logging", "metageneration", "name", "objectRetention", "owner", "projectNumber", "retentionPolicy"),
    *("rpo", "satisfiesPZI", "satisfiesPZS", "selfLink", "softDeletePolicy", "softDeleteTime"),
    *("storageClass", "timeCreated", "updated", "versioning", "website"),
}
FIELDS = {
    "Object": _OBJECT,
    "Bucket": _BUCKET,
    "Objects": {"items", "kind", "nextPageToken", "prefixes"},
    "Buckets": {"items", "kind", "nextPageToken", "unreachable"},
    "RewriteResponse": {"done", "kind", "objectSize", "resource", "rewriteToken", "totalBytesRewritten"},
}
_WITHIN = {
    ("Objects", "items"): "Object",
    ("Buckets", "items"): "Bucket",
    ("RewriteResponse", "resource"): "Object",
}


def check_fields(call: Call) -> None:
    """Refuse a selection of fields that the answer cannot have, before anything is done."""
    if call.query.get("fields") and (resource := _resource(call)):
        _check(parse_fields(call.query["fields"]), resource)


def _resource(call: Call) -> str:
    """Return what the answer will be; empty for what has few fields."""
    parts = call.parts
    if call.is_media or call.method == "DELETE" or not parts or parts[0] != "b":
        return ""
    if len(parts) <= 2:
        return "Buckets" if len(parts) == 1 and call.method == "GET" else "Bucket"
    if parts[2] != "o":
        return ""
    if len(parts) == 3:
        return "Object" if call.kind == "upload" else "Objects"
    if parts[4:5] == ["rewriteTo"]:
        return "RewriteResponse"
    return "" if parts[4:5] == ["acl"] else "Object"


def _check(selection: Selection, resource: str) -> None:
    for name, inner in selection.items():
        if name not in FIELDS[resource] and name != "*":
            raise invalid(f"Invalid field selection {name}", location="fields")
        if within := _WITHIN.get((resource, name)):
            _check(inner, within)
