"""`resume-local`: start, look at, disturb and stop the local stack."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing.client import (
    StackClient,
    address_of,
    default_root,
    quoted,
)

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
FOLLOW_SECONDS = 0.3
LOSSES = ("preempt", "vanish", "reboot", "unresponsive", "recreate", "maintenance")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    options.named_root, options.root = options.root, options.root or default_root()
    try:
        return options.run(options) or 0
    except (RuntimeError, InvalidInput, OSError) as error:
        print(f"resume-local: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "resume-local", description="Google Cloud Batch and Storage on this machine."
    )
    parser.add_argument(
        "--root",
        type=Path,
        help="directory of the stack (RESUME_LOCAL_ROOT, ./.resume-local)",
    )
    parser.add_argument("--address", default="", help="host:port of a running stack, in place of --root")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands)
    _command(commands, "down", _down, "stop the stack and everything that it started")
    _command(commands, "status", _status, "show addresses and counts").add_argument(
        "--json", action="store_true"
    )
    _command(commands, "env", _env, "print the environment to export")
    jobs = _command(commands, "jobs", _jobs, "list jobs, or show one")
    jobs.add_argument("job", nargs="?", help="full name, id or uid")
    jobs.add_argument("--json", action="store_true")
    logs = _command(commands, "logs", _logs, "print what a job's tasks wrote")
    logs.add_argument("job")
    logs.add_argument("--task", type=int)
    logs.add_argument("--follow", action="store_true", help="go on until the job has ended")
    logs.add_argument("--json", action="store_true", help="entries with time, severity, runnable and attempt")
    _add_preempt(commands)
    fault = _command(commands, "fault", _fault, "show the plan, or add faults to it, or clear it")
    fault.add_argument(
        "fault", nargs="?", help='YAML, for example "{api_error: {methods: [GetJob], rate: 0.5}}"'
    )
    fault.add_argument("--plan", type=Path, help="replace the plan by this YAML file")
    fault.add_argument("--clear", action="store_true")
    _command(commands, "reset", _reset, "forget all jobs and end their processes; buckets stay")
    return parser


def _command(commands: Any, name: str, run: Callable[..., int | None], help_: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=help_[0].upper() + help_[1:] + "."
    )
    parser.set_defaults(run=run)
    return parser


def _add_up(commands: Any) -> None:
    up = _command(commands, "up", _up, "start the stack; Ctrl-C ends it and all that it started")
    up.add_argument("--detach", action="store_true", help="return when it listens, leaving it running")
    up.add_argument("--executor", default="process", choices=("process", "podman", "docker"))
    up.add_argument("--plan", type=Path, help="YAML file with faults")
    up.add_argument("--settings", type=Path, help="YAML file with settings, see docs/local-stack.md")
    up.add_argument("--secrets", type=Path, help="YAML or JSON file with values of secrets")
    up.add_argument("--bucket", action="append", help="bucket to create, may be repeated (default: resume)")
    up.add_argument("--host", default="127.0.0.1", help="anything but loopback lets others run commands here")
    up.add_argument("--advertise", default="", help="host name that clients are given (with --host)")
    up.add_argument("--port", type=int, default=0, help="of the Batch API (default: a free one)")
    up.add_argument("--storage-port", type=int, default=0, help="of the object store (default: a free one)")
    up.add_argument(
        "--allow-host", action="append", default=[], help="Host header to accept besides loopback"
    )


def _add_preempt(commands: Any) -> None:
    preempt = _command(commands, "preempt", _preempt, "take a job's VMs away, as Compute Engine would")
    preempt.add_argument("job")
    preempt.add_argument("--grace", type=float, help="seconds between notice and power-off")
    preempt.add_argument("--no-notice", action="store_true", help="cut the power at once")
    preempt.add_argument("--kind", choices=LOSSES, default="preempt", help="another way of losing them")
    preempt.add_argument("--task", type=int, help="only the VM that runs this task")


def _client(options: argparse.Namespace) -> StackClient:
    return StackClient(address_of(options.named_root, options.address))


def _up(options: argparse.Namespace) -> int:
    from airflow_resume_provider.testing import daemon

    return daemon.up(options)


def _down(options: argparse.Namespace) -> int:
    from airflow_resume_provider.testing import daemon

    return daemon.down(options.root)


def _status(options: argparse.Namespace) -> None:
    status = _client(options).get("status")
    if options.json:
        print(json.dumps(status, indent=2))
        return
    jobs = ", ".join(f"{count} {state}" for state, count in status["jobs"].items()) or "none"
    for name in ("batch", "storage", "executor", "root", "pid"):
        print(f"{name:9} {status[name]}")
    print(f"{'jobs':9} {jobs}\n{'vms':9} {status['vms']}\n{'page':9} http://{status['batch']}/")


def _env(options: argparse.Namespace) -> None:
    print(exports(_client(options).get("status")["environment"]))


def exports(environment: dict[str, str]) -> str:
    """Lines for a shell to evaluate."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def _jobs(options: argparse.Namespace) -> None:
    found = _client(options).get(f"jobs/{quoted(options.job)}" if options.job else "jobs")
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.job:
        _print_job(found)
    else:
        for job in found:
            tasks = " ".join(f"{count} {state}" for state, count in job["tasks"].items())
            print(f"{job['number']:>4}  {job['state']:<24} {job['id']:<40} {tasks}")


