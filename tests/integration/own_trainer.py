"""A training of nothing but Python: what makes it resumable is marked."""

import json
import os
import shutil
import time

import airflow_resume_provider.runtime as resume

STEPS = int(os.environ.get("STEPS", "200"))

training = resume.current()  # harmless outside `resume-run`: no checkpoint, never stop, commits go nowhere
step, weight = 0, 0.0
if training.checkpoint:  # what was restored, with its step, metrics and metadata
    saved = json.loads((training.checkpoint.to_directory() / "state.json").read_text())
    step, weight = saved["step"], saved["weight"]
print(f"starts at step {step}", flush=True)


def save():
    """Write all that is needed to go on, and hand it over; it is sent in the background."""
    directory = training.directory / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    (directory / "state.json").write_text(json.dumps({"step": step, "weight": weight}))
    training.commit(directory, step=step, metrics={"error": 1 - weight})
    shutil.rmtree(directory)  # it is held until it is sent


while step < STEPS and not training.should_stop:  # a preemption notice came: save and leave
    step, weight = step + 1, weight + (1 - weight) / 10
    time.sleep(0.01)
    if step % 20 == 0 or step == STEPS or training.should_stop:
        save()
if step == STEPS:
    training.finish()  # the end, whatever notice came meanwhile
print(f"ends at step {step} with {weight!r}", flush=True)
