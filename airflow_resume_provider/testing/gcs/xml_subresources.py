"""Subresources of the XML API: what follows `?` and is a thing of its own, such as `?acl`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from . import xml_buckets
from .call import Call
from .json_objects import sources_of
from .names import check_object
from .preconditions import Preconditions
from .refusals import Refusal, invalid
from .resources import OWNER_ENTITY, bucket_resource
from .versions import Version
from .xml_documents import document, element, local_name, settings_of, written_headers

Method = Callable[[Call], Awaitable[web.Response]]
_UPLOADS = {"uploads", "uploadId", "partNumber", "upload_id"}
# Known to the cloud; those without a method here are refused.
_KNOWN = {
    *("acl", "billing", "compose", "cors", "defaultObjectAcl", "delete", "encryption", "encryptionConfig"),
    *("ipFilter", "legal-hold", "lifecycle", "location", "logging", "notification", "object-lock", "policy"),
    *("publicAccessBlock", "requestPayment", "retention", "softDelete", "storageClass", "tagging"),
    *("versioning", "versions", "website", "websiteConfig"),
}
# Other stores' ways to mean something else than the live object.
_FOREIGN = {"attributes", "restore", "select", "torrent", "versionId"}
# What may be empty and still is only a parameter, in lower case.
_PARAMETERS = {
    *("access_token", "alt", "callback", "continuation-token", "delimiter", "encoding-type", "expires"),
    *("fetch-owner", "fields", "generation", "generation-marker", "googleaccessid", "key", "key-marker"),
    *("list-type", "marker", "max-keys", "max-parts", "max-uploads", "name", "part-number-marker", "prefix"),
    *("prettyprint", "projection", "quotauser", "signature", "start-after", "upload-id-marker", "uploadtype"),
    *("userip", "userproject", "version-id-marker"),
}
_PARAMETER_PREFIXES = ("x-goog-", "x-amz-", "response-", "if", "$")


def find(call: Call) -> Method | None:
    """Return the method of the subresource that is asked for; None when there is none.

    One that has no method is refused: to act as if it were not there would
    replace or delete what it belongs to.
    """
    asked = [name for name in call.query if _is_subresource(name, call.query[name])]
    if not asked:
        return None
    if len(asked) > 1 or not _UPLOADS.isdisjoint(call.query):
        raise invalid(f"Subresources cannot be combined: {', '.join(asked)}")
    name, methods = asked[0], _OBJECT if len(call.parts) == 2 else _BUCKET
    if name not in _KNOWN:
        raise invalid(f"Invalid query parameter: '{name}'")
    if (method := methods.get((call.method, name))) is None:
        message = f"{call.method} of ?{name} is not implemented by this server."
        raise Refusal(501, "notImplemented", message, code="NotImplemented")
    return method


def _is_subresource(name: str, value: str) -> bool:
    if name in _KNOWN or name in _FOREIGN:
        return True
    if value or name in _UPLOADS:
        return False
    lower = name.lower()
    return lower not in _PARAMETERS and not lower.startswith(_PARAMETER_PREFIXES)


async def location(call: Call) -> web.Response:
    """GET /BUCKET?location."""
    bucket = call.store.catalogue.bucket(call.parts[0])
    return document("LocationConstraint", escape(bucket_resource(bucket, call.base)["location"]))


async def storage_class(call: Call) -> web.Response:
    """GET /BUCKET?storageClass."""
    bucket = call.store.catalogue.bucket(call.parts[0])
    return document("StorageClass", escape(bucket_resource(bucket, call.base)["storageClass"]))


async def versioning(call: Call) -> web.Response:
    """GET /BUCKET?versioning: without a status when it was never set."""
    bucket = call.store.catalogue.bucket(call.parts[0])
    if not bucket.settings.get("versioning"):
        return document("VersioningConfiguration")
    status = "Enabled" if bucket.versioned else "Suspended"
    return document("VersioningConfiguration", element("Status", status))


async def set_versioning(call: Call) -> web.Response:
    """PUT /BUCKET?versioning."""
    bucket, root = call.store.catalogue.bucket(call.parts[0]), await _document(call)
    status = _child(root, "Status")
    if local_name(root) != "VersioningConfiguration" or status not in ("Enabled", "Suspended"):
        raise _malformed()
    settings = bucket.settings | {"versioning": {"enabled": status == "Enabled"}}
    call.store.catalogue.change_bucket(bucket, settings)
    return web.Response()


async def bucket_acl(call: Call) -> web.Response:
    """GET /BUCKET?acl."""
    return _access_list(call.store.catalogue.bucket(call.parts[0]).settings.get("acl") or [])


async def object_acl(call: Call) -> web.Response:
    """GET /BUCKET/OBJECT?acl."""
    bucket, name = call.parts
    return _access_list(call.store.find(bucket, name).settings.get("acl") or [])


def _access_list(entries: list[dict[str, str]]) -> web.Response:
    owner = f"<Owner>{element('ID', OWNER_ENTITY)}</Owner>"
    shown = "".join(_access_entry(entry["entity"], entry["role"]) for entry in entries)
    return document("AccessControlList", owner, f"<Entries>{shown}</Entries>")


def _access_entry(entity: str, role: str) -> str:
    kind, _, address = entity.partition("-")
    scopes = {"user": ("UserByEmail", "EmailAddress"), "group": ("GroupByEmail", "EmailAddress"),
              "domain": ("GroupByDomain", "Domain")}  # fmt: skip
    if entity in ("allUsers", "allAuthenticatedUsers"):
        scope = f"<Scope type='{entity[0].upper()}{entity[1:]}'/>"
    elif kind in scopes:
        scope = f"<Scope type='{scopes[kind][0]}'>{element(scopes[kind][1], address)}</Scope>"
    else:
        scope = f"<Scope type='GroupById'>{element('ID', entity)}</Scope>"
    permission = {"OWNER": "FULL_CONTROL", "WRITER": "WRITE"}.get(role, "READ")
    return f"<Entry>{element('Permission', permission)}{scope}</Entry>"


async def compose(call: Call) -> web.Response:
    """PUT /BUCKET/OBJECT?compose."""
    bucket, name = call.parts
    call.store.catalogue.bucket(bucket)
    root = await _document(call)
    if local_name(root) != "ComposeRequest":
        raise _malformed()
    version = _composed(call, [_component(child) for child in root], bucket, check_object(name))
    await call.hooks.created(bucket, name)
    return web.Response(headers=written_headers(version))


def _component(component: ElementTree.Element) -> dict[str, object]:
    entry: dict[str, object] = {"name": _child(component, "Name")}
    if generation := _child(component, "Generation"):
        entry["generation"] = generation
    if wanted := _child(component, "IfGenerationMatch"):
        entry["objectPreconditions"] = {"ifGenerationMatch": wanted}
    return entry


def _composed(call: Call, listed: list[dict[str, object]], bucket: str, name: str) -> Version:
    sources = sources_of(call, bucket, listed)
    conditions = Preconditions.from_headers(call.headers)
    return call.store.compose(sources, bucket, name, settings_of(call.headers), conditions)


async def _document(call: Call) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(await call.body())  # noqa: S314 - local, and expat refuses entity bombs
    except ElementTree.ParseError:
        raise _malformed() from None


def _malformed() -> Refusal:
    return invalid("The XML you provided was not well-formed or did not validate.", code="MalformedXML")


def _child(parent: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in parent if local_name(child) == name), "")


_BUCKET: dict[tuple[str, str], Method] = {
    ("GET", "acl"): bucket_acl,
    ("GET", "location"): location,
    ("GET", "storageClass"): storage_class,
    ("GET", "versioning"): versioning,
    ("PUT", "versioning"): set_versioning,
    ("GET", "versions"): xml_buckets.list_objects,
}
_OBJECT: dict[tuple[str, str], Method] = {("GET", "acl"): object_acl, ("PUT", "compose"): compose}
