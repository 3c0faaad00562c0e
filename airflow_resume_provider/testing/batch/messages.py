"""The Batch API's own message classes, in their raw protobuf form, which is what goes over the wire."""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import batch_v1
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

Job: Any = batch_v1.Job.pb()
Task: Any = batch_v1.Task.pb()
TaskGroup: Any = batch_v1.TaskGroup.pb()
Runnable: Any = batch_v1.Runnable.pb()
StatusEvent: Any = batch_v1.StatusEvent.pb()
JobNotification: Any = batch_v1.JobNotification.pb()
CreateJobRequest: Any = batch_v1.CreateJobRequest.pb()
GetJobRequest: Any = batch_v1.GetJobRequest.pb()
DeleteJobRequest: Any = batch_v1.DeleteJobRequest.pb()
CancelJobRequest: Any = batch_v1.CancelJobRequest.pb()
CancelJobResponse: Any = batch_v1.CancelJobResponse.pb()
ListJobsRequest: Any = batch_v1.ListJobsRequest.pb()
ListJobsResponse: Any = batch_v1.ListJobsResponse.pb()
ListTasksRequest: Any = batch_v1.ListTasksRequest.pb()
ListTasksResponse: Any = batch_v1.ListTasksResponse.pb()
GetTaskRequest: Any = batch_v1.GetTaskRequest.pb()
OperationMetadata: Any = batch_v1.OperationMetadata.pb()
Operation: Any = operations_pb2.Operation
Location: Any = locations_pb2.Location

# Typed as Any because the client declares the members of its enums as plain integers.
JobState: Any = batch_v1.JobStatus.State
TaskState: Any = batch_v1.TaskStatus.State
Provisioning: Any = batch_v1.AllocationPolicy.ProvisioningModel
Action: Any = batch_v1.LifecyclePolicy.Action
Scheduling: Any = batch_v1.TaskGroup.SchedulingPolicy
Destination: Any = batch_v1.LogsPolicy.Destination
NotificationType: Any = batch_v1.JobNotification.Type

FINISHED_JOB = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
FINISHED_TASK = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.UNEXECUTED})
GROUP = "group0"


def timestamp(moment: datetime.datetime) -> Timestamp:
    """A protobuf timestamp of an aware datetime."""
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(datetime.UTC).replace(tzinfo=None))
    return stamp


def seconds(duration: Any) -> float:
    """A protobuf duration in seconds."""
    return float(duration.seconds + duration.nanos / 1e9)


def to_dict(message: Any) -> dict[str, Any]:
    """The JSON form of a message, field names in camelCase, as REST shows it."""
    return json_format.MessageToDict(message)
