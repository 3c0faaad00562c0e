"""Errors that the API answers with: one canonical code, one text, optional field violations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

HTTP_STATUS = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: canonical name, for example "NOT_FOUND".
        message: what the client's exception shows.
        field: the request field that is to blame, where there is one.
        http: HTTP status for REST, where it is not the usual one (502).
    """

    code: str
    message: str
    field: str = ""
    http: int = 0

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """The same code as grpc names it."""
        return getattr(grpc.StatusCode, self.code)

    @property
    def http_status(self) -> int:
        """The HTTP status that REST answers with."""
        return self.http or HTTP_STATUS[self.code]

    def status(self) -> status_pb2.Status:
        """The full status, as it travels in `grpc-status-details-bin`."""
        status = status_pb2.Status(code=code_pb2.Code.Value(self.code), message=self.message)
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
            status.details.append(detail)
        return status

    def to_json(self) -> dict[str, Any]:
        """The error body of REST."""
        error: dict[str, Any] = {"code": self.http_status, "message": self.message, "status": self.code}
        if self.field:
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [{"field": self.field, "description": self.message}],
                }
            ]
        return {"error": error}


def invalid(message: str, field: str = "") -> ApiError:
    """INVALID_ARGUMENT."""
    return ApiError("INVALID_ARGUMENT", message, field)


def not_found(name: str) -> ApiError:
    """NOT_FOUND in the words of Google's resource layer."""
    return ApiError("NOT_FOUND", f'Resource "{name}" not found')
