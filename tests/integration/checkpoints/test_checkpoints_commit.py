"""Committing: all or nothing, once, by one writer, on both kinds of store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import DisturbedServer, Raw, eventually, read_tree, resume_run, write_tree

from airflow_resume_provider.checkpoints import (
    AttemptRecord,
    EndRecord,
    IntentRecord,
    Lineage,
    StoreOptions,
    TrainingRecord,
)
from airflow_resume_provider.checkpoints import claims as claims_module
from airflow_resume_provider.checkpoints import commit as commit_module
from airflow_resume_provider.checkpoints.upload import UploadStopped
from airflow_resume_provider.checkpoints.writer import Writer
from airflow_resume_provider.errors import (
    CommitConflict,
    ExitCode,
    FormatError,
    InvalidInput,
    Superseded,
    UploadFailed,
)
from airflow_resume_provider.testing.gcs import Fault


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {"model.bin": b"m" * 1000, "s/opt.bin": b"o" * 10})


def manifests(raw: Raw) -> list[str]:
    return sorted(name for name in raw.names() if name.endswith("/manifest.json"))


def test_layout_is_the_documented_one(lineage: Lineage, raw: Raw, source: Path) -> None:
    """Files lie in their natural paths, so that a person can copy and load them; the manifest names them."""
    reference = lineage.commit(source, attempt=1, step=7, metrics={"loss": 0.5}, metadata={"a": [1]})
    place = "attempts/0001/checkpoints/000000"
    assert reference.uri == f"{raw.uri}/{place}"
    assert raw.get(f"{place}/model.bin") == b"m" * 1000
    manifest = json.loads(raw.get(f"{place}/manifest.json"))
    assert manifest["training_id"] == lineage.ensure_training().training_id
    assert (manifest["schema"], manifest["attempt"], manifest["index"], manifest["step"]) == (1, 1, 0, 7)
    assert manifest["metrics"] == {"loss": 0.5}
    assert manifest["total_bytes"] == 1010
    assert [sorted(entry) for entry in manifest["files"]] == [["crc32c", "path", "size"]] * 2


def test_index_is_monotone_over_attempts(lineage: Lineage, source: Path) -> None:
    """R6: the index grows over failures and attempts, by whichever process commits."""
    got = [
        Lineage.open(lineage.uri).commit(source, attempt=attempt, step=step).index
        for step, attempt in enumerate([1, 1, 2, 2, 5])
    ]
    assert got == [0, 1, 2, 3, 4]


def test_repeated_commit_is_one(lineage: Lineage, raw: Raw, source: Path) -> None:
    """The same contents at the same step again return the first reference; other contents do not."""
    first = lineage.commit(source, attempt=1, step=7)
    assert Lineage.open(lineage.uri).commit(source, attempt=1, step=7) == first
    assert len(manifests(raw)) == 1
    (source / "model.bin").write_bytes(b"n" * 1000)
    assert lineage.commit(source, attempt=1, step=7).index == 1


def test_only_the_named_files(lineage: Lineage, source: Path, tmp_path: Path) -> None:
    """`files` commits some of a directory, in their natural paths."""
    lineage.commit(source, attempt=1, step=1, files=["s"])
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"s/opt.bin": b"o" * 10}


def test_links_are_committed_as_what_they_point_to(lineage: Lineage, source: Path, tmp_path: Path) -> None:
    """A link such as `last.ckpt` becomes a file with the same contents."""
    (source / "last").symlink_to("model.bin")
    (source / "dir").symlink_to("s")
    lineage.commit(source, attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    tree = read_tree(tmp_path / "out")
    assert tree["last"] == tree["model.bin"]
    assert tree["dir/opt.bin"] == tree["s/opt.bin"]


def test_what_is_no_file_is_refused(lineage: Lineage, raw: Raw, source: Path) -> None:
    """A pipe, a dangling link and a link into itself are named errors, and nothing is committed."""
    for spoil in (
        lambda: os.mkfifo(source / "bad"),
        lambda: (source / "bad").symlink_to("nowhere"),
        lambda: (source / "bad").symlink_to("."),
    ):
        spoil()
        with pytest.raises(FormatError):
            lineage.commit(source, attempt=1, step=1)
        (source / "bad").unlink()
    assert manifests(raw) == []


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"attempt": 0}, "attempt"),
        ({"step": -1}, "step"),
        ({"step": 1.5}, "step"),
        ({"world_size": 0}, "world_size"),
        ({"metrics": {"a": object()}}, "metrics"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
    ],
)
def test_bad_input_is_named(
    lineage: Lineage, source: Path, arguments: dict[str, object], parameter: str
) -> None:
    """What can never be committed is refused with the parameter's name before anything is written."""
    with pytest.raises(InvalidInput) as caught:
        lineage.commit(source, **{"attempt": 1, "step": 1, **arguments})  # type: ignore[arg-type]
    assert caught.value.parameter == parameter


