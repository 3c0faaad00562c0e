"""The container side needs neither Airflow nor Batch, and the DAG side pays for no store client."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow" or name.startswith("google.cloud.batch"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
import pkgutil, importlib
import airflow_resume_provider.checkpoints as package
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
for name in package.__all__:
    assert getattr(package, name).__name__ == name, name
import airflow_resume_provider.runtime.store_cli
"""


def test_without_airflow_and_batch() -> None:
    """Every module of checkpoints, every public name and the CLI load where both are blocked."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_naming_things_loads_no_client() -> None:
    """References, records and errors do not load obstore, which DAG parsing would pay for."""
    code = (
        "import sys; from airflow_resume_provider.checkpoints import Reference, Lineage, Choice;"
        "assert 'obstore' not in sys.modules and 'airflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_are_honest() -> None:
    """`__all__` is sorted, complete and loadable."""
    import airflow_resume_provider.checkpoints as package

    assert list(package.__all__) == sorted(package.__all__) == sorted(package._HOME)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
