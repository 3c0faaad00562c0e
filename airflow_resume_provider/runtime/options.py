"""The options of `resume-run`: each a flag and an environment variable."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.nodes import Node

#: Small files at the top of RESUME_DIR that travel with each checkpoint unless told otherwise.
#: Not *.yaml: LightningCLI refuses to start where its config.yaml lies already.
CARRIED = ("*.log", "*.jsonl", "*.csv", "*.tsv", "*.json", "*.txt")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What one run of the runtime was asked to do; see `env.py` for each one's meaning."""

    lineage: str
    attempt: int
    directory: Path
    format: str = "auto"
    offered: str = ""
    explicit: bool = False
    training_id: str = ""
    finished_when: str = ""
    stop_signal: int = signal.SIGTERM
    grace: float = 25.0
    strict: bool = False
    elastic: bool = False
    spec_digest: str = ""
    keep_last: int = 0
    job_name: str = ""
    state_dir: Path = Path()
    carry: tuple[str, ...] = CARRIED
    settings: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 0
    shared_dir: bool = False
    lazy: bool = False
    poll: float = 0.5
    nice: int = 19
    bandwidth: int = 0
    command: tuple[str, ...] = ()
    node: Node = field(default_factory=Node)

    @property
    def leads(self) -> bool:
        """Whether this process chooses, commits and keeps the records; one per training does."""
        return self.node.index == 0 and self.node.local_rank == 0

    @property
    def sees_the_leaders_files(self) -> bool:
        """Whether a process that does not lead shares a disk with the one that does."""
        return self.shared_dir or self.node.local_rank > 0

    @property
    def gathers(self) -> bool:
        """Whether a checkpoint is made of several nodes' files."""
        return self.node.count > 1 and not self.shared_dir

    @property
    def window(self) -> float:
        """Seconds after a notice in which an upload may still be begun: the grace and a little more."""
        return self.grace + 5

    @property
    def processes(self) -> int:
        """The number of training processes, as far as anybody has said."""
        return self.world_size or self.node.count

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form in which one part of the sidecar tells the next."""
        own = asdict(self)
        return {**own, "directory": str(self.directory), "state_dir": str(self.state_dir)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form."""
        paths = {name: Path(data[name]) for name in ("directory", "state_dir")}
        rows = {name: tuple(data[name]) for name in ("carry", "command")}
        return cls(**{**data, **paths, **rows, "node": Node(**data["node"])})


class Option(NamedTuple):
    """One row of the table below."""

    flag: str
    field: str
    variable: str
    read: Callable[[str], Any]
    help: str


