"""Hooks for Google Cloud Batch that know emulators, passing errors and our jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_resume_provider.attempts import identity
from airflow_resume_provider.attempts.observation import JobSeen
from airflow_resume_provider.batch import clients, events
from airflow_resume_provider.batch.retrying import API_BUDGET, CALL_TIMEOUT, repeated
from airflow_resume_provider.errors import BatchUnavailable, JobNotOurs

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.batch_v1 import BatchServiceAsyncClient, BatchServiceClient, Job

    from airflow_resume_provider.checkpoints import StoreOptions

TASK_GROUP = "group0"
READABLE_WITHIN = 20.0  # seconds after which a job that Create knows is believed without having been read


class ResumableBatchHook(BaseHook):
    """
    Submits, reads and cancels attempts' jobs.

    Takes every Google Cloud connection that the Google provider's own hooks take, and honours
    ``BATCH_EMULATOR_HOST`` and the connection extra ``batch_endpoint``.

    :param gcp_conn_id: the Google Cloud connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param api_budget: seconds that one call may be repeated in while its errors are passing ones.
    """

    def __init__(
        self,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        *,
        api_budget: float = API_BUDGET,
    ) -> None:
        super().__init__()
        self.gcp_conn_id, self.impersonation_chain = gcp_conn_id, impersonation_chain
        self.api_budget = api_budget
        self._connection = self.get_connection(gcp_conn_id)
        self.extras: dict[str, Any] = self._connection.extra_dejson

    @cached_property
    def endpoint(self) -> clients.Endpoint:
        """Where the API is."""
        return clients.endpoint(self.extras)

    def get_conn(self) -> BatchServiceClient:
        """Return the client; made once."""
        return self._client

    @cached_property
    def _client(self) -> BatchServiceClient:
        credentials = None if self.endpoint.emulated else self.get_credentials()
        return clients.client(credentials, self.endpoint)

    def get_credentials(self) -> Credentials:
        """Return the connection's credentials; made once."""
        return self._credentials

    @cached_property
    def _credentials(self) -> Credentials:
        from airflow_resume_provider.hooks.credentials import credentials

        return credentials(self._connection, self.impersonation_chain)

    def _call(self, method: str, request: dict[str, Any], budget: float | None = None) -> Any:
        call = getattr(self.get_conn(), method)
        budget = self.api_budget if budget is None else budget
        return repeated(lambda: call(request=request, timeout=CALL_TIMEOUT), budget=budget)

    def submit(self, job: Job, parent: str, job_id: str) -> tuple[Job, bool]:
        """
        Create the job, or adopt it when it is there and ours.

        :return: the job, and whether it was adopted.
        :raises JobNotOurs: the name is taken by somebody else's job.
        """
        from google.api_core.exceptions import Conflict

        name = f"{parent}/jobs/{job_id}"
        request = {
            "parent": parent,
            "job_id": job_id,
            "job": job,
            "request_id": identity.request_id(name),
        }
        try:
            made = self._ours(self._call("create_job", request), job)
            # A repeated request is answered for an hour with what it made before, whatever became of that.
            return made, events.job_seen(made).over
        except Conflict as conflict:  # over REST, AlreadyExists is no more than that
            return self._taken(name, job, conflict), True

    def _taken(self, name: str, wanted: Job, conflict: Exception) -> Job:
        """Return the job that has the name; Get may learn of a new one later than Create."""
        from google.api_core.exceptions import Aborted, NotFound

        try:
            found = repeated(
                lambda: self._call("get_job", {"name": name}),
                budget=READABLE_WITHIN,
                passes=lambda error: isinstance(error, NotFound),
            )
        except NotFound:
            if isinstance(conflict, Aborted):
                raise conflict from None
            # The name holds a digest of the training; whoever watches it sees what becomes of it.
            wanted.name = name
            return wanted
        return self._ours(found, wanted)

    def _ours(self, found: Job, wanted: Job) -> Job:
        """Return what was found under the name, when it is the same attempt of the same training."""
        for label in ("resume_training", "resume_attempt"):
            # A server that returns no labels is believed: the name holds a digest of the training.
            if found.labels.get(label, wanted.labels[label]) != wanted.labels[label]:
                raise JobNotOurs(
                    f"{found.name} exists and is not an attempt of this training.",
                    did="Nothing was submitted.",
                    can="Delete that job, or change the dag_id, the task_id or the checkpoint root.",
                    job_name=str(found.name),
                )
        return found

    def look(self, name: str, *, with_tasks: bool = False) -> JobSeen | None:
        """Return the job as it is now, `None` when the API does not know it."""
        from google.api_core.exceptions import NotFound

        try:
            job = self._call("get_job", {"name": name})
            tasks = self._tasks(name) if with_tasks else ()
        except NotFound:
            return None
        return events.job_seen(job, tasks)

    def _tasks(self, name: str) -> list[Any]:
        """The tasks, whose events carry exit codes; without them the job's own events must do."""
        from google.api_core.exceptions import ClientError, MethodNotImplemented

        try:
            return list(self._call("list_tasks", {"parent": f"{name}/taskGroups/{TASK_GROUP}"}))
        except (ClientError, MethodNotImplemented) as error:
            self.log.info("The tasks of %s could not be read: %r", name, error)
            return []

    def cancel(self, name: str, *, budget: float | None = None) -> bool | None:
        """
        Cancel the job; it keeps its record, which deleting would lose.

        :param budget: seconds that it may take while errors are passing ones; the hook's own by default.
        :return: False when it is over or being ended already, `None` when there is no such job.
        """
        from google.api_core.exceptions import BadRequest, Conflict, NotFound

        try:
            request = {"name": name, "request_id": identity.request_id(f"cancel {name}")}
            self._call("cancel_job", request, budget)
        except NotFound:
            return None
        except (BadRequest, Conflict):  # over REST a failed precondition is no more than that
            return False
        return True

    def store_options(self) -> StoreOptions | None:
        """Return how to reach the store of checkpoints with this connection's credentials."""
        from airflow_resume_provider.hooks.credentials import store_options

        return store_options(self)


class ResumableBatchAsyncHook(BaseHook):
    """
    Makes clients for the triggerer's loop; nothing of it blocks the loop.

    :param gcp_conn_id: the Google Cloud connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    """

    def __init__(
        self,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._account = gcp_conn_id, impersonation_chain
        self._sync_hook: ResumableBatchHook | None = None

    async def get_sync_hook(self) -> ResumableBatchHook:
        """Return the hook whose methods block; made once."""
        if self._sync_hook is None:
            # In a thread: it fetches the connection.
            self._sync_hook = await sync_to_async(ResumableBatchHook)(*self._account)
        return self._sync_hook

    async def get_async_client(self) -> BatchServiceAsyncClient | None:
        """Return a client of the running loop, `None` where the server speaks REST only."""
        import asyncio

        hook = await self.get_sync_hook()
        where = await asyncio.to_thread(lambda: hook.endpoint)
        credentials = None if where.emulated else await asyncio.to_thread(hook.get_credentials)
        if where.emulated:
            await asyncio.to_thread(clients.probe, where)
        return clients.async_client(credentials, where)


def unavailable(error: Exception, doing: str) -> BatchUnavailable:
    """Return the error that says in words what could not be done."""
    return BatchUnavailable(
        f"{doing} failed: {type(error).__name__}: {str(error)[:500]}",
        did="It was repeated within its budget.",
        can="The next try adopts what is running.",
        cause=str(error)[:500],
    )
