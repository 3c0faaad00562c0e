"""Every method of the API, through unmodified clients over gRPC, asyncio gRPC and REST."""

from __future__ import annotations

import uuid

import pytest
from google.api_core import exceptions
from stack_clients import PARENT, Client, State, TaskState, descriptions, job_of, name_of, script, until

from airflow_resume_provider.testing import LocalStack

HOLD = script("exec sleep 60")


def test_a_job_goes_from_queued_to_succeeded(any_client: Client) -> None:
    """CreateJob answers QUEUED with the server's fields; the job then runs to SUCCEEDED."""
    made = any_client.submit(job_of(script("echo hi")))
    assert made.status.state == State.QUEUED
    assert made.name == name_of("job-1")
    assert made.uid.startswith("job-1-")
    done = any_client.wait("job-1")
    assert done.status.state == State.SUCCEEDED
    assert done.status.task_groups["group0"].counts == {"SUCCEEDED": 1}
    assert done.uid == made.uid
    assert done.update_time > done.create_time


def test_the_events_tell_each_step_in_the_clouds_words(any_client: Client) -> None:
    """Each state change is one STATUS_CHANGED event, in order of time."""
    job = any_client.run(job_of(script("true")))
    assert descriptions(job) == [
        f"Job state is set from QUEUED to SCHEDULED for job {job.name}.",
        f"Job state is set from SCHEDULED to RUNNING for job {job.name}.",
        f"Job state is set from RUNNING to SUCCEEDED for job {job.name}.",
    ]
    events = job.status.status_events
    assert {event.type_ for event in events} == {"STATUS_CHANGED"}
    times = [event.event_time for event in events]
    assert times == sorted(times)


def test_a_failed_job_quotes_its_tasks_event(any_client: Client) -> None:
    """The job's last event names the task, quotes the task's event and ends with the exit code."""
    job = any_client.run(job_of(script("exit 7")))
    [task] = any_client.tasks()
    last = task.status.status_events[-1]
    assert job.status.state == State.FAILED
    assert last.task_execution.exit_code == 7
    assert last.task_state == TaskState.FAILED
    assert last.description.endswith("with exit code 7.")
    assert descriptions(job)[-1] == (
        f"Job state is set from RUNNING to FAILED for job {job.name}.Job failed due to task failure. "
        f'Specifically, task with index 0 failed due to the following task event: "{last.description}"'
    )


def test_tasks_are_named_below_group0_and_can_be_read_one_by_one(any_client: Client) -> None:
    """ListTasks gives every task by index, GetTask the same message."""
    any_client.run(job_of(script("true"), task_count=3))
    tasks = any_client.tasks()
    assert [task.name for task in tasks] == [
        f"{name_of('job-1')}/taskGroups/group0/tasks/{n}" for n in range(3)
    ]
    assert any_client.get_task(name=tasks[2].name) == tasks[2]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("get_job", {"name": name_of("none")}),
        ("cancel_job", {"name": name_of("none")}),
        ("delete_job", {"name": name_of("none")}),
        ("list_tasks", {"parent": f"{name_of('none')}/taskGroups/group0"}),
        ("get_task", {"name": f"{name_of('none')}/taskGroups/group0/tasks/0"}),
        ("get_operation", {"name": f"{PARENT}/operations/none"}),
    ],
)
def test_what_is_not_there_is_not_found(any_client: Client, method: str, request_: dict[str, str]) -> None:
    """Reading, cancelling and deleting something unknown is NOT_FOUND."""
    if any_client.transport == "rest" and method == "get_operation":
        with pytest.raises(Exception, match=r"404|not found|Not Found"):
            any_client.raw.get_operation(request=request_)
        return
    with pytest.raises(exceptions.NotFound, match="not found"):
        any_client.__getattr__(method)(**request_)


def test_tasks_of_other_groups_and_indices_are_not_found(any_client: Client) -> None:
    """There is one task group, group0, and only the tasks of its count."""
    any_client.run(job_of(script("true")))
    for name in ("taskGroups/group0/tasks/1", "taskGroups/group1/tasks/0", "taskGroups/group0/tasks/x"):
        with pytest.raises(exceptions.NotFound):
            any_client.get_task(name=f"{name_of('job-1')}/{name}")


