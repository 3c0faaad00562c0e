"""The stack as a program of its own: in the foreground until Ctrl-C, or detached until `down`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing.client import STATE_FILE, StackClient, StackUnreachable, read_state

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


def up(options: argparse.Namespace) -> int:
    """Start a stack as the command line says."""
    running = _running(options.root)
    if running:
        print(
            f"resume-local: a stack runs in {options.root} already (pid {running['pid']}); "
            "use it, or end it with `resume-local down`.",
            file=sys.stderr,
        )
        return 1
    if options.detach:
        return _detach(options)
    return asyncio.run(_serve(options))


def _running(root: Path) -> dict[str, Any]:
    """The state of a stack that really answers, or nothing."""
    state = read_state(root)
    if not state:
        return {}
    try:
        status = StackClient(state["batch"]).get("status")
    except (StackUnreachable, KeyError, ValueError):
        return {}
    return state if isinstance(status, dict) and status.get("pid") == state.get("pid") else {}


def settings_of(options: argparse.Namespace) -> Any:
    """Settings from the files that the command line names.

    Raises:
        InvalidInput: a name that is no setting.
    """
    import yaml

    from airflow_resume_provider.testing.batch.settings import Settings

    data = dict(yaml.safe_load(options.settings.read_text()) or {}) if options.settings else {}
    if options.secrets:
        secrets = yaml.safe_load(options.secrets.read_text()) or {}
        data["secrets"] = {str(name): str(value) for name, value in secrets.items()}
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in data:
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not a setting.",
                can=f"Use {', '.join(sorted(known))}.",
                parameter=name,
                value=data[name],
            )
    if "allowed_regions" in data:
        data["allowed_regions"] = tuple(data["allowed_regions"])
    return Settings(**data)


async def _serve(options: argparse.Namespace) -> int:
    from airflow_resume_provider.testing.cli import exports
    from airflow_resume_provider.testing.faults import Plan
    from airflow_resume_provider.testing.servers import Stack

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    stack = Stack(
        options.root,
        executor=options.executor,
        plan=Plan.from_yaml(options.plan) if options.plan else Plan.EMPTY,
        settings=settings_of(options),
        buckets=options.bucket or ["resume"],
        host=options.host,
        advertise=options.advertise,
        batch_port=options.port,
        storage_port=options.storage_port,
        allowed_hosts=options.allow_host,
    )
    await stack.start()
    ignore = options.root / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")  # nothing of a stack belongs into a repository
    state = {"pid": os.getpid(), "batch": stack.batch_endpoint(), "storage": stack.storage_endpoint()}
    _write(options.root / STATE_FILE, json.dumps(state))
    print(exports(stack.environment), flush=True)
    print(f"# page: http://{stack.batch_endpoint()}/   end with Ctrl-C", flush=True)
    await ended.wait()
    await stack.stop()
    with contextlib.suppress(OSError):
        (options.root / STATE_FILE).unlink()
    return 0


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def _detach(options: argparse.Namespace) -> int:
    """Start `up` again in a session of its own and wait until it listens."""
    options.root.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        (options.root / STATE_FILE).unlink()
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    if "--root" not in " ".join(arguments):
        arguments = ["--root", str(options.root), *arguments]
    log_path = options.root / "stack.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow_resume_provider.testing.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if read_state(options.root):
            print("\n".join(line for line in log_path.read_text().splitlines() if line.startswith("export ")))
            return 0
        time.sleep(0.05)
    if process.poll() is None:
        process.terminate()
    print(f"resume-local: the stack did not start:\n{log_path.read_text()[-2000:]}", file=sys.stderr)
    return 1


def down(root: Path) -> int:
    """End a running stack and wait until it is gone."""
    running = _running(root)
    if not running:
        print(f"resume-local: no stack runs in {root}", file=sys.stderr)
        return 1
    os.kill(running["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        if not _exists(running["pid"]):
            return 0
        time.sleep(0.05)
    print(f"resume-local: process {running['pid']} has not ended yet", file=sys.stderr)
    return 1


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie has ended, whoever its parent is.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return True
