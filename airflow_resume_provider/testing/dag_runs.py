"""Runs a DAG in this process, with `dag.test()`, and tells what came of it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What makes `dag.test()` quick and quiet; only set where the person has not set it.
_SETTINGS = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    # Airflow 3.2 runs its API in the same process, and that does not begin without one.
    "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
}


def prepare(directory: Path) -> Path:
    """Give Airflow a home and a database, before it is imported for the first time.

    Raises:
        RuntimeError: Airflow has been imported already, and nobody gave it a home.
    """
    home = os.environ.get("AIRFLOW_HOME")
    if home is None:
        if "airflow" in sys.modules:
            raise RuntimeError(
                "Airflow was imported before the resume_dag fixture could give it a temporary home. "
                "Set AIRFLOW_HOME, or import Airflow inside the tests."
            )
        os.environ["AIRFLOW_HOME"] = home = str(directory)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    return Path(home)


@dataclass(frozen=True)
class TaskResult:
    """One task instance after the run."""

    task_id: str
    map_index: int
    state: str
    try_number: int
    xcoms: dict[str, Any]


@dataclass(frozen=True)
class DagRunResult:
    """A run of a DAG.

    Args:
        tasks: every task instance.
    """

    run_id: str
    state: str
    tasks: tuple[TaskResult, ...]

    def task(self, task_id: str, map_index: int = -1) -> TaskResult:
        """One task instance.

        Raises:
            KeyError: there is none.
        """
        for task in self.tasks:
            if (task.task_id, task.map_index) == (task_id, map_index):
                return task
        raise KeyError(f"no task {task_id!r} with map index {map_index} in {self.run_id}")

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """An XCom of a task, None when it was not pushed."""
        return self.task(task_id, map_index).xcoms.get(key)


def run(dag: Any, **options: Any) -> DagRunResult:
    """Run a DAG to its end; `options` are those of `dag.test()`."""
    _make_known(dag)
    finished = dag.test(**options)
    return DagRunResult(finished.run_id, str(finished.state), tuple(_tasks(finished)))


def _make_known(dag: Any) -> None:
    """Put the serialized DAG into the database: `dag.test()` only finds those of the DAGs folder."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    # Its place up to Airflow 3.1 and since.
    since = importlib.util.find_spec("airflow.dag_processing.dagbag")
    dagbag = importlib.import_module(since.name if since else "airflow.models.dagbag")
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    bag = dagbag.DagBag(dag_folder=os.devnull, collect_dags=False)
    bag.bag_dag(dag)
    dagbag.sync_bag_to_db(bag, "dags-folder", None)


def _tasks(finished: Any) -> list[TaskResult]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        instances = (
            session.query(TaskInstance).filter_by(dag_id=finished.dag_id, run_id=finished.run_id).all()
        )
        found = []
        for instance in instances:
            rows = session.query(XComModel).filter_by(
                dag_id=finished.dag_id,
                run_id=finished.run_id,
                task_id=instance.task_id,
                map_index=instance.map_index,
            )
            xcoms = {row.key: XComModel.deserialize_value(row) for row in rows}
            found.append(
                TaskResult(
                    instance.task_id, instance.map_index, str(instance.state), instance.try_number, xcoms
                )
            )
    return found