def test_a_second_job_of_the_same_id_already_exists(any_client: Client) -> None:
    """CreateJob with a taken id is ALREADY_EXISTS in the cloud's words, and the first job goes on."""
    first = any_client.submit(job_of(HOLD))
    with pytest.raises(exceptions.Conflict) as caught:
        any_client.submit(job_of(script("true")))
    assert f'Resource "{first.name}" already exists' in str(caught.value)
    assert any_client.get_job(name=first.name).uid == first.uid


def test_a_repeated_request_id_creates_one_job(any_client: Client, stack: LocalStack) -> None:
    """The same request id twice gives the same job, also when no job id was given."""
    request_id = str(uuid.uuid4())
    job = job_of(script("true"))
    made = [any_client.create_job(parent=PARENT, job=job, request_id=request_id) for _ in range(3)]
    assert len({job.uid for job in made}) == len(stack.jobs()) == 1


@pytest.mark.parametrize("request_id", ["x", str(uuid.UUID(int=0)), "0" * 32])
def test_a_request_id_that_is_no_uuid_is_refused(any_client: Client, request_id: str) -> None:
    """A request id must be a UUID and not the zero one."""
    with pytest.raises(exceptions.BadRequest, match="request_id"):
        any_client.submit(job_of(script("true")), request_id=request_id)


def test_a_job_without_id_gets_one(any_client: Client) -> None:
    """The system generates an id when none is given."""
    first = any_client.create_job(parent=PARENT, job=job_of(script("true")))
    second = any_client.create_job(parent=PARENT, job=job_of(script("true")))
    assert first.name != second.name
    assert any_client.get_job(name=first.name).uid == first.uid


def test_output_only_fields_of_a_request_are_ignored(any_client: Client) -> None:
    """Name, uid, status and times come from the server, whatever a request says."""
    job = job_of(script("true"))
    job.name, job.uid, job.status.state = "projects/x/locations/y/jobs/z", "mine", "FAILED"
    made = any_client.submit(job)
    assert (made.name, made.status.state) == (name_of("job-1"), State.QUEUED)
    assert made.uid != "mine"


def test_cancelling_keeps_the_record(any_client: Client) -> None:
    """CancelJob passes through CANCELLATION_IN_PROGRESS to CANCELLED and the job can still be read."""
    any_client.submit(job_of(HOLD))
    any_client.wait("job-1", "RUNNING")
    operation = any_client.begin("cancel_job", name=name_of("job-1"))
    assert not operation.done
    assert any_client.get_job(name=name_of("job-1")).status.state == State.CANCELLATION_IN_PROGRESS
    job = any_client.wait("job-1")
    assert descriptions(job)[-2:] == [
        f"Job state is set from RUNNING to CANCELLATION_IN_PROGRESS for job {job.name}.",
        f"Job state is set from CANCELLATION_IN_PROGRESS to CANCELLED for job {job.name}.",
    ]


def test_a_second_cancel_fails_while_the_first_is_under_way(any_client: Client) -> None:
    """During CANCELLATION_IN_PROGRESS and after the end, CancelJob is FAILED_PRECONDITION."""
    any_client.submit(job_of(HOLD))
    any_client.wait("job-1", "RUNNING")
    any_client.begin("cancel_job", name=name_of("job-1"))
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        any_client.begin("cancel_job", name=name_of("job-1"))
    assert "CANCELLATION_IN_PROGRESS" in str(caught.value)
    any_client.wait("job-1", "CANCELLED")
    with pytest.raises(exceptions.GoogleAPICallError, match="CANCELLED"):
        any_client.begin("cancel_job", name=name_of("job-1"))


def test_a_repeated_cancel_with_the_same_request_id_is_one_cancel(any_client: Client) -> None:
    """The same request id gives the same operation, in whatever state the job is by then."""
    any_client.submit(job_of(HOLD))
    request_id = str(uuid.uuid4())
    names = {
        any_client.begin("cancel_job", name=name_of("job-1"), request_id=request_id).name for _ in range(2)
    }
    any_client.wait("job-1", "CANCELLED")
    names.add(any_client.begin("cancel_job", name=name_of("job-1"), request_id=request_id).name)
    assert len(names) == 1


