"""Writes what Marian writes, the way Marian writes it: fixed names, in place, logs that grow."""

import hashlib
import json
import os
import re
import sys
import time
import zipfile
from pathlib import Path

steps, every = int(sys.argv[1]), int(sys.argv[2])
root = Path(os.environ["RESUME_DIR"])
best = [f"model.npz.best-{metric}.npz" for metric in ("bleu-detok", "ce-mean-words", "chrf")]


def say(**words):
    print(json.dumps(words), flush=True)


def archive(name, text):
    with zipfile.ZipFile(root / name, "w") as file:
        file.writestr("weights", text)
        time.sleep(0.02)


def save(step, digest):
    archive("model.npz", digest)
    archive("model.npz.optimizer.npz", digest)
    for name in best:
        archive(name, digest)
        (root / f"{name}.decoder.yml").write_text("beam-size: 6\n")
    for name in ("model.npz.yml", "model.npz.decoder.yml", "config.opustrainer.yml"):
        (root / name).write_text("dim-emb: 512\n")
    (root / "config.opustrainer.yml.state").write_text(f"line: {step}\n")
    (root / "devset.out").write_text(digest)
    (root / "valid.log").open("a").write(f"{step}\n")
    (root / "model.npz.progress.yml").write_text(f"epochs: 1\nbatches: {step}\n")


root.mkdir(exist_ok=True)
step, digest = 0, ""
progress = root / "model.npz.progress.yml"
if progress.exists():
    step = int(re.search(r"batches: (\d+)", progress.read_text())[1])
    digest = zipfile.ZipFile(root / "model.npz").read("weights").decode()
    assert zipfile.ZipFile(root / "model.npz.optimizer.npz").read("weights").decode() == digest
say(start=step, mode=os.environ.get("PRETRAINED_MODEL_MODE", ""))
for name in ("vocab.ru.spm", "vocab.en.spm"):
    if not (root / name).exists():
        (root / name).write_text("vocabulary")
logs = [(root / name).open("a") for name in ("train.log", "opustrainer.log")]
while step < steps:
    step += 1
    digest = hashlib.sha256(f"{digest}{step}".encode()).hexdigest()
    for log in logs:
        log.write(f"{step}\n")
        log.flush()
    time.sleep(0.05)
    if step % every == 0:
        save(step, digest)
say(end=step, digest=digest)
