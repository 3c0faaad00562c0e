"""What is handed out: the wheel, the source archive, and what Airflow and pip see of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCES = ("airflow_resume_provider", "pyproject.toml", "README.md", "LICENSE")


def build(place: Path) -> list[Path]:
    """Build wheel and source archive from a copy of the sources."""
    source = place / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(place / "dist")]
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, cwd=source, env=env, check=True, capture_output=True)
    return sorted((place / "dist").iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(path for path in built if path.suffix == ".whl"))


def metadata(wheel: zipfile.ZipFile) -> dict[str, list[str]]:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    message = Parser().parsestr(wheel.read(name).decode())
    return {key: message.get_all(key, []) for key in set(message.keys())}


def test_two_builds_are_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """Building twice, in other directories and later, gives the same archives."""
    again = build(tmp_path)
    assert [path.name for path in again] == [path.name for path in built]
    for one, two in zip(built, again, strict=True):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(two.read_bytes()).digest()


def test_the_wheel_holds_the_package_and_all_its_data(wheel: zipfile.ZipFile) -> None:
    """Every file of the package is in the wheel, its data too, and nothing else."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = CHECKOUT / "airflow_resume_provider"
    there = {str(path.relative_to(CHECKOUT)) for path in package.rglob("*") if path.is_file()}
    assert names == {name for name in there if "__pycache__" not in name}
    assert "airflow_resume_provider/py.typed" in names
    assert "airflow_resume_provider/testing/demo/report.css" in names


def test_the_source_archive_can_be_built_from(built: list[Path]) -> None:
    """The source archive holds what a build needs."""
    archive = next(path for path in built if path.name.endswith(".tar.gz"))
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "airflow_resume_provider/__init__.py"} <= names


def test_the_container_side_needs_three_libraries(wheel: zipfile.ZipFile) -> None:
    """A plain `pip install` brings obstore, tenacity and crc32c; Airflow is an extra and is never pinned."""
    required = metadata(wheel)["Requires-Dist"]
    plain = {re.split(r"[<>=~!\s]", line)[0] for line in required if "extra ==" not in line}
    assert plain == {"obstore", "tenacity", "crc32c"}
    assert not [line for line in required if re.search(r"==\s*\d|<\s*\d", line.split(";")[0])]


def test_what_airflow_and_the_shell_find() -> None:
    """The provider's entry point and both commands are registered."""
    ours = distribution("airflow-resume-provider").entry_points
    assert {point.group for point in ours} >= {"apache_airflow_provider", "console_scripts", "pytest11"}
    assert {point.name for point in ours if point.group == "console_scripts"} == {
        "resume-run",
        "resume-local",
    }


def test_every_name_in_the_provider_info_can_be_imported() -> None:
    """What the provider tells Airflow exists: modules, links and decorators."""
    from importlib import import_module

    from airflow_resume_provider.get_provider_info import get_provider_info

    info = get_provider_info()
    modules = [
        m
        for part in ("operators", "hooks", "triggers")
        for entry in info[part]
        for m in entry["python-modules"]
    ]
    names = [*info["extra-links"], *(entry["class-name"] for entry in info["task-decorators"])]
    for module in modules:
        import_module(module)
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


def test_constraints_are_plain_pins() -> None:
    """constraints.txt holds `name==version` lines, each name once, in order, and no addresses."""
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[^\s/;@]+", line) for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len(set(names))
    assert lines == sorted(lines)
