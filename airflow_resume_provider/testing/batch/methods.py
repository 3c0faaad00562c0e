"""Every method of the API in one table, and the way a call goes through it: faults, method, field mask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from airflow_resume_provider.testing.batch import fieldmask, locations, messages, names
from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid
from airflow_resume_provider.testing.batch.listing import page, page_size_of
from airflow_resume_provider.testing.batch.service import BatchService
from airflow_resume_provider.testing.batch.validation import check_location

BATCH, OPERATIONS, LOCATIONS = (
    "google.cloud.batch.v1.BatchService",
    "google.longrunning.Operations",
    "google.cloud.location.Locations",
)
_MAX_WAIT_SECONDS = 600.0


@dataclass(frozen=True)
class Method:
    """One method: where it is found, what it takes and gives, what it does."""

    service: str
    name: str
    request: Any
    response: Any
    run: Callable[[BatchService, Any], Awaitable[Any]]

    @property
    def path(self) -> str:
        """The path of gRPC."""
        return f"/{self.service}/{self.name}"


async def call(service: BatchService, method: Method, request: Any, mask: str = "") -> Any:
    """Make a call as the cloud's front end would: delays and errors of the plan, then the method itself."""
    injector = service.site.injector
    tree = fieldmask.parse(mask, method.response)
    resource = (
        getattr(request, "name", "") or getattr(request, "job_id", "") or getattr(request, "parent", "")
    )
    delay = injector.delay(method.name)
    if delay:
        await asyncio.sleep(delay)
    service.clock.skew = injector.skew()
    if error := injector.error(method.name, resource, after=False):
        raise error
    answer = await method.run(service, request)
    if error := injector.error(method.name, resource, after=True):
        raise error
    return fieldmask.apply(answer, tree)


def _own(message: Any) -> Any:
    made = message.__class__()
    made.CopyFrom(message)
    return made


async def _get_operation(service: BatchService, request: Any) -> Any:
    return _own(service.operations.get(names.operation(request.name)))


async def _list_operations(service: BatchService, request: Any) -> Any:
    parent = names.parent(request.name, wildcard=True)
    check_location(parent.location, service.site.settings, "name")
    if request.filter not in ("", "done=true", "done=false"):
        raise invalid(f'Invalid list filter "{request.filter}": supported is "done".', "filter")
    found = [
        operation
        for operation in service.operations.under(parent)
        if request.filter in ("", f"done={str(operation.done).lower()}")
    ]
    size = page_size_of(request.page_size, service.site.settings.max_page_size)
    chosen, token = page(found, size, request.page_token, ("operations", request.name, request.filter))
    return operations_pb2.ListOperationsResponse(operations=chosen, next_page_token=token)


async def _wait_operation(service: BatchService, request: Any) -> Any:
    timeout = messages.seconds(request.timeout) or _MAX_WAIT_SECONDS
    return _own(await service.operations.wait(names.operation(request.name), min(timeout, _MAX_WAIT_SECONDS)))


async def _cancel_operation(service: BatchService, request: Any) -> Any:
    service.operations.cancel(names.operation(request.name))
    return empty_pb2.Empty()


async def _delete_operation(service: BatchService, request: Any) -> Any:
    service.operations.delete(names.operation(request.name))
    return empty_pb2.Empty()


async def _get_location(service: BatchService, request: Any) -> Any:
    return locations.get(service.site.settings, names.location(request.name))


async def _list_locations(service: BatchService, request: Any) -> Any:
    found = locations.every(service.site.settings, names.project(request.name))
    size = page_size_of(request.page_size, service.site.settings.max_page_size)
    chosen, token = page(found, size, request.page_token, ("locations", request.name, request.filter))
    return locations_pb2.ListLocationsResponse(locations=chosen, next_page_token=token)


def _methods() -> tuple[Method, ...]:
    m, o, places = messages, operations_pb2, locations_pb2
    empty = empty_pb2.Empty
    return (
        Method(BATCH, "CreateJob", m.CreateJobRequest, m.Job, BatchService.create_job),
        Method(BATCH, "GetJob", m.GetJobRequest, m.Job, BatchService.get_job),
        Method(BATCH, "DeleteJob", m.DeleteJobRequest, m.Operation, BatchService.delete_job),
        Method(BATCH, "CancelJob", m.CancelJobRequest, m.Operation, BatchService.cancel_job),
        Method(BATCH, "ListJobs", m.ListJobsRequest, m.ListJobsResponse, BatchService.list_jobs),
        Method(BATCH, "GetTask", m.GetTaskRequest, m.Task, BatchService.get_task),
        Method(BATCH, "ListTasks", m.ListTasksRequest, m.ListTasksResponse, BatchService.list_tasks),
        Method(OPERATIONS, "GetOperation", o.GetOperationRequest, o.Operation, _get_operation),
        Method(
            OPERATIONS, "ListOperations", o.ListOperationsRequest, o.ListOperationsResponse, _list_operations
        ),
        Method(OPERATIONS, "WaitOperation", o.WaitOperationRequest, o.Operation, _wait_operation),
        Method(OPERATIONS, "CancelOperation", o.CancelOperationRequest, empty, _cancel_operation),
        Method(OPERATIONS, "DeleteOperation", o.DeleteOperationRequest, empty, _delete_operation),
        Method(LOCATIONS, "GetLocation", places.GetLocationRequest, places.Location, _get_location),
        Method(
            LOCATIONS,
            "ListLocations",
            places.ListLocationsRequest,
            places.ListLocationsResponse,
            _list_locations,
        ),
    )


METHODS = _methods()


def by_name(name: str) -> Method:
    """A method by its name."""
    return next(method for method in METHODS if method.name == name)


__all__ = ["METHODS", "ApiError", "Method", "by_name", "call"]