def test_deleting_loses_the_record(any_client: Client) -> None:
    """DeleteJob passes through DELETION_IN_PROGRESS; afterwards nothing is left but the operation."""
    any_client.submit(job_of(HOLD))
    any_client.wait("job-1", "RUNNING")
    operation = any_client.begin("delete_job", name=name_of("job-1"))
    assert any_client.get_job(name=name_of("job-1")).status.state == State.DELETION_IN_PROGRESS
    until(lambda: any_client.get_operation(name=operation.name).done, "the deletion to be done")
    with pytest.raises(exceptions.NotFound):
        any_client.get_job(name=name_of("job-1"))
    assert any_client.list_jobs(parent=PARENT) == []


def test_a_job_id_is_free_again_after_deletion(any_client: Client) -> None:
    """While a job is being deleted its id is taken; then a new job with another uid can have it."""
    first = any_client.submit(job_of(HOLD))
    operation = any_client.begin("delete_job", name=first.name)
    with pytest.raises(exceptions.Conflict):
        any_client.submit(job_of(HOLD))
    until(lambda: any_client.get_operation(name=operation.name).done, "the deletion to be done")
    assert any_client.submit(job_of(HOLD)).uid != first.uid


def test_an_operation_says_what_it_is_about(any_client: Client) -> None:
    """The metadata of an operation holds target, verb, API version and both times."""
    from google.cloud.batch_v1 import OperationMetadata

    any_client.run(job_of(script("true")))
    operation = any_client.begin("delete_job", name=name_of("job-1"))
    done = until(
        lambda: (found := any_client.get_operation(name=operation.name)).done and found,
        "the deletion to be done",
    )
    metadata = OperationMetadata.deserialize(done.metadata.value)
    assert (metadata.target, metadata.verb, metadata.api_version) == (name_of("job-1"), "delete", "v1")
    assert metadata.end_time >= metadata.create_time
    assert done.response.type_url == "type.googleapis.com/google.protobuf.Empty"


def test_operations_are_listed_and_deleted(any_client: Client) -> None:
    """ListOperations shows a location's operations; a finished one can be deleted."""
    any_client.run(job_of(script("true")))
    operation = any_client.begin("delete_job", name=name_of("job-1"))
    until(lambda: any_client.get_operation(name=operation.name).done, "the deletion to be done")
    listed = any_client.list_operations(name=PARENT)
    assert [found.name for found in listed.operations] == [operation.name]
    any_client.delete_operation(name=operation.name)
    assert list(any_client.list_operations(name=PARENT).operations) == []


def test_cancelling_an_operation_is_noted_and_stops_nothing(any_client: Client) -> None:
    """CancelOperation sets requested_cancellation; the deletion goes on."""
    any_client.submit(job_of(HOLD))
    operation = any_client.begin("delete_job", name=name_of("job-1"))
    any_client.cancel_operation(name=operation.name)
    until(lambda: any_client.get_operation(name=operation.name).done, "the deletion to be done")
    with pytest.raises(exceptions.NotFound):
        any_client.get_job(name=name_of("job-1"))


def test_locations_are_listed_and_read(any_client: Client) -> None:
    """ListLocations gives regions; GetLocation the one that is asked for; an unknown one is not found."""
    found = any_client.list_locations(name="projects/local-project").locations
    assert f"{PARENT}" in [location.name for location in found]
    assert any_client.get_location(name=PARENT).location_id == "us-central1"
    with pytest.raises(Exception, match=r"404|not found"):
        any_client.get_location(name="projects/local-project/locations/mars-north1")


def test_the_run_duration_grows_and_then_stays(any_client: Client) -> None:
    """run_duration counts while RUNNING and is fixed afterwards."""
    any_client.submit(job_of(script("while [ ! -e $HOME/go ]; do sleep 0.02; done & sleep 0.4")))
    any_client.wait("job-1", "RUNNING")
    first = any_client.get_job(name=name_of("job-1")).status.run_duration
    done = any_client.wait("job-1")
    assert done.status.run_duration > first
    assert any_client.get_job(name=name_of("job-1")).status.run_duration == done.status.run_duration
