"""One node's part of a training in lockstep; each node keeps its own shard on its own disk."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

node, steps, meeting = int(os.environ["BATCH_NODE_INDEX"]), int(sys.argv[1]), Path(sys.argv[2])
count = int(os.environ["BATCH_NODE_COUNT"])
root = Path(os.environ["RESUME_DIR"])
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))


def say(**words):
    print(json.dumps(words), flush=True)


def meet(step):
    """A barrier over the file system, as a collective would be over the network; whether all stop."""
    meeting.mkdir(parents=True, exist_ok=True)
    if told:
        (meeting / f"told-{step}").touch()
    (meeting / f"{step}-{node}").touch()
    while len(list(meeting.glob(f"{step}-*"))) < count:
        time.sleep(0.005)
    return (meeting / f"told-{step}").exists()


start, shard = 0, f"node {node}"
if os.environ["RESUME_CHECKPOINT"]:
    where = Path(os.environ["RESUME_CHECKPOINT"])
    start = int(where.name.split("-")[1])
    shard = (where / f"shard-{node}.txt").read_text()
    say(all=sorted(path.name for path in where.iterdir()))
say(start=start, source=os.environ["RESUME_FROM"])
for step in range(start + 1, steps + 1):
    shard = hashlib.sha256(shard.encode()).hexdigest()
    time.sleep(0.02)
    if step % 10 == 0:
        made = root / f"step-{step}.tmp"
        made.mkdir(parents=True)
        (made / f"shard-{node}.txt").write_text(shard)
        if node == 0:
            (made / ".metadata").write_text("all")
        stop = meet(step)
        made.rename(root / f"step-{step}")
        if stop:
            say(stopped=step)
            sys.exit(0)
say(end=shard)
