"""A trainer that needs only Python: a chain of digests over shuffled sample ids, resumed exactly.

Writes `checkpoint-<step>/` by rename and says on standard output what happens to it.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--keep", type=int, default=0)
parser.add_argument("--bytes", type=int, default=0, help="ballast in each checkpoint")
parser.add_argument("--files", type=int, default=1, help="files of ballast")
parser.add_argument("--one-tick", action="store_true", help="leave no trace of the rename")
parser.add_argument("--signal", default="TERM")
parser.add_argument("--on-signal", choices=["save", "exit", "ignore", "die"], default="save")
parser.add_argument("--exit", type=int, default=0, help="exit code after the last step")
args = parser.parse_args()
root = Path(os.environ["RESUME_DIR"])
told = []


def say(**words):
    print(json.dumps(words), flush=True)


def on_signal(number, frame):
    say(signal=signal.Signals(number).name)
    told.append(number)


if args.on_signal != "die":
    signal.signal(getattr(signal, "SIG" + args.signal), on_signal)


def save(step, digest, state):
    temporary, final = root / f"checkpoint-{step}.tmp", root / f"checkpoint-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for number in range(args.files if args.bytes else 0):
        (temporary / f"ballast-{number}.bin").write_bytes(os.urandom(args.bytes // args.files))
    (temporary / "state.json").write_text(json.dumps({"step": step, "digest": digest, "random": state}))
    if not final.exists():
        temporary.rename(final)
    if args.one_tick:
        os.utime(final)
    if args.keep:
        there = sorted(root.glob("checkpoint-*[0-9]"), key=lambda p: int(p.name.split("-")[1]))
        for old in there[: -args.keep]:
            shutil.rmtree(old, ignore_errors=True)
    Path(os.environ["RESUME_METRICS_FILE"]).write_text(json.dumps({"at": step}))


step, digest, dice = 0, "", random.Random(7)
if os.environ["RESUME_CHECKPOINT"]:
    found = json.loads((Path(os.environ["RESUME_CHECKPOINT"]) / "state.json").read_text())
    step, digest = found["step"], found["digest"]
    version, numbers, gauss = found["random"]
    dice.setstate((version, tuple(numbers), gauss))
say(start=step, environment={k: v for k, v in os.environ.items() if k.startswith("RESUME")})
with (root / "train.log").open("a") as log:
    while step < args.steps:
        step += 1
        digest = hashlib.sha256(f"{digest}{dice.random()}".encode()).hexdigest()
        log.write(f"{step}\n")
        log.flush()
        time.sleep(args.pause)
        if step % args.every == 0 or step == args.steps or (told and args.on_signal == "save"):
            save(step, digest, dice.getstate())
        if told and args.on_signal in ("save", "exit") and step < args.steps:
            say(stopped=step)
            sys.exit(0)
say(end=step, digest=digest)
sys.exit(args.exit)
