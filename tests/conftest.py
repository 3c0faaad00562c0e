"""Gives Airflow a home of its own in each test process, before anything imports it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

# Never the person's own ~/airflow; and one per process, since tests run side by side.
_HOME = Path(tempfile.mkdtemp(prefix="resume-tests-airflow-"))
os.environ["AIRFLOW_HOME"] = str(_HOME)


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_HOME, ignore_errors=True)
