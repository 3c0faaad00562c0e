"""The runtime's and the trainer's image, built with podman on a machine that reaches no image registry.

::

    python docker/images.py            # builds what is missing or old
    python docker/images.py --check    # says, by its exit code and one line, whether it could

Run it with the project's environment. The base image is made of this machine's own Debian packages,
once, under the name that the Dockerfiles' FROM has; pip is configured during the build, and only then,
as it is on this machine. Where podman cannot do this, one line says why and what to install.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_resume_provider.testing.executors.containers import engine_arguments, run_arguments, why_not

CHECKOUT = Path(__file__).resolve().parents[1]
BASE, SUITE = "docker.io/library/python:3.11-slim-bookworm", "bookworm"
IMAGES = {"runtime": "localhost/resume-runtime:latest", "trainer": "localhost/trainer:latest"}
INSTALL = "as root: apt-get update && apt-get install --no-install-recommends podman runc mmdebstrap"
PACKAGES = "python3,python3-venv,ca-certificates"


class CannotBuild(Exception):
    """Why there can be no images here, and what to do, in one line."""


def podman(*arguments: str, check: bool = True) -> bool:
    """Run podman with what this machine needs; its output is shown only if it fails and must not."""
    command = ["podman", *engine_arguments("podman"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if check and done.returncode:
        print(done.stdout[-8000:], file=sys.stderr)
        raise CannotBuild(f"podman {arguments[0]} fails with exit code {done.returncode}, see above")
    return done.returncode == 0


def check() -> None:
    """Raise when podman cannot run a container here, or nothing is there to make one of."""
    if reason := why_not("podman"):
        raise CannotBuild(f"{reason}; {INSTALL}")
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and not shutil.which("runc"):
        raise CannotBuild(f"cgroups are mixed here, with which podman needs runc; {INSTALL}")
    if not shutil.which("mmdebstrap") and not podman("image", "exists", BASE, check=False):
        raise CannotBuild(f"no image {BASE}: podman pull it where a registry is in reach; else, {INSTALL}")


def make_base() -> None:
    """Make the base image of Debian's packages, unless one of that name is there."""
    if podman("image", "exists", BASE, check=False):
        return
    with tempfile.TemporaryDirectory(prefix="base-image-") as place:
        archive = str(Path(place) / "root.tar")
        link = 'ln -s python3 "$1/usr/bin/python"'
        options = ["--quiet", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={link}"]
        made = subprocess.run(["mmdebstrap", *options, SUITE, archive, *sources()], check=False)
        if made.returncode:
            raise CannotBuild(f"mmdebstrap fails with exit code {made.returncode}, see above")
        podman("import", "--change", "ENV LANG=C.UTF-8", archive, BASE)


def sources() -> list[str]:
    """The files in which this machine's apt is told where the suite's packages are; none: Debian's own."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("debian.*"))]
    return [str(path) for path in places if path.is_file() and re.search(rf"\b{SUITE}\b", path.read_text())]


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine, by files and environment, the environment last."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, str] = {}
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


@contextlib.contextmanager
def as_here() -> Iterator[list[str]]:
    """Mounts with which pip in a build finds and trusts what it does here; no layer keeps any of it."""
    settings = pip_settings()
    words = {word.removeprefix("file://") for value in settings.values() for word in value.split()}
    # An index on disk may name its files relative to the directory above it.
    places = {word.removesuffix("/simple") for word in words if word.startswith("/")} | {"/etc/ssl/certs"}
    with tempfile.TemporaryDirectory(prefix="pip-") as directory:
        file = Path(directory) / "pip.conf"
        lines = [f"{name} = {' '.join(value.split())}" for name, value in settings.items()]
        file.write_text("\n".join(["[global]", *lines, ""]))
        mounts = {place: place for place in sorted(places) if Path(place).exists()} | {
            str(file): "/etc/pip.conf"
        }
        yield [f"--volume={here}:{there}:ro" for here, there in mounts.items()]


def build(name: str, tag: str, mounts: list[str]) -> None:
    """Build one image from this checkout; what has not changed comes from podman's cache."""
    file = str(CHECKOUT / "docker" / name / "Dockerfile")
    limits = [*run_arguments("podman"), "--network=host"]
    options = ["--pull=never", "--isolation=chroot", *limits, *mounts]
    podman("build", *options, "--file", file, "--tag", tag, str(CHECKOUT))


def main() -> int:
    """Build all that is missing or old, and say how long each took."""
    try:
        check()
        if sys.argv[1:] == ["--check"]:
            return 0
        with as_here() as mounts:
            steps = {BASE: make_base} | {
                tag: lambda name=name, tag=tag: build(name, tag, mounts) for name, tag in IMAGES.items()
            }
            for tag, step in steps.items():
                began = time.monotonic()
                step()
                print(f"{tag}: {time.monotonic() - began:.0f} s", flush=True)
    except CannotBuild as error:
        print(f"no containers here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o022)  # what is copied into an image has to be readable by its user
    sys.exit(main())
