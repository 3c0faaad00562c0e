"""The API over HTTP with JSON bodies, as `transport="rest"` and plain HTTP clients use it."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from google.protobuf import json_format

from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid
from airflow_resume_provider.testing.batch.methods import Method, by_name, call
from airflow_resume_provider.testing.batch.rest_json import read_body, read_query
from airflow_resume_provider.testing.batch.service import BatchService

_MAX_BODY = 10 * 1024 * 1024
# HTTP method, path, method name, name of the field that is the body ("*": the whole request), path's field.
_ROUTES = (
    ("POST", r"v1/(?P<parent>projects/[^/]+/locations/[^/]+)/jobs", "CreateJob", "job"),
    ("GET", r"v1/(?P<parent>projects/[^/]+/locations/[^/]+)/jobs", "ListJobs", ""),
    ("POST", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/jobs/[^/:]+):cancel", "CancelJob", "*"),
    ("GET", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/jobs/[^/]+)", "GetJob", ""),
    ("DELETE", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/jobs/[^/]+)", "DeleteJob", ""),
    (
        "GET",
        r"v1/(?P<parent>projects/[^/]+/locations/[^/]+/jobs/[^/]+/taskGroups/[^/]+)/tasks",
        "ListTasks",
        "",
    ),
    (
        "GET",
        r"v1/(?P<name>projects/[^/]+/locations/[^/]+/jobs/[^/]+/taskGroups/[^/]+/tasks/[^/]+)",
        "GetTask",
        "",
    ),
    ("GET", r"v1/(?P<name>projects/[^/]+/locations/[^/]+)/operations", "ListOperations", ""),
    ("GET", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/operations/[^/:]+)", "GetOperation", ""),
    ("DELETE", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/operations/[^/]+)", "DeleteOperation", ""),
    ("POST", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/operations/[^/:]+):cancel", "CancelOperation", "*"),
    ("POST", r"v1/(?P<name>projects/[^/]+/locations/[^/]+/operations/[^/:]+):wait", "WaitOperation", "*"),
    ("GET", r"v1/(?P<name>projects/[^/]+)/locations", "ListLocations", ""),
    ("GET", r"v1/(?P<name>projects/[^/]+/locations/[^/]+)", "GetLocation", ""),
)
_COMPILED = [(verb, re.compile("/" + path), by_name(name), body) for verb, path, name, body in _ROUTES]
_SYSTEM = {
    "alt",
    "fields",
    "key",
    "prettyPrint",
    "quotaUser",
    "access_token",
    "callback",
    "oauth_token",
    "uploadType",
}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def rest_handler(service: BatchService) -> Handler:
    """A handler of everything that the API may be asked, and of what nobody knows."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        as_integers = "enum-encoding=int" in request.query.get("$alt", "")
        try:
            method, message = await _decode(request)
            mask = request.headers.get("X-Goog-FieldMask", "") or request.query.get("fields", "")
            mask = mask or request.query.get("$fields", "")
            answer = await call(service, method, message, mask)
        except ApiError as error:
            return _error(error)
        except Exception:
            # Clients read JSON whatever happens, as they get it from the cloud.
            logging.getLogger(__name__).exception("%s %s", request.method, request.path)
            return _error(ApiError("INTERNAL", "Internal error encountered."))
        text = json_format.MessageToJson(answer, use_integers_for_enums=as_integers, descriptor_pool=None)
        return web.Response(text=text + "\n", content_type="application/json")

    return handle


def _error(error: ApiError) -> web.Response:
    if error.http == 502:
        # What a proxy in front of the API answers with has no JSON in it.
        text = "<!DOCTYPE html><title>Error 502 (Server Error)</title><p><b>502.</b> That’s an error."
        return web.Response(status=502, text=text, content_type="text/html")
    return web.json_response(error.to_json(), status=error.http_status)


async def _decode(request: web.BaseRequest) -> tuple[Method, Any]:
    path = unquote(request.path)
    found = [
        (verb, match, method, body)
        for verb, pattern, method, body in _COMPILED
        if (match := pattern.fullmatch(path))
    ]
    for verb, match, method, body in found:
        if verb == request.method:
            message = method.request()
            await _read_body(request, message, body)
            query = {key: value for key, value in request.query.items() if key not in _SYSTEM}
            read_query({key: value for key, value in query.items() if key[:1] != "$"}, message)
            for field, value in match.groupdict().items():
                setattr(message, field, value)
            return method, message
    raise ApiError(
        "NOT_FOUND" if not found else "UNIMPLEMENTED", f"Method not found: {request.method} {path}", http=404
    )


async def _read_body(request: web.BaseRequest, message: Any, field: str) -> None:
    # The API judges the size of a job itself; beyond this nothing is worth reading.
    content = await request.content.read(_MAX_BODY) if request.body_exists else b""
    while request.body_exists and len(content) < _MAX_BODY and not request.content.at_eof():
        content += await request.content.read(_MAX_BODY - len(content))
    if len(content) >= _MAX_BODY:
        raise invalid(f"Request payload size exceeds the limit: {_MAX_BODY} bytes.")
    if not field:
        return
    target = message if field == "*" else getattr(message, field)
    if field == "job":
        target.SetInParent()
    if content.strip():
        read_body(content, target, "" if field == "*" else field)
