"""Train a small network with Adam on scikit-learn's digits; resume it bit for bit.

Knows nothing of Airflow, Batch or object stores. The whole contract is a
handful of environment variables, all optional, so it also runs on its own:

    RESUME_DIR            where a restored checkpoint is found and new ones are written
    RESUME_METRICS_FILE   where to say how well it goes
    RESUME_NOTICE_FILE    appears when the machine is about to be taken away
    RESUME_ATTEMPT        only repeated in what is printed

A checkpoint holds the weights, Adam's two moments and its step count, the
random generator, the order of the running epoch and the position in it, and
the log so far. With float64, one BLAS thread and the same kind of CPU, a
training that was interrupted any number of times ends with the same bytes as
one that was not.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before NumPy: several BLAS threads would add up in an order that is not ours to say.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

TEST_IMAGES = 297
CLASSES = 10
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    steps: int
    save_every: int
    step_seconds: float
    batch_size: int
    hidden: int
    learning_rate: float
    seed: int
    keep: int
    fail_after: int


@dataclass(frozen=True)
class Digits:
    """The data set, split once and for all."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def load(cls) -> Digits:
        """Read the 1797 digits that scikit-learn ships."""
        table = np.loadtxt(digits_file(), delimiter=",")
        images, labels = table[:, :-1] / 16.0, table[:, -1].astype(np.int64)
        return cls(images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES])


def digits_file() -> Path:
    """Return the table that `sklearn.datasets.load_digits` reads.

    Not through that function: importing scikit-learn for one table takes
    seconds, and a resumed attempt pays them each time.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("The digits are part of scikit-learn: pip install scikit-learn")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


@dataclass
class Training:
    """Everything that changes while training, and so everything that a checkpoint holds."""

    weights: np.ndarray
    first_moment: np.ndarray
    second_moment: np.ndarray
    random: np.random.Generator
    order: np.ndarray
    position: int = 0
    step: int = 0
    samples_digest: str = ""
    log: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def fresh(cls, options: Options, inputs: int, images: int) -> Training:
        """Start at step 0 with weights drawn from the seed."""
        random = np.random.Generator(np.random.PCG64(options.seed))
        shapes = layer_shapes(inputs, options.hidden)
        parts = [random.normal(0, (2 / shape[0]) ** 0.5, shape).ravel() for shape in shapes]
        weights = np.concatenate(parts)
        return cls(
            weights, np.zeros_like(weights), np.zeros_like(weights), random, random.permutation(images)
        )

    def next_batch(self, size: int) -> np.ndarray:
        """Return the next sample ids, shuffling anew at each epoch's end."""
        if self.position + size > len(self.order):
            self.order, self.position = self.random.permutation(len(self.order)), 0
        ids = self.order[self.position : self.position + size]
        self.position += size
        self.samples_digest = hashlib.sha256(self.samples_digest.encode() + ids.tobytes()).hexdigest()
        return ids


def layer_shapes(inputs: int, hidden: int) -> list[tuple[int, int]]:
    """Return the two weight matrices' shapes; the extra row of each is the bias."""
    return [(inputs + 1, hidden), (hidden + 1, CLASSES)]


def layers(weights: np.ndarray, inputs: int, hidden: int) -> list[np.ndarray]:
    """Return the matrices as views of the one flat vector."""
    first, second = layer_shapes(inputs, hidden)
    cut = first[0] * first[1]
    return [weights[:cut].reshape(first), weights[cut:].reshape(second)]


def with_bias(rows: np.ndarray) -> np.ndarray:
    """Append a column of ones."""
    return np.hstack([rows, np.ones((len(rows), 1))])


def forward(weights: np.ndarray, images: np.ndarray, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden activations and the class probabilities."""
    first, second = layers(weights, images.shape[1], hidden)
    active = np.maximum(with_bias(images) @ first, 0)
    scores = with_bias(active) @ second
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return active, scores / scores.sum(axis=1, keepdims=True)


def loss_and_gradient(
    weights: np.ndarray, images: np.ndarray, labels: np.ndarray, hidden: int
) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy and its gradient by the flat weights."""
    active, chances = forward(weights, images, hidden)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels] + 1e-300).mean())
    chances[rows, labels] -= 1
    chances /= len(labels)
    _, second = layers(weights, images.shape[1], hidden)
    back = (chances @ second[:-1].T) * (active > 0)
    gradients = [with_bias(images).T @ back, with_bias(active).T @ chances]
    return loss, np.concatenate([gradient.ravel() for gradient in gradients])


def train_step(training: Training, data: Digits, options: Options) -> float:
    """Take one Adam step and return the batch's loss."""
    ids = training.next_batch(options.batch_size)
    loss, gradient = loss_and_gradient(training.weights, data.images[ids], data.labels[ids], options.hidden)
    training.step += 1
    training.first_moment += (1 - BETA1) * (gradient - training.first_moment)
    training.second_moment += (1 - BETA2) * (gradient**2 - training.second_moment)
    mean = training.first_moment / (1 - BETA1**training.step)
    spread = np.sqrt(training.second_moment / (1 - BETA2**training.step))
    training.weights -= options.learning_rate * mean / (spread + EPSILON)
    return loss


def accuracy(weights: np.ndarray, data: Digits, hidden: int) -> float:
    """Return the share of test images that are recognised."""
    _, chances = forward(weights, data.test_images, hidden)
    return float((chances.argmax(axis=1) == data.test_labels).mean())


