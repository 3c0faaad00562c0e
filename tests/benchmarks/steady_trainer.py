"""Steps of equal work on all cores, by turns with and without an upload of its checkpoint beside them.

Arguments: seconds in all, and megabytes of each checkpoint, or `thief`: then the turns are with and
without a process that takes CPU time while the file `STEAL` is there. Says for each turn how many steps
it made in how many seconds: before the upload, with it, and after it.
"""

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy

seconds, thief = float(sys.argv[1]), sys.argv[2] == "thief"
megabytes = 0 if thief else int(sys.argv[2])
matrix = numpy.random.default_rng(1).random((700, 700), numpy.float32)
ballast = os.urandom(1 << 20)
TURN = 2.0
root, pins = Path(os.environ["RESUME_DIR"]), Path(os.environ["RESUME_STATE_DIR"], "pins")
steal = Path(os.environ.get("STEAL", ""))
root.mkdir(parents=True, exist_ok=True)
pins.mkdir(parents=True, exist_ok=True)


def save(step):
    new = root / f"checkpoint-{step}.tmp"
    new.mkdir()
    with (new / "weights.bin").open("wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(ballast)
    new.rename(root / f"checkpoint-{step}")
    shutil.rmtree(root / f"checkpoint-{step - 1}", ignore_errors=True)


def train(go_on):
    """Return how many steps were made while `go_on(seconds so far, an upload is under way)`, and the seconds.

    Looking for an upload takes a hundredth of a step, so every turn does it.
    """
    steps, begun = 0, time.perf_counter()
    while go_on(time.perf_counter() - begun, any(pins.iterdir())):
        matrix @ matrix
        steps += 1
    return steps, time.perf_counter() - begun


def beside_an_upload():
    save(len(turns) + 1)
    train(lambda so_far, under_way: not under_way and so_far < 10)  # until it has been seen
    during = train(lambda so_far, under_way: under_way and so_far < 4 * TURN)
    train(lambda so_far, under_way: under_way and so_far < 60)
    return during


def beside_a_thief():
    steal.touch()
    during = train(lambda so_far, _: so_far < 2 * TURN)
    steal.unlink()
    return during


train(lambda so_far, _: so_far < 1)
turns, begun = [], time.perf_counter()
without = train(lambda so_far, _: so_far < TURN)
while time.perf_counter() - begun < seconds:
    during = beside_a_thief() if thief else beside_an_upload()
    before, without = without, train(lambda so_far, _: so_far < TURN)
    turns.append({"before": before, "with": during, "after": without})
own = resource.getrusage(resource.RUSAGE_SELF)
result = Path(os.environ["RESULT"])
whole = result.with_suffix(".tmp")
whole.write_text(json.dumps({"turns": turns, "cpu": own.ru_utime + own.ru_stime}))
whole.rename(result)