def test_diverged_metrics_do_not_lose_the_checkpoint(lineage: Lineage, source: Path) -> None:
    """NaN is no JSON, and no reason to lose a checkpoint: it is recorded by name."""
    assert lineage.commit(source, attempt=1, step=1, metrics={"a": {"loss": float("nan")}}).metrics == {
        "a": {"loss": "NaN"}
    }


@pytest.mark.parametrize("record", ["intent", "attempt", "checkpoint"])
def test_superseded_attempts_stop(lineage: Lineage, raw: Raw, source: Path, record: str) -> None:
    """Any trace of a higher attempt fences a lower one, which then commits nothing."""
    if record == "intent":
        lineage.write_intent(IntentRecord(attempt=3))
    elif record == "attempt":
        lineage.begin_attempt(AttemptRecord(attempt=3))
    else:
        raw.checkpoint(3, 0, {"a": b"a"})
    before = manifests(raw)
    with pytest.raises(Superseded) as caught:
        lineage.commit(source, attempt=2, step=1)
    assert (caught.value.attempt, caught.value.by) == (2, 3)
    with pytest.raises(Superseded):
        lineage.begin_attempt(AttemptRecord(attempt=2))
    assert manifests(raw) == before


def test_superseded_while_uploading(gs_uri: str, source: Path) -> None:
    """An attempt that is superseded while its bytes go up does not commit them."""
    lineage = Lineage.open(gs_uri)

    def supersede(_: object) -> None:
        Lineage.open(gs_uri).write_intent(IntentRecord(attempt=2))

    with pytest.raises(Superseded):
        lineage.commit(source, attempt=1, step=1, progress=supersede)
    assert manifests(Raw(gs_uri, os.environ["STORAGE_EMULATOR_HOST"])) == []


def test_records_are_written_once(lineage: Lineage) -> None:
    """Each record is create-only: the second writer gets what the first one wrote."""
    first = lineage.ensure_training(TrainingRecord(training_id="one"))
    assert lineage.ensure_training(TrainingRecord(training_id="two")) == first == lineage.training()
    assert lineage.write_intent(IntentRecord(attempt=1, token="a")).token == "a"
    assert lineage.write_intent(IntentRecord(attempt=1, token="b")).token == "a"
    assert lineage.begin_attempt(AttemptRecord(attempt=1, writer="a")).writer == "a"
    assert lineage.begin_attempt(AttemptRecord(attempt=1, writer="b")).writer == "a"
    lineage.end_attempt(EndRecord(attempt=1, state="failed", exit_code=3))  # type: ignore[arg-type]
    lineage.end_attempt(EndRecord(attempt=1, state="finished", exit_code=0))  # type: ignore[arg-type]
    history = lineage.history()
    assert history.newest_attempt == 1
    assert history.attempts[0].end is not None
    assert history.attempts[0].end.exit_code == 3


