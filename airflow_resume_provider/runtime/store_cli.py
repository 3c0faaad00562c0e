"""The subcommands of `resume-run` that work on checkpoints.

Results are JSON on standard output; words for people and progress go to
standard error. Options may also come from the environment variables of the
container contract.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import ExitCode, InvalidInput
from airflow_resume_provider.runtime import env

Handler = Callable[[argparse.Namespace], int]


def register(subparsers: Any) -> None:
    """Add all subcommands; each parser's `handler` returns the exit code."""
    _commit(_parser(subparsers, "commit", commit, "commit a directory as the attempt's next checkpoint"))
    _choose(_parser(subparsers, "choose", choose, "say what an attempt would resume from, and why"))
    _restore(_parser(subparsers, "restore", restore, "choose, verify and restore into a directory"))
    _lineage(_parser(subparsers, "list", list_all, "list all attempts and checkpoints with their state"))
    _uri(_parser(subparsers, "verify", verify, "read all of a checkpoint and compare checksums"))
    _prune(_parser(subparsers, "prune", prune, "delete checkpoints that no rule keeps"))
    _mark(_parser(subparsers, "quarantine", quarantine, "never choose this checkpoint again"))
    _mark(_parser(subparsers, "pin", pin, "never prune this checkpoint"))


def _parser(subparsers: Any, name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing but JSON, on standard output"
    )
    parser.set_defaults(handler=handler)
    return parser


def _lineage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lineage", default=os.environ.get(env.LINEAGE), metavar="URI")
