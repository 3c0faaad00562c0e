"""What clients may set on buckets and objects: which values are taken, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .refusals import invalid

_STORAGE_CLASSES = {
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
}
_MAX_CUSTOM_METADATA = 8 << 10  # bytes of all keys and values
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _object(**members: Check) -> Check:
    """Return a check for objects: members named here as they must be, any others as they like."""

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(
            value.get(name) is None or fits(value[name]) for name, fits in members.items()
        )

    return check


def _list_of(fits: Check) -> Check:
    return lambda value: isinstance(value, list) and all(fits(item) for item in value)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str | None) for text in value.values())


def _is_access_entry(value: Any) -> bool:
    return isinstance(value, dict) and _text(value.get("entity")) and _text(value.get("role"))


def _is_time(value: Any) -> bool:
    if not (isinstance(value, str) and _TIME.fullmatch(value)):
        return False
    try:
        return datetime.fromisoformat(value) is not None
    except ValueError:
        return False


_ACCESS = _list_of(_is_access_entry)
_OBJECT_SETTINGS: dict[str, Check] = {
    "contentType": _text,
    "contentEncoding": _text,
    "contentDisposition": _text,
    "contentLanguage": _text,
    "cacheControl": _text,
    "storageClass": lambda value: _text(value) and value in _STORAGE_CLASSES,
    "customTime": _is_time,
    "metadata": _texts,
    "contexts": _object(),
    "acl": _ACCESS,
    "temporaryHold": _flag,
    "eventBasedHold": _flag,
}
_BUCKET_SETTINGS: dict[str, Check] = {
    "location": _text,
    "storageClass": _OBJECT_SETTINGS["storageClass"],
    "labels": _texts,
    "versioning": _object(enabled=_flag),
    "billing": _object(requesterPays=_flag),
    "lifecycle": _object(rule=_list_of(_object(action=_object(), condition=_object()))),
    "cors": _list_of(_object()),
    "website": _texts,
    "logging": _texts,
    "encryption": _object(),
    "autoclass": _object(enabled=_flag),
    "defaultEventBasedHold": _flag,
    "iamConfiguration": _object(uniformBucketLevelAccess=_object(), bucketPolicyOnly=_object()),
    "retentionPolicy": _object(),
    "softDeletePolicy": _object(),
    "rpo": _text,
    "hierarchicalNamespace": _object(enabled=_flag),
    "customPlacementConfig": _object(dataLocations=_list_of(_text)),
    "objectRetention": _object(),
    "acl": _ACCESS,
    "defaultObjectAcl": _ACCESS,
}
_POLICY = _object(
    bindings=_list_of(_object(role=_text, members=_list_of(_text), condition=_object())), etag=_text
)


def object_settings(given: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return `before` changed by a client's resource; null removes, unknown fields are ignored."""
    settings = dict(before or {})
    for key, fits in _OBJECT_SETTINGS.items():
        if key in given:
            _check(key, given[key], fits)
            settings[key] = _merged(given[key], settings) if key == "metadata" else given[key]
    _check_custom_metadata(settings.get("metadata") or {})
    check_custom_time(settings.get("customTime"), (before or {}).get("customTime"))
    return {key: value for key, value in settings.items() if value is not None and value != {}}


def _check(key: str, value: Any, fits: Check) -> None:
    if value is not None and not fits(value):
        raise invalid(f"Invalid value for: {key}: {value!r}"[:500])


def _merged(given: dict[str, Any] | None, settings: dict[str, Any]) -> dict[str, Any] | None:
    if given is None:
        return None
    merged = {**(settings.get("metadata") or {}), **given}
    return {key: value for key, value in merged.items() if value is not None}


def _check_custom_metadata(metadata: dict[str, str]) -> None:
    # Headers carry bytes that need not be UTF-8.
    size = sum(len(f"{key}{value}".encode(errors="surrogatepass")) for key, value in metadata.items())
    if size > _MAX_CUSTOM_METADATA:
        message = f"The custom metadata has {size} bytes; {_MAX_CUSTOM_METADATA} are allowed."
        raise invalid(message, code="MetadataTooLarge")


def check_custom_time(time: str | None, before: str | None) -> None:
    """Refuse to remove the custom time of an object, or to set it to an earlier one."""
    if before is None:
        return
    if time is None:
        raise invalid("Custom time cannot be removed once it is set.", location="customTime")
    if datetime.fromisoformat(time) < datetime.fromisoformat(before):
        raise invalid("Custom time cannot be set to an earlier time.", location="customTime")


def bucket_settings(given: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return `before` changed by a client's bucket resource; objects merge, null removes."""
    settings = dict(before or {})
    for key, fits in _BUCKET_SETTINGS.items():
        if key not in given:
            continue
        value = given[key]
        _check(key, value, fits)
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            value = {k: v for k, v in {**settings[key], **value}.items() if v is not None}
        settings[key] = value
    return {key: value for key, value in settings.items() if value is not None}


def policy_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return a client's IAM policy, or refuse what is none."""
    _check("policy", given, _POLICY)
    return given
