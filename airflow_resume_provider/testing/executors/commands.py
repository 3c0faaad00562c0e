"""From a runnable's message to a command that can be executed in a local VM, by the `process` executor.

Container images are not pulled: a container's entrypoint and commands run here.
What lies below a mount inside the container lies in the VM's own directory, so
every such path in arguments and environment values is rewritten.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_resume_provider.testing.executors.machines import Command
from airflow_resume_provider.testing.executors.strays import MARK


class CannotRun(Exception):
    """The runnable cannot be started at all; the task fails with `exit_code` and this text in its log."""

    def __init__(self, text: str, exit_code: int = 50000) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Place:
    """Where and as what a runnable runs.

    Args:
        root: the VM's directory on this machine.
        variables: environment below the runnable's own, merged already.
        images: glob on image URI → {path inside the image: directory here}.
    """

    root: Path
    variables: Mapping[str, str]
    log: str
    runnable: int = 0
    attempt: int = 0
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def disk_path(root: Path, host_path: str) -> Path:
    """The directory of the VM's disk that stands for a path of the host; never outside of it."""
    parts = [part for part in PurePosixPath("/", host_path).parts[1:] if part not in ("..", ".")]
    return root.joinpath("disk", *parts)


class Paths:
    """Rewrites paths below mounts; a longer mount path wins over a shorter one."""

    def __init__(self, mounts: Mapping[str, str]) -> None:
        self._mounts = {path.rstrip("/"): str(where) for path, where in mounts.items() if path.strip("/")}
        names = sorted(map(re.escape, self._mounts), key=len, reverse=True)
        # A mount's path counts where a path can begin, and only if it ends there or goes on below.
        self._pattern = re.compile(rf"(?:^|(?<=[\s\"'=:,;(<>]))({'|'.join(names)})(?=$|[/\s\"':,;)<>])")

    def __call__(self, text: str) -> str:
        """The text with every path below a mount rewritten."""
        if not self._mounts:
            return text
        return self._pattern.sub(lambda match: self._mounts[match[1]], text)


def container_mounts(root: Path, container: Any, volumes: Iterable[Any]) -> dict[str, str]:
    """Path in the container → directory here; a container without volumes gets the task's."""
    mounts = {}
    for volume in container.volumes:
        host, _, rest = volume.partition(":")
        mounts[rest.partition(":")[0] or host] = str(disk_path(root, host))
    if not container.volumes:
        mounts = host_mounts(root, volumes)
    return mounts


def host_mounts(root: Path, volumes: Iterable[Any], runnables: Iterable[Any] = ()) -> dict[str, str]:
    """Path on the host → directory here, for everything that the task mounts."""
    paths = [volume.mount_path for volume in volumes]
    paths += [bind.partition(":")[0] for item in runnables for bind in item.container.volumes]
    return {path: str(disk_path(root, path)) for path in paths}


def base_environment(root: Path) -> dict[str, str]:
    """What a fresh machine's environment holds; nothing of this process's own but its PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    home, temporary = root / "home", root / "tmp"
    return {
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "USER": "root",
        MARK: str(root),
    }


def script_command(runnable: Any, place: Place, mounts: Mapping[str, str]) -> Command:
    """A script runs by its own shebang line, else by /bin/sh, in a process group."""
    rewrite = Paths(mounts)
    script = runnable.script
    if script.text:
        file = place.root / "scripts" / f"runnable-{place.runnable}-{place.attempt}-{os.urandom(4).hex()}"
        file.write_text(rewrite(script.text))
        file.chmod(0o700)
    else:
        file = Path(rewrite(script.path))
        if not file.is_file():
            raise CannotRun(f"script {script.path} is not there", 127)
    with file.open("rb") as opened:
        shebang = opened.read(2) == b"#!"
    argv = [str(file)] if shebang else ["/bin/sh", str(file)]
    return _command(argv, place, rewrite, str(place.root / "home"), container=False)


def container_command(runnable: Any, place: Place, mounts: Mapping[str, str]) -> Command:
    """A container's entrypoint and commands, run locally."""
    container = runnable.container
    inside = dict(mounts)
    work = Path.cwd()
    for pattern, directories in place.images.items():
        if fnmatch.fnmatch(container.image_uri, pattern):
            here = {name: str(Path(directory).absolute()) for name, directory in directories.items()}
            inside.update(here)
            work = Path(next(iter(here.values()), work))
            break
    rewrite = Paths(inside)
    argv = ([container.entrypoint] if container.entrypoint else []) + list(container.commands)
    if not argv:
        raise CannotRun(
            "neither entrypoint nor commands are given, and the image's own are not known here", 127
        )
    variables, directory = _options(container.options)
    place = Place(**{**place.__dict__, "variables": {**place.variables, **variables}})
    where = rewrite(directory) if directory else str(work)
    return _command([rewrite(part) for part in argv], place, rewrite, where, container=True)


def _options(text: str) -> tuple[dict[str, str], str]:
    """Variables and working directory from `docker run` options; the others mean nothing to a process."""
    variables, directory = {}, ""
    words = iter(shlex.split(text))
    for word in words:
        name, joined, value = word.partition("=")
        if name not in ("-e", "--env", "-w", "--workdir"):
            continue
        value = value if joined else next(words, "")
        if name in ("-e", "--env"):
            key, _, content = value.partition("=")
            variables[key] = content
        else:
            directory = value
    return variables, directory


def _command(argv: list[str], place: Place, rewrite: Paths, cwd: str, *, container: bool) -> Command:
    env = base_environment(place.root) | {name: rewrite(value) for name, value in place.variables.items()}
    return Command(argv, env, cwd, place.log, container, place.runnable, place.attempt)
