"""The subcommands of `resume-run` that work on checkpoints.

Results are JSON on standard output, unless that is a terminal and --json is not
given; words for people and progress go to standard error.
Options may also come from the environment variables of the container contract;
what is said on the command line wins.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, Reference, StoreOptions
from airflow_resume_provider.checkpoints.json_values import finite, is_finite
from airflow_resume_provider.checkpoints.names import split_checkpoint
from airflow_resume_provider.checkpoints.select import Choice
from airflow_resume_provider.errors import CheckpointNotFound, ExitCode, InvalidInput
from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.misnamed import no_checkpoint, require_directory, require_lineage
from airflow_resume_provider.runtime.options import flag
from airflow_resume_provider.runtime.transfer_display import TransferDisplay, human

Handler = Callable[[argparse.Namespace], int]


def register(subparsers: Any) -> None:
    """Add all subcommands; each parser's `handler` returns the exit code."""
    _commit_options(
        _parser(subparsers, "commit", commit, "Commit a directory as the attempt's next checkpoint.")
    )
    _choose_options(_parser(subparsers, "choose", choose, "Say what an attempt would resume from, and why."))
    _restore_options(_parser(subparsers, "restore", restore, "Choose, verify and restore into a directory."))
    _add_lineage(
        _parser(subparsers, "list", list_all, "List all attempts and checkpoints with their states.")
    )
    _add_uri(_parser(subparsers, "verify", verify, "Read all of a checkpoint and compare its checksums."))
    _prune_options(_parser(subparsers, "prune", prune, "Delete the checkpoints that no rule keeps."))
    _mark_options(_parser(subparsers, "quarantine", quarantine, "Never choose this checkpoint again."))
    _mark_options(_parser(subparsers, "pin", pin, "Never prune this checkpoint."))


def commit(args: argparse.Namespace) -> int:
    """Commit a directory and print its reference."""
    display = TransferDisplay("Committing")
    reference = _lineage(args).commit(
        args.directory,
        attempt=_attempt(args),
        step=args.step,
        files=args.file or None,
        metrics=args.metrics,
        metadata=args.metadata,
        format=args.format,
        world_size=args.world_size,
        resumed_from=args.resumed_from,
        spec_digest=os.environ.get(env.SPEC_DIGEST, ""),
        progress=display,
    )
    if display.used:
        _say(f"Committed step {reference.step} as {reference.uri} ({human(reference.total_bytes)}).")
    else:
        _say(_committed_before(reference, args.metrics))
    return _print(reference.to_dict(), args)


def _committed_before(reference: Reference, metrics: Mapping[str, Any]) -> str:
    said = f"Step {reference.step} was already committed with the same contents, as {reference.uri}."
    if not metrics or metrics == reference.metrics:
        return said
    return f"{said} Its metrics are unchanged, {json.dumps(dict(reference.metrics))}: they are written once."


def choose(args: argparse.Namespace) -> int:
    """Print what the attempt would resume from, or whether the checkpoint of `--from` can be used."""
    if args.source:
        return _choose_exactly(args)
    choice = _lineage(args).choose(
        _attempt(args),
        fallback=os.environ.get(env.FROM, ""),
        restarted=args.restarted,
        contents=not args.listing_only,
        progress=TransferDisplay("Verifying"),
    )
    _explain(choice)
    return _print(choice.to_dict(), args)


def restore(args: argparse.Namespace) -> int:
    """Restore what the attempt resumes from, or exactly the checkpoint that `--from` names."""
    if not args.dir:
        raise InvalidInput(f"Say where to restore to: --dir or {env.DIR}.", parameter="dir", value="")
    display = TransferDisplay("Restoring")
    if args.source:
        return _restore_exactly(args, display)
    restored = _lineage(args).restore(
        _attempt(args),
        args.dir,
        fallback=os.environ.get(env.FROM, ""),
        explicit=args.explicit or _is_set(env.EXPLICIT),
        restarted=args.restarted,
        learn=False,
        progress=display,
    )
    _explain(restored.choice)
    return _print({**restored.choice.to_dict(), "directory": str(restored.directory)}, args)


def _restore_exactly(args: argparse.Namespace, display: TransferDisplay) -> int:
    checkpoint = Checkpoint.from_uri(args.source, options=StoreOptions())
    with _named(args.source):
        directory = checkpoint.to_directory(args.dir, exactly=True, progress=display)
    choice = _asked_for(checkpoint)
    return _print({**choice.to_dict(), "directory": str(directory)}, args)


def _choose_exactly(args: argparse.Namespace) -> int:
    checkpoint = Checkpoint.from_uri(args.source)
    with _named(args.source):
        checkpoint.verify(contents=not args.listing_only, progress=TransferDisplay("Verifying"))
    return _print(_asked_for(checkpoint).to_dict(), args)


