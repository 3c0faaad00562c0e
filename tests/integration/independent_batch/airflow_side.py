"""Airflow as the operator meets it, without its servers: tries, XComs, deferral, and one triggerer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_resume_provider.operators.train import ResumableTrainOperator


class Triggerer:
    """One event loop for all triggers, as in Airflow's triggerer."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Triggerer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def event_of(self, trigger: Any, timeout: float) -> dict[str, Any]:
        """Run a trigger, rebuilt from what Airflow would have stored of it, to its event."""
        path, arguments = trigger.serialize()
        module, _, name = path.rpartition(".")
        rebuilt = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
        running = asyncio.run_coroutine_threadsafe(_first(rebuilt), self._loop)
        try:
            return dict(json.loads(json.dumps(running.result(timeout))))
        except TimeoutError:
            running.cancel()
            raise


async def _first(trigger: Any) -> Any:
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    return events[0]


@dataclass
class TaskInstance:
    """What the operator uses of one."""

    dag_id: str
    task_id: str
    run_id: str = "manual__2026-11-30T10:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 3
    xcoms: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """It changes with each try."""
        return f"{self.task_id}-{self.try_number}"

    def xcom_push(self, key: str, value: Any) -> None:
        """What is not JSON would be refused by Airflow, too."""
        self.xcoms[key] = json.loads(json.dumps(value))

    def xcom_pull(self, task_ids: Any = None, key: str = "", map_indexes: Any = None) -> Any:
        """Read one of its own."""
        return self.xcoms.get(key)


@dataclass
class Task:
    """One task of one run, from its first try to its end; `ended` is success or failed."""

    operator: ResumableTrainOperator
    triggerer: Triggerer
    ti: TaskInstance
    result: Any = None
    errors: list[str] = field(default_factory=list)

    def run(self, interrupted: Callable[[Task], str], timeout: float = 40.0) -> str:
        """Run until Airflow would call it success or failed.

        `interrupted` is asked after each deferral: "" waits for the trigger,
        "retry" gives the try up as the scheduler sometimes does, "clear" is a person.
        """
        event: dict[str, Any] | None = None
        while True:
            try:
                self.result = self._leg(event)
                return "success"
            except TaskDeferred as deferred:
                word = interrupted(self)
                event = None if word else self.triggerer.event_of(deferred.trigger, timeout)
                if word:
                    self._next_try(cleared=word == "clear")
            except AirflowFailException as error:
                self.errors.append(str(error))
                return "failed"
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                if self.ti.try_number > self.ti.max_tries:
                    return "failed"
                event = None
                self._next_try()

    def _leg(self, event: dict[str, Any] | None) -> Any:
        run = SimpleNamespace(run_after=datetime(2026, 11, 30, tzinfo=UTC))
        context = {"ti": self.ti, "dag_run": run, "task": self.operator}
        if event is None:
            return self.operator.execute(context)
        return self.operator.execute_complete(context, event)

    def _next_try(self, *, cleared: bool = False) -> None:
        self.ti.try_number += 1
        self.ti.xcoms.clear()
        if cleared:
            self.ti.max_tries += 1
