"""Which checkpoints on disk are complete, and what their steps are."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.runtime.formats import Format, Found, format_named
from airflow_resume_provider.runtime.formats.dcp import DcpFormat
from airflow_resume_provider.runtime.formats.evidence import is_open_for_writing, whole
from airflow_resume_provider.runtime.formats.marian import REQUIRED
from airflow_resume_provider.runtime.formats.names import is_temporary, step_in


def put(path: Path, data: bytes | str = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def safetensors(size: int = 16) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def huggingface(root: Path, step: int, **replaced: bytes | None) -> Path:
    files: dict[str, bytes | None] = {
        "model.safetensors": safetensors(),
        "optimizer.pt": zipped(data=b"1"),
        "rng_state.pth": zipped(data=b"1"),
        "trainer_state.json": json.dumps({"global_step": step, "log_history": [{"loss": 0.5}]}).encode(),
    }
    files.update({name.replace("__", "."): data for name, data in replaced.items()})
    for name, data in files.items():
        if data is not None:
            put(root / f"checkpoint-{step}" / name, data)
    return root / f"checkpoint-{step}"


def steps(name: str, root: Path) -> list[int]:
    return [found.step for found in format_named(name).find(root)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("model_2048000_steps.zip", 2048000),
        ("epoch=3-step=400.ckpt", 400),
        ("epoch-12", 12),
        ("00000007", 7),
        ("latest.weights.h5", None),
        ("step_10_rank_3.pt", 10),
        ("last.ckpt", None),
    ],
)
def test_the_step_is_the_number_at_the_word_step_or_the_last_one(name: str, step: int | None) -> None:
    """Numbers anywhere in a name are found; a suffix such as .h5 carries none."""
    assert step_in(name) == step


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-12.tmp",
        "tmp-checkpoint-50",
        "checkpoint-5.partial",
        "weights.bin.part",
        "7.orbax-checkpoint-tmp-123",
        ".model.pt.swp",
        "model.pt~",
        "300-tmp",
        "x.incomplete",
    ],
)
def test_temporary_names_are_known(name: str) -> None:
    """A name that a writer will rename is never taken."""
    assert is_temporary(name)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-12",
        "template.pt",
        "department.bin",
        "attempt-3",
        "partition-1",
        "part-00001",
        "x_part_1.bin",
    ],
)
def test_ordinary_names_are_not_temporary(name: str) -> None:
    """A word that merely contains "tmp" or "part" is an ordinary name."""
    assert not is_temporary(name)


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_truncated_files_are_not_whole(tmp_path: Path, cut: int) -> None:
    """A safetensors file, a zip archive and JSON that lost their ends are recognised as cut."""
    for name, data in {
        "a.safetensors": safetensors(64),
        "a.npz": zipped(a=b"abcdefgh" * 20),
        "a.json": b'{"a": "bcdefghijklmnopqrstuvwxyz"}',
    }.items():
        assert whole(put(tmp_path / name, data))
        assert not whole(put(tmp_path / f"cut-{cut}-{name}", data[:-cut])), name


def test_an_hdf5_file_says_where_it_ends(tmp_path: Path) -> None:
    """A superblock that reaches beyond the file's length means truncated (keras-team/keras#20465)."""
    block = b"\x89HDF\r\n\x1a\n" + bytes([2, 8, 8, 0]) + struct.pack("<QQQQ", 0, 2**64 - 1, 100, 48)
    assert whole(put(tmp_path / "a.h5", block + bytes(100 - len(block))))
    assert not whole(put(tmp_path / "b.h5", block + bytes(99 - len(block))))


def test_an_open_file_is_seen(tmp_path: Path) -> None:
    """A file that a process still holds open for writing is told from one that is only read."""
    path = put(tmp_path / "a")
    with path.open("ab"):
        assert is_open_for_writing([path])
    with path.open("rb"):
        assert not is_open_for_writing([path])


def test_huggingface_takes_no_directory_by_its_name(tmp_path: Path) -> None:
    """checkpoint-200 without trainer_state.json is passed over for 100 (transformers#35782)."""
    huggingface(tmp_path, 100)
    huggingface(tmp_path, 200, trainer_state__json=None)
    assert steps("huggingface", tmp_path) == [100]


def test_huggingface_compares_numbers(tmp_path: Path) -> None:
    """10000 comes after 9900, whatever the alphabet says (transformers#27138)."""
    for step in (9900, 10000, 900):
        huggingface(tmp_path, step)
    assert steps("huggingface", tmp_path) == [900, 9900, 10000]


