"""Gives Airflow a home of its own in each test process, before anything imports it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

# Never the person's own ~/airflow; and one per process, since tests run side by side.
_HOME = Path(tempfile.mkdtemp(prefix="resume-tests-airflow-"))
os.environ["AIRFLOW_HOME"] = str(_HOME)

with suppress(ImportError):  # the frameworks' environment has no property tests
    from hypothesis import HealthCheck, settings

    # The same examples in every run, and no clock: a busy machine is no defect.
    settings.register_profile(
        "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("steady")


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_HOME, ignore_errors=True)
