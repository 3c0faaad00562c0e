"""Steps of equal work on all cores, with a checkpoint every few seconds; says its steps per second."""

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy

seconds, megabytes, every = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
root = Path(os.environ["RESUME_DIR"])
root.mkdir(parents=True, exist_ok=True)
matrix = numpy.random.default_rng(1).random((700, 700), numpy.float32)
ballast = os.urandom(1 << 20)


def save(step):
    new = root / f"checkpoint-{step}.tmp"
    new.mkdir()
    with (new / "weights.bin").open("wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(ballast)
    new.rename(root / f"checkpoint-{step}")
    for old in sorted(root.glob("checkpoint-*[0-9]"), key=lambda path: int(path.name[11:]))[:-2]:
        shutil.rmtree(old, ignore_errors=True)


for _ in range(20):
    matrix @ matrix
steps, saving, begun = 0, 0.0, time.perf_counter()
last = begun
while (now := time.perf_counter()) - begun < seconds:
    matrix @ matrix
    steps += 1
    if now - last >= every:
        save(steps)
        last = time.perf_counter()
        saving += last - now
rate = steps / (time.perf_counter() - begun - saving)
own = resource.getrusage(resource.RUSAGE_SELF)
result = Path(os.environ["RESULT"])
whole = result.with_suffix(".tmp")
whole.write_text(json.dumps({"rate": rate, "cpu": own.ru_utime + own.ru_stime}))
whole.rename(result)
