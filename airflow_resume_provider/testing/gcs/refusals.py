"""What the server says no with: one exception, rendered as JSON or as XML."""

from __future__ import annotations

import json
from typing import Any
from xml.sax.saxutils import escape

# Reasons of the JSON API → codes of the XML API, where the two have other words.
_CODES = {
    "notFound": "NoSuchKey",
    "conditionNotMet": "PreconditionFailed",
    "conflict": "Conflict",
    "invalid": "InvalidArgument",
    "required": "InvalidArgument",
    "rateLimitExceeded": "SlowDown",
    "backendError": "InternalError",
    "methodNotAllowed": "MethodNotAllowed",
    "requestedRangeNotSatisfiable": "InvalidRange",
}


class Refusal(Exception):
    """A request that is answered with an error, in the words the cloud's clients parse."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        code: str = "",
        location: str = "",
        details: str = "",
        headers: dict[str, str] | None = None,
        plain: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.code = code or _CODES.get(reason, "InvalidArgument")
        self.location, self.details = location, details
        self.headers = headers or {}
        self.plain = plain

    def as_json(self) -> str:
        """Render for the JSON API."""
        error: dict[str, Any] = {"message": self.message, "domain": "global", "reason": self.reason}
        if self.location:
            error |= {
                "locationType": "header" if self.location.startswith("If-") else "parameter",
                "location": self.location,
            }
        body = {"error": {"code": self.status, "message": self.message, "errors": [error]}}
        return json.dumps(body, indent=2)

    def as_xml(self) -> str:
        """Render for the XML API."""
        return (
            "<?xml version='1.0' encoding='UTF-8'?>"
            f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message>"
            f"<Details>{escape(self.details or self.message)}</Details></Error>"
        )


def no_bucket() -> Refusal:
    """Return: there is no such bucket."""
    return Refusal(404, "notFound", "The specified bucket does not exist.", code="NoSuchBucket")


def no_object(bucket: str, name: str, generation: int | None = None) -> Refusal:
    """Return: there is no such object, or no such generation of it."""
    suffix = f"#{generation}" if generation is not None else ""
    message = f"No such object: {bucket}/{name}{suffix}"
    return Refusal(404, "notFound", message, code="NoSuchKey")


def no_upload() -> Refusal:
    """Return: there is no such multipart upload (XML)."""
    return Refusal(404, "notFound", "The requested upload was not found.", code="NoSuchUpload")


def precondition_failed() -> Refusal:
    """Return: a precondition does not hold."""
    message = "At least one of the pre-conditions you specified did not hold."
    return Refusal(412, "conditionNotMet", message, location="If-Match")


def not_modified(etag: str = "") -> Refusal:
    """Return: what the client has is still current; it has no body."""
    return Refusal(304, "notModified", "Not Modified", headers={"ETag": etag} if etag else None)


def invalid(message: str, *, location: str = "", code: str = "InvalidArgument") -> Refusal:
    """Return: something in the request can never work."""
    return Refusal(400, "invalid", message, location=location, code=code)


def required(message: str, *, location: str = "") -> Refusal:
    """Return: something that must be in the request is not."""
    return Refusal(400, "required", message, location=location)


def conflict(message: str, *, code: str = "Conflict") -> Refusal:
    """Return: the state of the bucket does not allow it."""
    return Refusal(409, "conflict", message, code=code)


def not_found() -> Refusal:
    """Return: no method of the API has this address."""
    return Refusal(404, "notFound", "Not Found", code="NoSuchKey")


def no_method() -> Refusal:
    """Return: the address is right, the method is not."""
    return Refusal(405, "methodNotAllowed", "The specified method is not allowed against this resource.")


def bad_range(size: int) -> Refusal:
    """Return: no byte of the object lies in the range."""
    return Refusal(
        416,
        "requestedRangeNotSatisfiable",
        "The requested range cannot be satisfied.",
        headers={"Content-Range": f"bytes */{size}"},
    )
