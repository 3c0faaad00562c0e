"""In place of the Trainer of Transformers, which is not installed beside Airflow: its files, in its order."""

import json
import os
import struct
import time
import zipfile
from pathlib import Path

STEPS, EVERY = 60, 20
directory, restored = Path(os.environ["RESUME_DIR"]), os.environ.get("RESUME_CHECKPOINT", "")


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", "state")


def save(step):
    made = directory / f"checkpoint-{step}"
    made.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = struct.pack("<Q", len(header)) + header + struct.pack("<f", step)
    (made / "model.safetensors").write_bytes(weights)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        archive(made / name)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))


step = json.loads(Path(restored, "trainer_state.json").read_text())["global_step"] if restored else 0
print(f"starts at step {step}", flush=True)
while step < STEPS:
    step += 1
    time.sleep(0.03)
    if step % EVERY == 0:
        save(step)
