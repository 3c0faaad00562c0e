"""`resume-run`: runs a training, or one of the subcommands on its checkpoints."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from airflow_resume_provider.errors import ExitCode, ResumeError
from airflow_resume_provider.runtime.options import add_options, options_from

log = logging.getLogger("resume-run")
_USAGE = "resume-run [OPTIONS] -- COMMAND [ARGUMENT …]\n       resume-run SUBCOMMAND …"
# The same word for two things: for people, and for the job around an unmodified image. Only this flag
# tells them apart, because a person who looks around in a container has all of its environment.
_FOR_TRAINING = "--for-training"
# What a shell shows for a program that wrote to a pipe nobody reads any more.
_BROKEN_PIPE = 128 + signal.SIGPIPE
_CODES = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
_ENDING = f"""exit codes of our own (the training's is passed through):
{textwrap.indent(textwrap.fill(_CODES, 76), "  ")}
  See docs/container-contract.md, "Exit codes"."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code, which is the training's own unless it is in 80–99."""
    logging.basicConfig(
        format="resume-run %(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stderr
    )
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] != "run":
            return _subcommand(arguments)
        return _run(arguments[1:] if arguments[:1] == ["run"] else arguments)
    except ResumeError as error:
        log.error("%s", error)
        if "--json" in arguments:
            _print_error(error)
        return int(error.exit_code)
    except Exception as error:  # a defect of ours: no exit code of the training's, and JSON for programs
        log.exception("resume-run has failed in a way that it should not; please report this")
        if "--json" in arguments:
            _print_error(ResumeError(f"{type(error).__name__}: {error}"))
        return int(ExitCode.FAILED)
    except KeyboardInterrupt:
        log.error("Interrupted; what was begun is not committed.")
        return 128 + signal.SIGINT


def _print_error(error: ResumeError) -> None:
    """Say for programs what standard error says for people."""
    about = {"type": type(error).__name__, "message": str(error), "exit_code": int(error.exit_code)}
    uri = error.data.get("uri")
    print(json.dumps({"error": about | ({"uri": uri} if uri else {})}))


def _run(arguments: Sequence[str]) -> int:
    from airflow_resume_provider.runtime.run import Run

    own, command = _split(arguments)
    asked = not {"-h", "--help"}.isdisjoint(own)
    parser = _parser(epilog=f"subcommands:\n{_subcommand_lines()}\n\n{_ENDING}" if asked else "")
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


def _parser(**options: Any) -> argparse.ArgumentParser:
    return _Parser(
        "resume-run",
        usage=_USAGE,
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )


def _subcommand(arguments: Sequence[str]) -> int:
    parser = _parser(epilog=_ENDING)
    _subcommands(parser, for_training=_FOR_TRAINING in arguments)
    parsed = parser.parse_args(arguments)
    try:
        code = int(parsed.handler(parsed) or ExitCode.FINISHED)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Nobody reads; the interpreter must not complain about it once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _subcommands(parser: argparse.ArgumentParser, *, for_training: bool) -> Any:
    from airflow_resume_provider.runtime import store_cli

    subparsers = parser.add_subparsers(
        dest="subcommand", required=True, metavar="SUBCOMMAND", title="subcommands", prog="resume-run"
    )
    if for_training:
        text = "Restore, and prepare the state directory for sync and finish."
        _add_sidecar(subparsers, "restore", text).add_argument(
            _FOR_TRAINING, action="store_true", help="what the first runnable of a job with sidecars does"
        )
    else:
        store_cli.register(subparsers)
    _add_sidecar(subparsers, "sync", "Commit finished checkpoints until finish takes over.")
    _add_sidecar(subparsers, "finish", "Commit the last checkpoint and record how the attempt ended.")
    return subparsers


def _subcommand_lines() -> str:
    """Return one line for each subcommand."""
    rows = _subcommands(_parser(), for_training=False)._choices_actions
    return "\n".join(f"  {row.dest:<12}{row.help}" for row in rows)


def _print_anything() -> None:
    """Write what the terminal's encoding lacks as an escape, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _add_sidecar(subparsers: Any, name: str, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=words, description=words, allow_abbrev=False
    )
    add_options(parser)
    if name == "finish":
        parser.add_argument("--succeeded", action="store_true", help="only say that the training exited 0")
    parser.set_defaults(handler=_sidecar)
    return parser


def _sidecar(parsed: argparse.Namespace) -> int:
    from airflow_resume_provider.runtime.sidecar import Sidecar

    sidecar = Sidecar(options_from(parsed))
    name = "succeeded" if getattr(parsed, "succeeded", False) else parsed.subcommand
    return int(getattr(sidecar, name)())


if __name__ == "__main__":
    sys.exit(main())
