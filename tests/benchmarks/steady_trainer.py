"""Steps of equal work on all cores, in short slices with an upload of its checkpoint beside them and without.

Arguments: seconds in all, and megabytes of each checkpoint, or `thief`: then the slices are with and
without a process that takes CPU time. Whatever runs beside the training is stopped for every other slice,
so that a machine that gets slower or faster meanwhile does so in both. `BESIDE` is the process of the
store, or the thief. Says for each turn the steps and seconds with and without, and the store's CPU seconds.
"""

import json
import os
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy

from tests.benchmarks.processes import below, cpu_seconds

seconds, thief = float(sys.argv[1]), sys.argv[2] == "thief"
megabytes = 0 if thief else int(sys.argv[2])
matrix = numpy.random.default_rng(1).random((700, 700), numpy.float32)
ballast = os.urandom(1 << 20)
SLICE, TURN = 0.25, 16.0
root, pins = Path(os.environ["RESUME_DIR"]), Path(os.environ["RESUME_STATE_DIR"], "pins")
store = int(os.environ["BESIDE"])
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


def under_way():
    return thief or any(pins.iterdir())


def train(span):
    """Return how many steps were made in about so many seconds, and the exact seconds."""
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < span:
        matrix @ matrix
        steps += 1
    return steps, time.perf_counter() - begun


def beside(number):
    """Stop or go on with everything that runs beside this training on its behalf."""
    runtime = [] if thief else [os.getppid(), *below(os.getppid())]
    for process in {store, *runtime} - {os.getpid()}:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(process, number)


def turn():
    """Make slices with, without, without, with and so on, while the upload is under way."""
    sums = {"with": [0, 0.0], "without": [0, 0.0]}
    before, begun = cpu_seconds(store), time.perf_counter()
    while under_way() and time.perf_counter() - begun < TURN:
        for name in ("with", "without", "without", "with"):
            beside(signal.SIGCONT if name == "with" else signal.SIGSTOP)
            steps, spent = train(SLICE)
            sums[name][0] += steps
            sums[name][1] += spent
    beside(signal.SIGCONT)
    return {**sums, "store": cpu_seconds(store) - before}


turns, begun = [], time.perf_counter()
train(1.0)
while time.perf_counter() - begun < seconds:
    if not thief:
        save(len(turns) + 1)
    for _ in range(40):  # until the upload has been noticed
        if under_way():
            break
        train(SLICE)
    turns.append(turn())
    for _ in range(240):
        if thief or not under_way():
            break
        train(SLICE)
own = resource.getrusage(resource.RUSAGE_SELF)
result = Path(os.environ["RESULT"])
whole = result.with_suffix(".tmp")
whole.write_text(json.dumps({"turns": turns, "cpu": own.ru_utime + own.ru_stime}))
whole.rename(result)
parent = os.getppid()
while not thief and os.getppid() == parent:  # so that the time of all of them can be read
    time.sleep(0.05)
