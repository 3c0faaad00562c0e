"""Pytest fixtures of the local stack; registered as a plugin, so it imports nothing heavy.

`resume_local`
    A running `LocalStack`; the environment points every client at it. Options
    come from a marker: ``@pytest.mark.resume_local(plan=Plan(...), executor="podman")``.

`resume_dag`
    Runs a DAG against `resume_local` with `dag.test()` and returns its run,
    with the XComs and states of its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_resume_provider.testing.dag_runs import DagRunResult
    from airflow_resume_provider.testing.stack import LocalStack

_MARKER = "resume_local(**options): options of the LocalStack that the resume_local fixture starts"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def resume_local(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalStack]:
    """A running local stack of this test's own, with the environment pointing at it."""
    from airflow_resume_provider.testing.stack import LocalStack

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("resume_local"))):
        options.update(marker.kwargs)
    with LocalStack(tmp_path / "resume-local", **options) as stack:
        for name, value in stack.environment.items():
            monkeypatch.setenv(name, value)
        yield stack


@pytest.fixture(scope="session")
def resume_airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Airflow keeps its database in this session: AIRFLOW_HOME if it is set, else a temporary one."""
    from airflow_resume_provider.testing import dag_runs

    return dag_runs.prepare(tmp_path_factory.mktemp("airflow"))


@pytest.fixture
def resume_dag(resume_local: LocalStack, resume_airflow_home: Path) -> Callable[..., DagRunResult]:
    """A function that runs a DAG against the local stack: `resume_dag(dag, run_after=…, conf=…)`.

    `dag.test()` is faithful for retries, XComs and re-deferral. It has no
    scheduler and no triggerer: `on_kill` is never called and the timeout of
    `defer` is ignored.
    """
    from airflow_resume_provider.testing import dag_runs

    return dag_runs.run
