"""Long-running operations: what DeleteJob and CancelJob answer with."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import ApiError, not_found
from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.messages import Operation, OperationMetadata, timestamp
from airflow_resume_provider.testing.batch.names import Parent
from airflow_resume_provider.testing.batch.store import Store


def operation_id() -> str:
    """An id in the form of Google's: `operation-<milliseconds>-<hex>-<hex>-<hex>`."""
    random = secrets.token_hex(14)
    return f"operation-{int(time.time() * 1000)}-{random[:13]}-{random[13:21]}-{random[20:28]}"


class Operations:
    """All operations of the server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._all: dict[str, Any] = {operation.name: operation for operation in store.operations()}
        self._done: dict[str, asyncio.Event] = {}

    def begin(self, target: str, verb: str) -> Any:
        """A new operation on a job."""
        parent = target.rpartition("/jobs/")[0]
        operation = Operation(name=f"{parent}/operations/{operation_id()}")
        metadata = OperationMetadata(target=target, verb=verb, api_version="v1")
        metadata.create_time.CopyFrom(timestamp(self._clock.now()))
        operation.metadata.Pack(metadata)
        self._all[operation.name] = operation
        self._store.save_operation(operation)
        return operation

    def finish(self, name: str, response: Any) -> None:
        """Mark an operation as done, with its response."""
        operation = self._all.get(name)
        if operation is None or operation.done:
            return
        operation.done = True
        operation.response.Pack(response)
        self._update_metadata(operation, end_time=timestamp(self._clock.now()))
        self._done.pop(name, asyncio.Event()).set()

    def _update_metadata(self, operation: Any, **fields: Any) -> None:
        metadata = OperationMetadata()
        operation.metadata.Unpack(metadata)
        metadata.MergeFrom(OperationMetadata(**fields))
        operation.metadata.Pack(metadata)
        self._store.save_operation(operation)

    def pending_on(self, target: str, verb: str) -> Any | None:
        """The unfinished operation of that verb on a job, if there is one."""
        metadata = OperationMetadata()
        for operation in self._all.values():
            operation.metadata.Unpack(metadata)
            if not operation.done and (metadata.target, metadata.verb) == (target, verb):
                return operation
        return None

    def pending(self) -> list[tuple[str, str, str]]:
        """Name, target and verb of every unfinished operation."""
        found = []
        for operation in self._all.values():
            metadata = OperationMetadata()
            operation.metadata.Unpack(metadata)
            if not operation.done:
                found.append((operation.name, metadata.target, metadata.verb))
        return found

    def get(self, name: str) -> Any:
        """An operation by its name."""
        if name not in self._all:
            raise not_found(name)
        return self._all[name]

    def under(self, parent: Parent) -> list[Any]:
        """Every operation of a location, by name."""
        return [self._all[name] for name in sorted(self._all) if parent.covers(name)]

    async def wait(self, name: str, timeout: float) -> Any:
        """The operation, once it is done or the time is over."""
        operation = self.get(name)
        if not operation.done:
            event = self._done.setdefault(name, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), timeout)
            except TimeoutError:
                return operation
        return operation

    def cancel(self, name: str) -> None:
        """Note that cancellation was asked for; deleting and cancelling jobs go on regardless."""
        operation = self.get(name)
        if operation.done:
            return
        self._update_metadata(operation, requested_cancellation=True)

    def delete(self, name: str) -> None:
        """Forget a finished operation; what it did is not undone."""
        if not self.get(name).done:
            raise ApiError("FAILED_PRECONDITION", f'Operation "{name}" is not done and cannot be deleted')
        del self._all[name]
        self._store.forget_operation(name)

    def clear(self) -> None:
        """Forget all of them."""
        self._all.clear()
