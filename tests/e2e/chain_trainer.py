"""A trainer without any library: its state is a chain of digests, so that a lost or repeated step shows."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path


def after(steps: int) -> str:
    """The state after so many steps of an undisturbed training."""
    state = "start"
    for step in range(1, steps + 1):
        state = _next(state, step)
    return state


def _next(state: str, step: int) -> str:
    return hashlib.sha256(f"{state}|{step}".encode()).hexdigest()


def _restored(directory: Path) -> tuple[int, str]:
    found = [int(path.name.split("-")[1]) for path in directory.glob("checkpoint-*") if path.suffix != ".tmp"]
    if not found:
        return 0, "start"
    saved = json.loads((directory / f"checkpoint-{max(found)}" / "state.json").read_text())
    return saved["step"], saved["state"]


def _save(directory: Path, step: int, state: str) -> None:
    unfinished = directory / f"checkpoint-{step}.tmp"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "state.json").write_text(json.dumps({"step": step, "state": state}))
    if metrics := os.environ.get("RESUME_METRICS_FILE"):
        Path(metrics).write_text(json.dumps({"digest": state}))
    unfinished.rename(directory / f"checkpoint-{step}")


def _fail(options: argparse.Namespace, step: int) -> None:
    """Fail so many times, over all attempts; the marks lie outside of what is restored."""
    if step != options.fail_at:
        return
    marks = Path(options.marks)
    marks.mkdir(parents=True, exist_ok=True)
    if len(list(marks.iterdir())) < options.fail_times:
        (marks / str(time.time_ns())).touch()
        sys.exit(7)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--fail-times", type=int, default=0)
    parser.add_argument("--marks", default="")
    options = parser.parse_args()
    directory = Path(os.environ["RESUME_DIR"])
    step, state = _restored(directory)
    print(f"from step {step}", flush=True)
    while step < options.steps:
        time.sleep(options.step_seconds)
        step += 1
        _fail(options, step)
        state = _next(state, step)
        if step % options.save_every == 0 or step == options.steps:
            _save(directory, step, state)


if __name__ == "__main__":
    main()