def test_history_tells_what_happened(lineage: Lineage, raw: Raw, source: Path) -> None:
    """The history has all attempts with their records and committed checkpoints; junk is left out."""
    lineage.write_intent(IntentRecord(attempt=1))
    lineage.begin_attempt(AttemptRecord(attempt=1))
    reference = lineage.commit(source, attempt=1, step=1)
    raw.put("attempts/0001/checkpoints/000009/model.bin", b"no manifest")
    raw.put("attempts/0002/attempt.json", "not json")
    raw.put("attempts/junk", "x")
    history = Lineage.open(lineage.uri).history()
    assert [attempt.number for attempt in history.attempts] == [1, 2]
    assert history.attempts[0].checkpoints == (reference,)
    assert history.attempts[1].started is None


def test_identity_survives_a_lost_training_record(raw: Raw, source: Path) -> None:
    """Without training.json the existing manifests say whose lineage it is, so they stay usable."""
    raw.checkpoint(1, 0, {"a": b"a"}, training_id="theirs")
    Lineage.open(raw.uri).commit(source, attempt=2, step=1)
    choice = Lineage.open(raw.uri).choose(2)
    assert choice.reference is not None
    assert choice.reference.index == 0


def test_changed_while_uploading(lineage: Lineage, raw: Raw, source: Path) -> None:
    """A file that is written to while it goes up is never committed (wandb#1721)."""

    def change(_: object) -> None:
        (source / "model.bin").write_bytes(b"n" * 1000)

    with pytest.raises(UploadFailed, match="changed while"):
        lineage.commit(source, attempt=1, step=1, progress=change)
    assert manifests(raw) == []