def save(training: Training, folder: Path, keep: int) -> Path:
    """Write ``checkpoint-<step>``, complete or not at all, and return it."""
    final = folder / f"checkpoint-{training.step}"
    partial = folder / f"{final.name}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    np.save(partial / "weights.npy", training.weights)
    np.savez(
        partial / "optimizer.npz",
        first_moment=training.first_moment,
        second_moment=training.second_moment,
        order=training.order,
    )
    (partial / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in training.log))
    # Last, so that a checkpoint with a state has everything else.
    (partial / "state.json").write_text(json.dumps(state_of(training)))
    for path in [*partial.iterdir(), partial]:
        sync(path)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync(folder)
    rotate(folder, keep)
    return final


def state_of(training: Training) -> dict[str, Any]:
    """Return what of a training is neither weights nor moments nor log."""
    return {
        "step": training.step,
        "position": training.position,
        "samples_digest": training.samples_digest,
        "random": training.random.bit_generator.state,
    }


def sync(path: Path) -> None:
    """Make a file or directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; 1000 is newer than 999."""
    found = [
        (int(match[1]), path)
        for path in folder.glob("checkpoint-*")
        if (match := CHECKPOINT.fullmatch(path.name)) and (path / "state.json").is_file()
    ]
    return [path for _, path in sorted(found)]


def rotate(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; 0 keeps all."""
    for path in complete_checkpoints(folder)[:-keep] if keep else []:
        shutil.rmtree(path)


def load(path: Path) -> Training:
    """Read a checkpoint back, to the bit."""
    state = json.loads((path / "state.json").read_text())
    random = np.random.Generator(np.random.PCG64())
    random.bit_generator.state = state["random"]
    with np.load(path / "optimizer.npz") as saved:
        moments = (saved["first_moment"], saved["second_moment"])
        order = saved["order"]
    log = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    weights = np.load(path / "weights.npy")
    place = (state["position"], state["step"], state["samples_digest"])
    return Training(weights, *moments, random, order, *place, log)


def resume_or_start(folder: Path, options: Options, data: Digits) -> Training:
    """Return the training at its newest complete checkpoint, or a fresh one."""
    if found := complete_checkpoints(folder):
        return load(found[-1])
    return Training.fresh(options, data.images.shape[1], len(data.images))


def say(**facts: Any) -> None:
    """Print one line of JSON at once."""
    print(json.dumps(facts), flush=True)


def report_metrics(metrics: dict[str, float]) -> None:
    """Leave the metrics where whoever commits the checkpoint looks for them."""
    if target := os.environ.get("RESUME_METRICS_FILE"):
        partial = Path(f"{target}.tmp")
        partial.write_text(json.dumps(metrics))
        partial.replace(target)


class Notice:
    """Whether the machine is about to go: SIGTERM was seen or the notice file is there."""

    def __init__(self) -> None:
        self._signalled = False
        file = os.environ.get("RESUME_NOTICE_FILE")
        self._file = Path(file) if file else None
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signalled = True

    def __bool__(self) -> bool:
        return self._signalled or (self._file is not None and self._file.exists())


def run(options: Options, folder: Path) -> None:
    """Train to the last step, or to the first step boundary after a notice."""
    notice, data = Notice(), Digits.load()
    training = resume_or_start(folder, options, data)
    attempt = int(os.environ.get("RESUME_ATTEMPT") or 0)
    say(event="start", attempt=attempt, step=training.step, steps=options.steps, time=time.time())
    stopping = bool(notice)
    while training.step < options.steps and not stopping:
        loss = train_step(training, data, options)
        training.log.append({"step": training.step, "loss": loss, "attempt": attempt})
        say(step=training.step, loss=loss, attempt=attempt, time=time.time())
        time.sleep(options.step_seconds)
        # Asked once a step, so that a notice never falls between "save?" and "go on?".
        stopping = bool(notice)
        if training.step == options.fail_after:
            raise SystemExit(f"failing after step {training.step}, as asked")
        if stopping or training.step % options.save_every == 0 or training.step == options.steps:
            checkpoint(training, folder, data, options, loss)
    if training.step < options.steps:
        say(event="stopped", attempt=attempt, step=training.step, time=time.time())
    else:
        finish(training, folder, data, options)


def checkpoint(training: Training, folder: Path, data: Digits, options: Options, loss: float) -> None:
    """Report the metrics, then save, so that the metrics belong to the checkpoint."""
    score = accuracy(training.weights, data, options.hidden)
    report_metrics({"loss": loss, "accuracy": score})
    path = save(training, folder, options.keep)
    say(event="saved", step=training.step, path=path.name, accuracy=score)


def finish(training: Training, folder: Path, data: Digits, options: Options) -> None:
    """Print the digest of the final weights as they lie in the last checkpoint."""
    weights = folder / f"checkpoint-{training.step}" / "weights.npy"
    say(
        event="finished",
        step=training.step,
        accuracy=accuracy(training.weights, data, options.hidden),
        sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
        samples=training.samples_digest,
        time=time.time(),
    )


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps in all")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="pause after each step, to watch it")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=96, help="width of the hidden layer")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--keep", type=int, default=0, help="newest local checkpoints to keep; 0 keeps all")
    parser.add_argument("--fail-after", type=int, default=0, help="step after which to fail; 0 for never")
    return Options(**vars(parser.parse_args(arguments)))


def main() -> None:
    """Train in ``RESUME_DIR``, or in ``./checkpoints`` without it."""
    folder = Path(os.environ.get("RESUME_DIR") or "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    run(parse(), folder)


if __name__ == "__main__":
    main()