def test_huggingface_wants_whole_weights(tmp_path: Path) -> None:
    """A safetensors file shorter than its header says makes the checkpoint incomplete (speculators#739)."""
    huggingface(tmp_path, 6)
    huggingface(tmp_path, 7, model__safetensors=safetensors()[:-4])
    assert steps("huggingface", tmp_path) == [6]


def test_huggingface_wants_every_shard_of_the_index(tmp_path: Path) -> None:
    """A shard that the index names and that is not there makes the checkpoint incomplete."""
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    path = huggingface(tmp_path, 1, **{"model.safetensors.index.json": index})
    put(path / "model-1.safetensors", safetensors())
    assert steps("huggingface", tmp_path) == []
    put(path / "model-2.safetensors", safetensors())
    assert steps("huggingface", tmp_path) == [1]


def test_huggingface_wants_the_random_state_of_every_rank(tmp_path: Path) -> None:
    """rng_state_2 without rng_state_1 means that a rank has not written yet."""
    path = huggingface(tmp_path, 1, rng_state__pth=None)
    put(path / "rng_state_0.pth", zipped(a=b"1"))
    put(path / "rng_state_2.pth", zipped(a=b"1"))
    assert steps("huggingface", tmp_path) == []
    put(path / "rng_state_1.pth", zipped(a=b"1"))
    assert format_named("huggingface").find(tmp_path)[0].world_size == 3


def test_huggingface_brings_the_best_checkpoint_along(tmp_path: Path) -> None:
    """`load_best_model_at_end` finds its best checkpoint after a preemption."""
    huggingface(tmp_path, 100)
    state = {"global_step": 200, "best_model_checkpoint": "/elsewhere/out/checkpoint-100", "best_metric": 0.9}
    huggingface(tmp_path, 200, trainer_state__json=json.dumps(state).encode())
    newest = format_named("huggingface").find(tmp_path)[-1]
    assert "checkpoint-100/model.safetensors" in newest.files
    assert newest.metrics["best_metric"] == 0.9


def test_a_renamed_directory_is_taken_at_once(tmp_path: Path) -> None:
    """A rename is the trainer's word that it is done; writing in place must settle first."""
    put(tmp_path / "checkpoint-1.tmp" / "weights.npz", zipped(a=b"1"))
    time.sleep(0.02)  # the clock that stamps files ticks every few milliseconds
    (tmp_path / "checkpoint-1.tmp").rename(tmp_path / "checkpoint-1")
    put(tmp_path / "checkpoint-2" / "weights.npz", zipped(a=b"1"))
    assert [found.settled for found in format_named("directory").find(tmp_path)] == [True, False]


def in_one_tick(path: Path) -> Path:
    """Give a directory the times of one that was written and renamed between two ticks of the clock."""
    os.utime(path)
    assert path.stat().st_ctime_ns == path.stat().st_mtime_ns
    return path


def test_auto_knows_a_rename_between_two_ticks_by_the_others(tmp_path: Path) -> None:
    """The clock that stamps files ticks every few milliseconds: not every rename leaves a trace."""
    auto = format_named("auto")
    put(tmp_path / "at-5.tmp" / "state.json", "{}")
    put(tmp_path / "runs-5" / "events.json", "{}")
    os.utime(tmp_path / "at-5.tmp", (1, 1))  # long before its rename
    (tmp_path / "at-5.tmp").rename(tmp_path / "at-5")
    in_one_tick(put(tmp_path / "at-10" / "state.json", "{}").parent)
    assert [(each.step, each.settled, each.doubtful) for each in auto.find(tmp_path)] == [
        (5, True, False),
        (10, False, False),
    ]


def test_auto_doubts_what_is_only_called_a_checkpoint(tmp_path: Path) -> None:
    """Not so a checkpoint with weights, of whatever format, which takes the place of the doubtful one."""
    auto = format_named("auto")
    in_one_tick(put(tmp_path / "checkpoint-20" / "state.json", "{}").parent)
    assert [(each.step, each.doubtful) for each in auto.find(tmp_path)] == [(20, True)]
    assert auto.label == "directory"
    put(tmp_path / "model_10.pt", zipped(a=b"1"))
    assert [(each.step, each.doubtful) for each in auto.find(tmp_path)] == [(10, False)]


def test_auto_takes_nothing_doubtful_beside_a_checkpoint(tmp_path: Path) -> None:
    """Results and samples of a checkpoint are called like it, and must never take its place."""
    auto = format_named("auto")
    put(tmp_path / "epoch_10" / "model.pt", zipped(a=b"1"))
    in_one_tick(put(tmp_path / "evals" / "checkpoint_5000" / "results.json", "{}").parent)
    assert [each.step for each in auto.find(tmp_path)] == [10]
    (tmp_path / "epoch_10" / "model.pt").unlink()  # rotated away
    assert list(auto.find(tmp_path)) == []