def _asked_for(checkpoint: Checkpoint) -> Choice:
    choice = Choice(checkpoint.reference, (), f"{checkpoint.uri} was asked for by name.")
    _explain(choice)
    _say_quarantined(checkpoint.uri)
    return choice


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Say what `uri` is when it is no checkpoint."""
    require_directory(uri)
    try:
        yield
    except CheckpointNotFound as error:
        raise no_checkpoint(uri, error) from error


def _say_quarantined(uri: str) -> str:
    """Return why a checkpoint is quarantined, or an empty string."""
    place = split_checkpoint(uri)
    reason = Lineage.open(place[0]).quarantine_reason(uri) if place else ""
    if reason:
        _say(f"It is quarantined, so no attempt chooses it: {reason}.")
    return reason


def list_all(args: argparse.Namespace) -> int:
    """Print all attempts and checkpoints."""
    lineage = _lineage(args)
    found = lineage.overview()
    if not found["attempts"]:
        _say(require_lineage(lineage.store))
    if _wants_json(args):
        return _print(found, args)
    print(f"{found['lineage']}  training {found['training_id'] or 'unknown'}")
    for attempt in found["attempts"]:
        source = f", resumed from {attempt['resumed_from']}" if attempt["resumed_from"] else ""
        print(f"attempt {attempt['attempt']}  {attempt['end'] or 'no end recorded'}{source}")
        for row in attempt["checkpoints"]:
            print(f"  {row['index']:>6}  {_columns(row)}")
    return ExitCode.FINISHED


def _columns(row: Mapping[str, Any]) -> str:
    step = f"step {row['step']}  {human(row['total_bytes'])}  " if "step" in row else ""
    return f"{step}{row['state']}{'  pinned' if row['pinned'] else ''}  {row['uri']}"


def verify(args: argparse.Namespace) -> int:
    """Read a checkpoint and compare; a broken one is an error."""
    checkpoint = Checkpoint.from_uri(args.uri)
    with _named(args.uri):
        checkpoint.verify(progress=TransferDisplay("Verifying"))
    _say(f"{checkpoint.uri} is complete and every checksum is right.")
    said = {"state": "complete", "quarantined": _say_quarantined(checkpoint.uri)}
    return _print({"checkpoint": checkpoint.reference.to_dict(), **said}, args)


def prune(args: argparse.Namespace) -> int:
    """Delete what no rule keeps."""
    pruned = _lineage(args).prune(
        keep_last=args.keep_last,
        keep_best=args.keep_best,
        metric=args.metric,
        mode=args.mode,
        keep_every=args.keep_every,
        dry_run=args.dry_run,
    )
    for uri, reason in pruned.kept.items():
        _say(f"Kept {uri}: {reason}.")
    for uri in pruned.deleted:
        _say(f"{'Would delete' if pruned.dry_run else 'Deleted'} {uri}.")
    return _print(pruned.to_dict(), args)


def quarantine(args: argparse.Namespace) -> int:
    """Quarantine a checkpoint."""
    return _mark(args, "quarantined")


def pin(args: argparse.Namespace) -> int:
    """Pin a checkpoint."""
    return _mark(args, "pinned")


def _mark(args: argparse.Namespace, state: str) -> int:
    place = split_checkpoint(args.uri)
    if place is None:
        raise InvalidInput(
            f"{args.uri!r} is no checkpoint of a lineage (…/attempts/N/checkpoints/N).",
            parameter="uri",
            value=args.uri,
        )
    lineage = Lineage.open(place[0])
    if args.undo:
        return _unmark(args, lineage, state)
    reason = (lineage.quarantine if state == "quarantined" else lineage.pin)(args.uri, args.reason)
    if reason == args.reason:
        _say(f"{args.uri} is {state}.")
    else:
        _say(f"{args.uri} was {state} before, with the reason {reason!r}, which stands.")
    return _print({"uri": args.uri.rstrip("/"), "state": state, "reason": reason}, args)


def _unmark(args: argparse.Namespace, lineage: Lineage, state: str) -> int:
    was = (lineage.release if state == "quarantined" else lineage.unpin)(args.uri)
    _say(f"{args.uri} is no longer {state}." if was else f"{args.uri} was not {state}.")
    return _print({"uri": args.uri.rstrip("/"), "state": f"not {state}", "reason": ""}, args)


def _parser(subparsers: Any, name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON on standard output")
    parser.set_defaults(handler=handler)
    return parser


def _add_lineage(parser: argparse.ArgumentParser, *, attempt: bool = False) -> None:
    parser.add_argument("--lineage", metavar="URI", help=f"gs:// or file:// directory; default {env.LINEAGE}")
    if attempt:
        parser.add_argument("--attempt", type=int, metavar="N", help=f"default {env.ATTEMPT}")


def _add_uri(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uri", metavar="URI", help="URI of a checkpoint")


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="URI",
        help="exactly this checkpoint, or an error, whatever the lineage has;"
        f" {env.FROM} counts only when the lineage has none",
    )
    parser.add_argument(
        "--restarted", action="store_true", help="the attempt ran before, so its own checkpoints count"
    )


def _commit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the checkpoint's files")
    _add_lineage(parser, attempt=True)
    parser.add_argument("--step", type=int, required=True, metavar="S", help="the trainer's own counter")
    parser.add_argument("--metrics", type=_json_object, default={}, metavar="JSON", help="a JSON object")
    parser.add_argument("--metadata", type=_json_object, default={}, metavar="JSON", help="a JSON object")
    parser.add_argument("--file", action="append", metavar="PATH", help="only this one of DIR; repeatable")
    parser.add_argument("--format", default="directory", metavar="NAME", help="recorded in the manifest")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="recorded in the manifest")
    parser.add_argument("--resumed-from", default="", metavar="URI", help="recorded in the manifest")


def _choose_options(parser: argparse.ArgumentParser) -> None:
    _add_lineage(parser, attempt=True)
    _add_source(parser)
    parser.add_argument(
        "--listing-only", action="store_true", help="compare sizes only, do not read the candidate's bytes"
    )


def _restore_options(parser: argparse.ArgumentParser) -> None:
    _add_lineage(parser, attempt=True)
    _add_source(parser)
    parser.add_argument("--dir", default=os.environ.get(env.DIR), metavar="DIR", help=f"default {env.DIR}")
    parser.add_argument(
        "--explicit",
        action="store_true",
        help=f"it is an error when the checkpoint of {env.FROM} cannot be used",
    )


def _prune_options(parser: argparse.ArgumentParser) -> None:
    _add_lineage(parser)
    parser.add_argument("--keep-last", type=int, default=0, metavar="N", help="keep the newest N")
    parser.add_argument("--keep-best", type=int, default=0, metavar="K", help="keep the best K by --metric")
    parser.add_argument("--metric", default="", metavar="NAME", help="dotted name, e.g. eval.loss")
    parser.add_argument("--mode", choices=("min", "max"), default="min", help="what is good; default min")
    parser.add_argument("--keep-every", type=int, default=0, metavar="M", help="keep every M-th index")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _mark_options(parser: argparse.ArgumentParser) -> None:
    _add_uri(parser)
    parser.add_argument("--undo", action="store_true", help="take it back")
    parser.add_argument("--reason", default="", metavar="TEXT", help="recorded, and shown when passed over")


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    if not is_finite(value):
        raise argparse.ArgumentTypeError(
            "NaN and Infinity are no JSON numbers; leave it out, or write a string"
        )
    return value


def _lineage(args: argparse.Namespace) -> Lineage:
    uri = args.lineage or os.environ.get(env.LINEAGE, "")
    if not uri:
        raise InvalidInput(f"Name the lineage: --lineage or {env.LINEAGE}.", parameter="lineage", value="")
    if place := split_checkpoint(uri):
        raise InvalidInput(
            f"{uri} is a checkpoint, not a lineage.",
            did="Nothing was looked at: below it there is no attempt, so a fresh start would follow.",
            can=f"Its lineage is {place[0]}. A checkpoint to restore is named with --from.",
            parameter="lineage",
            value=uri,
        )
    return Lineage.open(uri)


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "")
    try:
        return flag(text)
    except argparse.ArgumentTypeError as error:
        raise InvalidInput(f"{variable}: {error}.", parameter=variable, value=text) from error


def _attempt(args: argparse.Namespace) -> int:
    text = args.attempt if args.attempt is not None else os.environ.get(env.ATTEMPT, "")
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(
            f"Name the attempt's number: --attempt or {env.ATTEMPT}, not {text!r}.",
            parameter="attempt",
            value=text,
        ) from error


def _explain(choice: Choice) -> None:
    for passed in choice.passed_over:
        _say(f"Passed over {passed.uri}: {passed.reason}.")
    _say(choice.why)


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # that nobody listens is no reason to stop half way
        print(text, file=sys.stderr)


def _wants_json(args: argparse.Namespace) -> bool:
    return args.json or not sys.stdout.isatty()


def _print(value: Mapping[str, Any], args: argparse.Namespace) -> int:
    if not _wants_json(args):  # the words have said it all
        return ExitCode.FINISHED
    # What the terminal cannot show is an escape, which is JSON all the same.
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(finite(value), ensure_ascii=ascii_only, indent=None if args.json else 2))
    return ExitCode.FINISHED
