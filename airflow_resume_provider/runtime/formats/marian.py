"""Marian as Mozilla's translations train it: a fixed set of names, written over in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.formats.evidence import all_whole
from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.names import directories, files_below, is_temporary

_LOGS = ("opustrainer.log", "train.log", "valid.log", "devset.out")
#: All of these must be there (https://github.com/mozilla/translations, train_taskcluster.py).
REQUIRED = frozenset(
    {
        "config.opustrainer.yml",
        "config.opustrainer.yml.state",
        "devset.out",
        "model.npz",
        "model.npz.yml",
        "model.npz.decoder.yml",
        "model.npz.optimizer.npz",
        "model.npz.progress.yml",
        "opustrainer.log",
        "train.log",
        "valid.log",
        *(f"model.npz.best-{m}.npz" for m in ("bleu-detok", "ce-mean-words", "chrf")),
        *(f"model.npz.best-{m}.npz.decoder.yml" for m in ("bleu-detok", "ce-mean-words", "chrf")),
    }
)
_VOCABULARY = re.compile(r"vocab\.[A-Za-z_]+\.spm$")
_BATCHES = re.compile(r"^batches:\s*(\d+)", re.MULTILINE)


class MarianFormat(Format):
    """Marian continues by itself when `--model` lies where it was restored.

    Restoring sets the mode to "continue", over the user's own; on a fresh start the user's stays.
    """

    name = "marian"
    elastic = True

    def find(self, directory: Path) -> Sequence[Found]:
        """Return the model's directory when the whole set is there."""
        return [each for path in _models(directory) if (each := _complete(directory, path))]

    def recognises(self, directory: Path) -> bool:
        """Marian has begun to write a model."""
        return any(True for _ in _models(directory))

    def environment(self, restored: Found | None) -> Mapping[str, str]:
        """Return the mode of the translations pipeline, only when something was restored."""
        return {env.PRETRAINED_MODE: "continue"} if restored else {}


def _models(directory: Path) -> Iterator[str]:
    for path in (".", *directories(directory)):
        root = directory / path
        if (root / "model.npz").exists() and (root / "model.npz.progress.yml").exists():
            yield path


def has_required_set(names: frozenset[str]) -> bool:
    """Say whether `names` hold the seventeen fixed ones and the vocabularies: one shared, or two."""
    pair = [name for name in names if _VOCABULARY.match(name)]
    return names >= REQUIRED and ("vocab.spm" in names or len(pair) >= 2)


def _complete(directory: Path, path: str) -> Found | None:
    prefix = "" if path == "." else f"{path}/"
    names = frozenset(n for n in files_below(directory / path) if not any(map(is_temporary, n.split("/"))))
    files = tuple(sorted(f"{prefix}{name}" for name in names))
    if not has_required_set(names) or not all_whole(directory, files):
        return None
    progress = (directory / prefix / "model.npz.progress.yml").read_text(errors="replace")
    batches = _BATCHES.search(progress)
    logs = frozenset(f"{prefix}{name}" for name in names if name in _LOGS or name.endswith(".log"))
    return (
        Found(path, int(batches[1]), files, settled=False, in_place=True, appended=logs) if batches else None
    )