def _print_job(job: dict[str, Any]) -> None:
    print(f"{job['name']}  {job['state']}  {job['uid']}")
    for event in job["job"]["status"].get("statusEvents", []):
        print(f"  {event['eventTime']}  {event['description']}")
    for task in job["task_list"]:
        print(f"  task {task['name'].rpartition('/')[2]}  {task['state']}")
        for event in task.get("status", {}).get("statusEvents", []):
            print(f"    {event['eventTime']}  {event['description']}")


def _follow(options: argparse.Namespace) -> None:
    """Print each line as it comes, until the job has ended and nothing more came."""
    client, seen, ended = _client(options), 0, False
    while True:
        entries = client.get(f"logs/{quoted(options.job)}", task=options.task, format="json")
        entries.sort(key=lambda entry: entry["time"])
        for entry in entries[seen:]:
            print(f"[{entry['task']}] {entry['message']}", flush=True)
        if ended and len(entries) == seen:
            return
        seen = len(entries)
        ended = client.get(f"jobs/{quoted(options.job)}")["state"] in ENDED
        time.sleep(FOLLOW_SECONDS)


def _logs(options: argparse.Namespace) -> None:
    if options.follow:
        _follow(options)
        return
    form = "json" if options.json else None
    found = _client(options).get(f"logs/{quoted(options.job)}", task=options.task, format=form)
    print(json.dumps(found, indent=2) if options.json else found, end="" if not options.json else "\n")


def _preempt(options: argparse.Namespace) -> int:
    how = {"kind": options.kind, "task": options.task}
    if options.kind in ("preempt", "maintenance"):
        how |= {"grace": options.grace, "notice": not options.no_notice}
    lost = _client(options).post(f"lose/{quoted(options.job)}", how)["lost"]
    for vm in lost:
        print(f"lost {vm}")
    if not lost:
        print(f"resume-local: no VM of {options.job} runs", file=sys.stderr)
    return 0 if lost else 1


def _fault(options: argparse.Namespace) -> None:
    from airflow_resume_provider.testing.faults import Plan

    client = _client(options)
    if options.clear:
        print(json.dumps(client.post("faults", {"faults": []})))
    elif options.plan:
        print(json.dumps(client.post("faults", Plan.from_yaml(options.plan).to_dict())))
    elif options.fault:
        text = options.fault if options.fault.lstrip().startswith(("{", "[", "-")) else f"{{{options.fault}}}"
        plan = Plan.from_yaml(f"- {text}" if text.lstrip().startswith("{") else text)
        for fault in plan.to_dict()["faults"]:
            print(json.dumps(client.post("faults", fault)))
    else:
        print(json.dumps(client.get("faults"), indent=2))


def _reset(options: argparse.Namespace) -> None:
    _client(options).post("reset", {})


if __name__ == "__main__":
    sys.exit(main())