def test_vanished_while_uploading(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """A checkpoint that the trainer rotates away while it goes up is a named error (neptune-client#1888)."""
    source = write_tree(tmp_path / "in", {f"{n:03d}": b"x" for n in range(100)})

    def rotate(_: object) -> None:
        (source / "099").unlink(missing_ok=True)

    with pytest.raises(UploadFailed):
        lineage.commit(source, attempt=1, step=1, progress=rotate)
    assert manifests(raw) == []


def test_stopped_upload_leaves_the_way_free(lineage: Lineage, source: Path) -> None:
    """An upload that is called off commits nothing, and the next one of the same process goes through."""
    with pytest.raises(UploadStopped):
        lineage.commit(source, attempt=1, step=1, should_stop=lambda: True)
    assert lineage.commit(source, attempt=1, step=2).step == 2


def test_large_file_in_parts(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> None:
    """A file larger than a part goes up in several, in order, and comes back the same (open_lm#279)."""
    data = os.urandom(17_000_001)
    lineage = Lineage.open(gs_uri, options=StoreOptions(part_bytes=5 << 20))
    lineage.commit(write_tree(tmp_path / "in", {"big": data}), attempt=1, step=1)
    assert server.count("PUT", "partNumber") == 4
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"big": data}


def test_bandwidth_is_capped(gs_uri: str, tmp_path: Path) -> None:
    """With a cap, an upload takes at least its bytes divided by the cap."""
    waits: list[float] = []
    source = write_tree(tmp_path / "in", {f"{n}": b"x" * 1000 for n in range(10)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_resume_provider.checkpoints.upload.time.sleep", waits.append)
        Lineage.open(gs_uri, options=StoreOptions(bandwidth=10_000)).commit(source, attempt=1, step=1)
    assert max(waits) > 0.5


# Writers with the same number.

RACE = """
import sys, time
from pathlib import Path
from airflow_resume_provider.runtime.cli import main
Path(sys.argv[1] + ".ready").touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
sys.exit(main(sys.argv[3:]))
"""


def race(uri: str, tmp_path: Path, sources: list[Path], step: int = 5) -> list[tuple[int, str]]:
    """Let processes commit at the same moment and return exit code and output of each."""
    go = tmp_path / f"go-{step}"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RACE,
                str(tmp_path / f"racer-{step}-{number}"),
                str(go),
                "commit",
                str(source),
                "--lineage",
                uri,
                "--attempt",
                "1",
                "--step",
                str(step),
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, source in enumerate(sources)
    ]
    for number in range(len(sources)):
        eventually((tmp_path / f"racer-{step}-{number}.ready").exists)
    go.touch()
    ended = [process.communicate(timeout=60) for process in processes]
    return [(process.returncode, out) for process, (out, _) in zip(processes, ended, strict=True)]


@pytest.mark.parametrize("round_", range(3))
def test_two_writers_with_one_number(
    uri: str, raw: Raw, tmp_path: Path, server: DisturbedServer, round_: int
) -> None:
    """Of processes that commit at once with the same number, exactly one does; the others say conflict."""
    sources = [write_tree(tmp_path / f"in-{n}", {"a": bytes([n]) * 400_000}) for n in range(3)]
    server.plan.add(Fault(bandwidth=400_000), method="PUT", path="000000%2Fa")
    ended = race(uri, tmp_path, sources)
    winners = [n for n, (code, _) in enumerate(ended) if code == 0]
    assert manifests(raw)
    # On a file system a commit is fast enough to be over before the next one begins.
    assert len(winners) == len(manifests(raw))
    assert all(code in (0, ExitCode.COMMIT_CONFLICT) for code, _ in ended)
    if uri.startswith("gs://"):
        assert len(winners) == 1
    restored = Lineage.open(uri).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert read_tree(tmp_path / "out")["a"] in [sources[n].joinpath("a").read_bytes() for n in winners]
    for winner in winners:
        assert json.loads(ended[winner][1])["total_bytes"] == 400_000


def test_two_writers_of_the_same(uri: str, raw: Raw, tmp_path: Path, server: DisturbedServer) -> None:
    """Processes that commit the same contents at the same step get the same reference."""
    sources = [write_tree(tmp_path / f"in-{n}", {"a": b"same" * 100_000}) for n in range(3)]
    server.plan.add(Fault(bandwidth=400_000), method="PUT", path="000000%2Fa")
    ended = race(uri, tmp_path, sources)
    assert [code for code, _ in ended] == [0, 0, 0]
    assert len({out for _, out in ended}) == 1
    assert len(manifests(raw)) == 1


def test_the_same_may_be_finished_between_the_look_and_the_claim(
    lineage: Lineage, raw: Raw, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process's files are there at the look, and its manifest at the claim: that is one commit."""
    first = lineage.commit(source, attempt=1, step=1)
    name = f"attempts/0001/checkpoints/{first.index:06d}/manifest.json"
    manifest = raw.get(name)
    raw.delete(name)

    def claim(*arguments: Any) -> claims_module.Claim:
        raw.put(name, manifest)
        return claims_module.claim_next(*arguments)

    monkeypatch.setattr(commit_module, "claim_next", claim)
    assert Lineage.open(lineage.uri).commit(source, attempt=1, step=1) == first
    assert len(manifests(raw)) == 1


def test_successive_processes_count_up(uri: str, source: Path) -> None:
    """Independent processes, one after the other, commit one checkpoint each."""
    indices = []
    for step in (1, 2):
        done = resume_run(
            "commit", str(source), "--lineage", uri, "--attempt", "1", "--step", str(step), "--json"
        )
        assert done.returncode == 0, done.stderr
        indices.append(json.loads(done.stdout)["index"])
    assert indices == [0, 1]


def test_dead_writer_blocks_nobody(gs_uri: str, gs_raw: Raw, tmp_path: Path, server: DisturbedServer) -> None:
    """What a killed writer leaves neither blocks the next one nor mixes into its checkpoint."""
    first = write_tree(tmp_path / "first", {"a": b"1" * 3_000_000, "leftover": b"l"})
    server.plan.add(Fault(bandwidth=500_000), method="PUT", path="%2Fa", times=1)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "airflow_resume_provider.runtime.cli", "commit", str(first)),
            *("--lineage", gs_uri, "--attempt", "1", "--step", "1"),
        ]
    )
    eventually(lambda: any(name.endswith("/leftover") for name in gs_raw.names()))
    process.send_signal(signal.SIGKILL)
    process.wait()
    second = write_tree(tmp_path / "second", {"a": b"2" * 10})
    reference = Lineage.open(gs_uri).commit(second, attempt=1, step=2)
    assert reference.index == 1
    restored = Lineage.open(gs_uri).restore(2, tmp_path / "out")
    assert restored.reference == reference
    assert read_tree(tmp_path / "out") == {"a": b"2" * 10}