def test_where_checkpoints_are_marked_one_without_a_mark_is_not_complete(tmp_path: Path) -> None:
    """Other ranks may still be at work when nothing has changed for a while."""
    auto = format_named("auto")
    for name in ("rank0.dat", "rank1.dat", "_SUCCESS"):
        put(tmp_path / "state_1" / name)
    put(tmp_path / "state_2" / "rank0.dat")
    assert [each.step for each in auto.find(tmp_path)] == [1]


def test_a_bare_number_is_like_no_other(tmp_path: Path) -> None:
    """One directory called 1 was renamed; what is called 2 may be anything."""
    auto = format_named("auto")
    put(tmp_path / "tmp" / "w")
    os.utime(tmp_path / "tmp", (1, 1))  # long before its rename
    (tmp_path / "tmp").rename(tmp_path / "1")
    in_one_tick(put(tmp_path / "2" / "w").parent)
    assert [each.step for each in auto.find(tmp_path)] == [1]


def test_a_marker_says_that_a_directory_is_complete(tmp_path: Path) -> None:
    """`resume.json` may also say the step."""
    put(tmp_path / "ckpt-1" / "weights.bin")
    put(tmp_path / "ckpt-1" / "resume.json", '{"step": 4711}')
    found = format_named("directory").find(tmp_path)[0]
    assert (found.settled, found.step) == (True, 4711)


def test_a_directory_with_a_temporary_file_in_it_is_not_complete(tmp_path: Path) -> None:
    """Somebody is about to rename that file."""
    put(tmp_path / "step-1" / "weights.bin.tmp")
    put(tmp_path / "step-1" / "resume.json", "{}")
    assert steps("directory", tmp_path) == []


def test_single_files_are_grouped_by_step_and_compared_as_numbers(tmp_path: Path) -> None:
    """model_2048000_steps is newer than model_1024000_steps, with its companion (IsaacLab#3933)."""
    for name in ("model_2048000_steps.zip", "model_1024000_steps.zip", "norm_2048000_steps.pkl", "train.log"):
        put(tmp_path / name, zipped(a=b"1"))
    found = format_named("files").find(tmp_path)
    assert [each.step for each in found] == [1024000, 2048000]
    assert found[-1].files == ("model_2048000_steps.zip", "norm_2048000_steps.pkl")


def test_unnumbered_files_are_one_checkpoint_that_must_settle(tmp_path: Path) -> None:
    """A trainer that writes over one file is served by copies under new names (revbayes#930)."""
    put(tmp_path / "model.bin")
    found = format_named("files").find(tmp_path)
    assert [(each.files, each.settled) for each in found] == [(("model.bin",), False)]


def marian(root: Path, *, without: str = "", vocabulary: tuple[str, ...] = ("vocab.spm",)) -> None:
    for name in {*REQUIRED, *vocabulary} - {without}:
        put(root / name, zipped(a=b"1") if name.endswith(".npz") else b"text")
    if without != "model.npz.progress.yml":
        put(root / "model.npz.progress.yml", "epochs: 2\nbatches: 5000\n")


def test_marian_wants_seventeen_names_and_vocabularies(tmp_path: Path) -> None:
    """Seeds M3: the seventeen fixed names and one shared or two vocabularies; more names are allowed."""
    assert len(REQUIRED) == 17
    marian(tmp_path)
    put(tmp_path / "extra.bin")
    assert steps("marian", tmp_path) == [5000]


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_marian_without_any_one_name_is_not_resumable(tmp_path: Path, missing: str) -> None:
    """Each of the seventeen is required."""
    marian(tmp_path, without=missing)
    assert steps("marian", tmp_path) == []


def test_marian_takes_two_vocabularies_and_not_one(tmp_path: Path) -> None:
    """vocab.ru.spm alone is half a set."""
    marian(tmp_path, vocabulary=("vocab.ru.spm",))
    assert steps("marian", tmp_path) == []
    put(tmp_path / "vocab.en.spm")
    assert steps("marian", tmp_path) == [5000]


def test_marian_is_told_to_continue_only_when_something_was_restored() -> None:
    """Seeds M7: "continue" goes over the user's mode; a fresh start keeps the user's exactly."""
    marian_format = format_named("marian")
    assert marian_format.environment(Found(".", 1, ())) == {"PRETRAINED_MODEL_MODE": "continue"}
    assert marian_format.environment(None) == {}


