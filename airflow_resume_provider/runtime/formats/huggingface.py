"""Hugging Face Trainer: `checkpoint-<step>/`, of which `trainer_state.json` is written last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_resume_provider.runtime.formats.evidence import all_whole, read_json
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import directories, files_below, is_temporary

_NAME = re.compile(r"(?:^|/)checkpoint-(\d+)$")
_STATE = "trainer_state.json"
# Written before its state; an `optimizer.pt` is any trainer's.
_TRACES = (_STATE, "training_args.bin", "rng_state.pth", "rng_state_0.pth")
_RNG = re.compile(r"rng_state_(\d+)\.pth$")


class HuggingFaceFormat(Format):
    """Resume with `trainer.train(resume_from_checkpoint=os.environ["RESUME_CHECKPOINT"] or None)`.

    A checkpoint is elastic: the model is whole in it, and random states of missing ranks are
    made anew by the Trainer with a warning.
    """

    name = "huggingface"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the `checkpoint-N` directories whose state, weights and shards are all there."""
        found = [each for path in _named(directory) if (each := _complete(directory, path))]
        return sorted(found, key=lambda each: each.step)

    def recognises(self, directory: Path) -> bool:
        """The Trainer has begun to write one."""
        return any((directory / path / name).exists() for path in _named(directory) for name in _TRACES)


def _named(directory: Path) -> Iterator[str]:
    return (path for path in directories(directory) if _NAME.search(path))


def _complete(directory: Path, path: str) -> Found | None:
    state = read_json(directory / path / _STATE)
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        return None
    files = files_below(directory / path, f"{path}/")
    if any(is_temporary(name.rpartition("/")[2]) for name in files) or not all_whole(directory, files):
        return None
    ranks = {int(match[1]) for name in files if (match := _RNG.search(name))}
    if ranks != set(range(len(ranks))) or not _has_all_shards(directory, path, files):
        return None
    best = _best(directory, path, state)
    return Found(
        path, state["global_step"], files + best, metrics=_metrics(state), world_size=len(ranks) or 1
    )


def _has_all_shards(directory: Path, path: str, files: Sequence[str]) -> bool:
    """Every shard that an index names must be there."""
    for name in files:
        if name.endswith((".safetensors.index.json", ".bin.index.json")):
            index = read_json(directory / name)
            folder = name.rpartition("/")[0]
            shards = set(index.get("weight_map", {}).values()) if isinstance(index, dict) else {""}
            if not all(f"{folder}/{shard}" in files for shard in shards):
                return False
    return True


def _best(directory: Path, path: str, state: Mapping[str, Any]) -> tuple[str, ...]:
    """The best checkpoint so far belongs to it: `load_best_model_at_end` wants it at the end."""
    best = Path(str(state.get("best_model_checkpoint") or "")).name
    beside = f"{path.rpartition('/')[0]}/{best}".lstrip("/")
    if not best or beside == path:
        return ()
    return files_below(directory / beside, f"{beside}/")


def _metrics(state: Mapping[str, Any]) -> dict[str, Any]:
    """The last logged value of each number, and the best one."""
    metrics: dict[str, Any] = {}
    for entry in state.get("log_history") or []:
        metrics.update({name: value for name, value in entry.items() if isinstance(value, int | float)})
    if state.get("best_metric") is not None:
        metrics["best_metric"] = state["best_metric"]
    return metrics