def test_leftovers_without_a_claim_are_left_alone(lineage: Lineage, raw: Raw, source: Path) -> None:
    """Objects without manifest, from whatever tool, are neither overwritten nor committed."""
    raw.put("attempts/0001/checkpoints/000004/model.bin", b"junk")
    assert lineage.commit(source, attempt=1, step=1).index == 5
    assert raw.get("attempts/0001/checkpoints/000004/model.bin") == b"junk"


def elsewhere(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Let this process pass for one on another machine."""
    there = Writer(host, os.getpid(), "1")
    monkeypatch.setattr(Writer, "current", classmethod(lambda cls: there))
    monkeypatch.setattr("airflow_resume_provider.checkpoints.writer._host", lambda: host)


def test_writer_on_another_machine_is_fenced(
    uri: str, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is under way elsewhere with the same number can no longer finish once we have begun."""
    ours = write_tree(tmp_path / "ours", {"a": b"ours"})
    theirs = write_tree(tmp_path / "theirs", {"a": b"theirs"})
    here: list[object] = []

    def take_over(_: object) -> None:
        if here:
            return
        with pytest.MonkeyPatch.context() as patch:
            elsewhere(patch, "machine two")
            patch.setattr(claims_module, "_settled", set())
            here.append(Lineage.open(uri).commit(ours, attempt=1, step=2))

    elsewhere(monkeypatch, "machine one")
    with pytest.raises(CommitConflict):
        Lineage.open(uri).commit(theirs, attempt=1, step=1, progress=take_over)
    restored = Lineage.open(uri).restore(2, tmp_path / "out")
    assert restored.reference == here[0]
    assert read_tree(tmp_path / "out") == {"a": b"ours"}


def test_lost_answer_of_the_manifest(gs_uri: str, source: Path, server: DisturbedServer) -> None:
    """When the answer to the manifest's write is lost, the second try finds the first one's work."""
    server.plan.add(Fault(after=0, reset=True), method="PUT", path="manifest", times=1)
    reference = Lineage.open(gs_uri).commit(source, attempt=1, step=1)
    assert reference.index == 0
    choice = Lineage.open(gs_uri).choose(2)
    assert choice.reference == reference


def test_threads_of_one_process_commit_one_at_a_time(lineage: Lineage, raw: Raw, tmp_path: Path) -> None:
    """Commits that overlap in one process do not mix: each either commits or reports a conflict."""
    outcomes: list[object] = []

    def go(number: int) -> None:
        source = write_tree(tmp_path / f"in-{number}", {"a": bytes([number]) * 10})
        try:
            outcomes.append(lineage.commit(source, attempt=1, step=number))
        except CommitConflict as error:
            outcomes.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [outcome for outcome in outcomes if not isinstance(outcome, CommitConflict)]
    assert len(outcomes) == 6
    assert len(won) == len(manifests(raw)) >= 1
    for name in manifests(raw):
        step = json.loads(raw.get(name))["step"]
        assert raw.get(re.sub("manifest.json$", "a", name)) == bytes([step]) * 10