def test_keras_does_not_mix_new_weights_with_old_metadata(tmp_path: Path) -> None:
    """Weights newer than the metadata are a save that is still going on."""
    block = b"\x89HDF\r\n\x1a\n" + bytes([2, 8, 8, 0]) + struct.pack("<QQQQ", 0, 2**64 - 1, 48, 48) + bytes(4)
    put(tmp_path / "training_metadata.json", '{"epoch": 3, "batch": 0}')
    weights = put(tmp_path / "latest.weights.h5", block)
    os.utime(weights, ns=(2**62, 2**62))
    assert steps("keras", tmp_path) == []
    os.utime(weights, ns=(0, 0))
    assert steps("keras", tmp_path) == [3]


def test_orbax_wants_the_time_of_the_commit(tmp_path: Path) -> None:
    """A step whose metadata has no commit timestamp is being written."""
    put(tmp_path / "5" / "_CHECKPOINT_METADATA", '{"commit_timestamp_nsecs": null}')
    put(tmp_path / "5" / "default" / "d" / "0")
    put(tmp_path / "6.orbax-checkpoint-tmp-1" / "_CHECKPOINT_METADATA", "{}")
    assert steps("orbax", tmp_path) == []
    put(tmp_path / "5" / "_CHECKPOINT_METADATA", '{"commit_timestamp_nsecs": 17}')
    assert steps("orbax", tmp_path) == [5]


def test_auto_recognises_the_framework_before_its_checkpoint_is_complete(tmp_path: Path) -> None:
    """A half-written Trainer checkpoint is not taken for a generic directory."""
    auto = format_named("auto")
    path = huggingface(tmp_path, 3, trainer_state__json=None)
    assert (auto.find(tmp_path), auto.label) == ([], "huggingface")
    put(path / "trainer_state.json", '{"global_step": 3}')
    assert [found.step for found in auto.find(tmp_path)] == [3]


def test_auto_takes_no_logs_settings_or_vocabularies_for_a_checkpoint(tmp_path: Path) -> None:
    """What frameworks write before their first checkpoint is not one: the next attempt would load it."""
    for name in ("vocab.en.spm", "config.yaml", "lightning_logs/version_0/hparams.yaml", "runs/12/events.0"):
        put(tmp_path / name)
    auto = format_named("auto")
    assert list(auto.find(tmp_path)) == []
    put(tmp_path / "model_10.pt", zipped(a=b"1"))
    assert [found.step for found in auto.find(tmp_path)] == [10]


def test_auto_finds_nothing_in_an_empty_or_absent_directory(tmp_path: Path) -> None:
    """Nothing there is an answer, not an error."""
    assert list(format_named("auto").find(tmp_path / "absent")) == []


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    """The message names the parameter and what would be accepted."""
    with pytest.raises(InvalidInput, match="huggingface") as caught:
        format_named("hugginface")
    assert caught.value.parameter == "format"


class OwnFormat(Format):
    """A format that a user wrote."""

    name = "own"

    def find(self, directory: Path) -> list[Found]:
        return []


def test_a_format_is_added_through_an_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that declares the entry point is found by its name."""
    put(tmp_path / "own-1.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    entry = f"[airflow_resume_provider.formats]\nown = {__name__}:OwnFormat\n"
    put(tmp_path / "own-1.dist-info" / "entry_points.txt", entry)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert format_named("own").name == "own"


def test_shards_on_other_nodes_disks_are_whole_where_they_are(tmp_path, monkeypatch):
    """With several nodes each has only its own shards, and the metadata is written after all of them."""
    made = tmp_path / "step-5"
    made.mkdir()
    (made / "__0_0.distcp").write_bytes(b"0123456789")
    rows = [SimpleNamespace(relative_path=f"__{rank}_0.distcp", offset=0, length=10) for rank in (0, 1)]
    (made / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data=dict(enumerate(rows)))))
    assert DcpFormat().find(tmp_path) == []
    monkeypatch.setenv("BATCH_NODE_COUNT", "2")
    [found] = DcpFormat().find(tmp_path)
    assert found.files == ("step-5/.metadata", "step-5/__0_0.distcp")
    (made / "__0_0.distcp").write_bytes(b"012")
    assert DcpFormat().find(tmp_path) == []
    (made / "__0_0.distcp").write_bytes(b"0123456789")
    monkeypatch.setenv("RESUME_SHARED_DIR", "1")
    assert DcpFormat().find(tmp_path) == []
