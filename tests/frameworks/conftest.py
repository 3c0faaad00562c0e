"""These tests run in an environment of their own, without Airflow: `make frameworks`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") and not find_spec("airflow") else ["test_*.py"]