def flag(text: str) -> bool:
    """Read yes or no; raises `argparse.ArgumentTypeError` for what is neither."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return number


def _natural(text: str) -> int:
    if (number := int(text or 0)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return number


def _seconds(text: str) -> float:
    if not 0 <= (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def signal_number(text: str) -> signal.Signals:
    """Read `TERM`, `SIGTERM` or `15`."""
    if text.isdigit():
        return signal.Signals(int(text))
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals[name]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is no signal") from None


def _settings(text: str) -> Mapping[str, Any]:
    value = json.loads(text or "{}")
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _globs(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


TABLE: Sequence[Option] = (
    Option("--lineage", "lineage", env.LINEAGE, str, "URI of the lineage directory, gs:// or file://"),
    Option("--attempt", "attempt", env.ATTEMPT, _positive, "number of this attempt, 1, 2, 3 …"),
    Option("--dir", "directory", env.DIR, Path, "where checkpoints are restored to and written"),
    Option("--format", "format", env.FORMAT, str, "checkpoint format on disk (auto)"),
    Option(
        "--from",
        "offered",
        env.FROM,
        str,
        "checkpoint to start from when the lineage has none; its own come first",
    ),
    Option(
        "--explicit", "explicit", env.EXPLICIT, flag, "1: a person named --from, a broken one is an error"
    ),
    Option(
        "--training-id", "training_id", env.TRAINING_ID, str, "stable over all attempts (from the lineage)"
    ),
    Option("--finished-when", "finished_when", env.FINISHED_WHEN, str, "glob in --dir that means finished"),
    Option("--stop-signal", "stop_signal", env.STOP_SIGNAL, signal_number, "what the training gets (TERM)"),
    Option("--grace", "grace", env.GRACE, _seconds, "seconds from the notice to our own KILL (25)"),
    Option("--strict", "strict", env.STRICT, flag, "1: a changed configuration is an error"),
    Option("--elastic", "elastic", env.ELASTIC, flag, "1: another number of processes can resume"),
    Option("--spec-digest", "spec_digest", env.SPEC_DIGEST, str, "digest of the training's specification"),
    Option("--keep-last", "keep_last", env.KEEP_LAST, _natural, "keep the newest n checkpoints, 0 keeps all"),
    Option("--job-name", "job_name", env.JOB_NAME, str, "name of the Batch job, for the records"),
    Option("--state-dir", "state_dir", env.STATE_DIR, Path, "what the runtime's parts share (DIR.resume)"),
    Option("--carry", "carry", env.CARRY, _globs, f"small top-level files that travel ({','.join(CARRIED)})"),
    Option("--settings", "settings", env.SETTINGS, _settings, "declared settings, a JSON object"),
    Option("--world-size", "world_size", env.WORLD_SIZE, _natural, "number of training processes (nodes)"),
    Option("--shared-dir", "shared_dir", env.SHARED_DIR, flag, "1: all nodes see one --dir"),
    Option("--lazy", "lazy", env.LAZY, flag, "1: restore only what the script asks the SDK for"),
    Option("--poll", "poll", env.POLL, _seconds, "seconds between looks at --dir (0.5)"),
    Option("--nice", "nice", env.NICE, _natural, "niceness of the uploader while training (19)"),
    Option(
        "--bandwidth", "bandwidth", env.BANDWIDTH, _natural, "cap while training, bytes per second (0: none)"
    ),
)
_REQUIRED = ("lineage", "attempt", "directory")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of the table to `parser`."""
    for option in TABLE:
        parser.add_argument(
            option.flag,
            dest=option.field,
            type=option.read,
            nargs="?" if option.read is flag else None,
            const=True if option.read is flag else None,
            help=f"{option.help} [{option.variable}]",
        )


def options_from(
    arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ, command: Sequence[str] = ()
) -> Options:
    """Merge flags over environment variables over defaults; raises `InvalidInput` naming the option."""
    values: dict[str, Any] = {}
    for option in TABLE:
        value = getattr(arguments, option.field, None)
        if value is None and environ.get(option.variable):
            value = _from_environment(option, environ[option.variable])
        if value is not None:
            values[option.field] = value
    for option in TABLE:
        if option.field in _REQUIRED and not values.get(option.field):
            raise _invalid(option, "", f"Pass {option.flag} or set {option.variable}.")
    directory = values["directory"]
    # A link that somebody has put there stays in the name that the training is told.
    directory = values["directory"] = directory.resolve() if ".." in directory.parts else directory.absolute()
    values["state_dir"] = values.get("state_dir", _beside(directory)).absolute()
    node = Node.here(environ)
    made = Options(**values, command=tuple(command), node=node)
    if made.leads or not made.sees_the_leaders_files:
        return made
    own = made.state_dir.with_name(f"{made.state_dir.name}-{node.index}-{node.local_rank}")
    return replace(made, state_dir=own)


def _beside(directory: Path) -> Path:
    """Return a place on the same file system, so that hard links work."""
    real = Path(os.path.realpath(directory))
    if os.path.ismount(real):
        return real / ".resume.state"
    return real.with_name(real.name + ".resume")


def _from_environment(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise _invalid(option, text, f"Correct {option.variable}: {error}.") from error


def _invalid(option: Option, value: str, can: str) -> InvalidInput:
    return InvalidInput(
        f"{option.variable} is {value!r}." if value else f"The option {option.flag} is missing.",
        can=can,
        parameter=option.flag.lstrip("-"),
        value=value,
    )
