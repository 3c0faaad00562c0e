"""`resume-run`: runs a training, or one of the subcommands on its checkpoints."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from airflow_resume_provider.errors import ExitCode, ResumeError
from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.options import add_options, options_from

log = logging.getLogger("resume-run")
_USAGE = "resume-run [OPTIONS] -- COMMAND [ARGUMENT …]\n       resume-run SUBCOMMAND …"


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code, which is the training's own unless it is in 80–99."""
    logging.basicConfig(
        format="resume-run %(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stderr
    )
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] != "run":
            return _subcommand(arguments)
        return _run(arguments[1:] if arguments[:1] == ["run"] else arguments)
    except ResumeError as error:
        log.error("%s", error)
        return int(error.exit_code)


def _run(arguments: Sequence[str]) -> int:
    from airflow_resume_provider.runtime.run import Run

    own, command = _split(arguments)
    parser = argparse.ArgumentParser("resume-run", usage=_USAGE, description=__doc__, allow_abbrev=False)
    add_options(parser)
    parsed = parser.parse_args(own)
    if not command:
        parser.error("there is no command; put it after --")
    return Run(options_from(parsed, os.environ, command)).run()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Everything after the first `--` is the training's, unchanged."""
    rows = list(arguments)
    at = rows.index("--") if "--" in rows else len(rows)
    return rows[:at], rows[at + 1 :]


def _subcommand(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("resume-run", usage=_USAGE, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    if arguments[0] == "restore" and _has_state_dir(arguments):
        _add_sidecar(subparsers, "restore", "Restore, and prepare the state directory for sync and finish.")
    else:
        from airflow_resume_provider.runtime import store_cli

        store_cli.register(subparsers)
    _add_sidecar(subparsers, "sync", "Commit finished checkpoints until finish takes over.")
    _add_sidecar(subparsers, "finish", "Commit the last checkpoint and record how the attempt ended.")
    parsed = parser.parse_args(arguments)
    return int(parsed.handler(parsed) or ExitCode.FINISHED)


def _has_state_dir(arguments: Sequence[str]) -> bool:
    """Only the job with sidecars has one; a plain restore is for people and scripts."""
    named = any(word.partition("=")[0] == "--state-dir" for word in arguments)
    return named or bool(os.environ.get(env.STATE_DIR))


def _add_sidecar(subparsers: Any, name: str, words: str) -> None:
    parser = subparsers.add_parser(name, help=words, description=words, allow_abbrev=False)
    add_options(parser)
    if name == "finish":
        parser.add_argument("--succeeded", action="store_true", help="only say that the training exited 0")
    parser.set_defaults(handler=_sidecar)


def _sidecar(parsed: argparse.Namespace) -> int:
    from airflow_resume_provider.runtime.sidecar import Sidecar

    sidecar = Sidecar(options_from(parsed))
    name = "succeeded" if getattr(parsed, "succeeded", False) else parsed.subcommand
    return int(getattr(sidecar, name)())


if __name__ == "__main__":
    sys.exit(main())
