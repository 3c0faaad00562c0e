"""What a training script may ask and say, inside `resume-run` and outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_resume_provider.runtime import Training, current
from tests.integration.runtime_world import World, until, world

ROOT = Path(__file__).parents[2]


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def script(body: str) -> list[str]:
    start = "import json, os, pathlib, sys, time\nimport airflow_resume_provider.runtime as resume\n"
    say = "say = lambda **w: print(json.dumps(w), flush=True)\ntraining = resume.current()\n"
    return [sys.executable, "-c", start + say + body]


SAVES = """
root = pathlib.Path(os.environ["HERE"]) / "anywhere"
start = training.checkpoint.step if training.checkpoint else 0
say(start=start, had=dict(training.checkpoint.metrics, **training.checkpoint.metadata) if start else None,
    text=(training.checkpoint.to_directory() / "w.txt").read_text() if start else "")
for step in range(start + 1, 10_000):
    time.sleep(0.02)
    if step % 5 == 0 or training.should_stop:
        root.mkdir(exist_ok=True)
        (root / "new").write_text(f"step {step}"); (root / "new").rename(root / "w.txt")
        training.commit(root, step=step, metrics={"loss": 1 / step}, metadata={"epoch": step // 7})
    if training.should_stop:
        say(stopped=step, left=training.deadline - time.time()); break
    if step == int(os.environ.get("LAST", 0)):
        training.finish(); say(finished=step); time.sleep(60)
"""


def test_a_script_commits_resumes_and_finishes_by_the_sdk(spot: World) -> None:
    """Only what is handed over is committed; metrics and metadata come back; finish() wins over a notice."""
    environ = {"HERE": str(spot.root)}
    first = spot.start(1, script(SAVES), environ=environ)
    until(lambda: first.commits() >= 2)
    first.terminate()
    assert first.wait() == 80
    stopped = first.heard("stopped")
    assert 0 < first.heard("left") <= 25
    spot.intend(2)
    last = str(stopped + 10)
    second = spot.start(2, script(SAVES), "--grace", "1", environ={**environ, "LAST": last})
    until(lambda: second.heard("finished"))
    second.terminate()
    assert second.wait() == 0
    assert second.heard("start") == stopped
    assert second.heard("text") == f"step {stopped}"
    assert second.heard("had") == {"loss": 1 / stopped, "epoch": stopped // 7}
    assert spot.end(2) == ("finished", 0)


OWN = [sys.executable, str(Path(__file__).with_name("own_trainer.py"))]


def test_the_documented_trainer_ends_as_if_nothing_had_happened(spot: World) -> None:
    """The how-to's own script: killed, then stopped by a notice, then finished, with the same weight."""
    first = spot.start(1, OWN, environ={"STEPS": "100000"})
    until(first.commits)
    first.kill_machine()
    spot.intend(2)
    second = spot.start(2, OWN, environ={"STEPS": "100000"})
    until(lambda: "starts at step" in second.printed)
    second.terminate()
    assert second.wait() == 80
    stopped = spot.lineage.choose(3).reference
    assert stopped is not None
    assert f"ends at step {stopped.step} " in second.printed
    spot.intend(3)
    steps = {"STEPS": str(stopped.step + 25)}
    third = spot.start(3, OWN, environ=steps)
    plain = spot.start(1, OWN, "--lineage", f"file://{spot.root}/another", environ=steps, directory="plain")
    assert (third.wait(), plain.wait()) == (0, 0)
    assert f"starts at step {stopped.step}\n" in third.printed
    assert third.printed.splitlines()[-1] == plain.printed.splitlines()[-1]
    assert spot.end(3) == ("finished", 0)


def test_a_lazy_checkpoint_moves_no_bytes_until_it_is_asked_for(spot: World) -> None:
    """With --lazy nothing is restored; two processes of the node that ask share one download."""
    body = """
work = training.directory
if training.checkpoint:
    say(step=training.checkpoint.step, here=sorted(p.name for p in work.iterdir()),
        env=os.environ["RESUME_CHECKPOINT"])
    first = training.checkpoint.to_directory()
    if os.fork() == 0:
        say(same=str(training.checkpoint.to_directory()) == str(first)); os._exit(0)
    os.wait()
    say(text=(first / "c-5" / "w").read_text())
    with training.checkpoint.as_directory() as there:
        say(inside=(there / "c-5" / "w").exists())
else:
    (work / "t.tmp").mkdir(); (work / "t.tmp" / "w").write_text("five"); (work / "t.tmp").rename(work / "c-5")
"""
    assert spot.start(1, script(body), "--format", "directory").wait() == 0
    spot.intend(2)
    run = spot.start(2, script(body), "--lazy")
    assert run.wait() == 0, run.log
    assert (run.heard("step"), run.heard("here"), run.heard("env")) == (5, [], "")
    assert (run.heard("same"), run.heard("text"), run.heard("inside")) == (True, "five", True)


def test_commit_may_wait_for_the_store(spot: World) -> None:
    """With `wait` the reference comes back, and the files may be removed at once in any case."""
    body = """
import shutil
root = training.directory / "c"
for step in (1, 2):
    root.mkdir(parents=True); (root / "w").write_text("w" * step)
    reference = training.commit(root, step=step, wait=20)
    shutil.rmtree(root)
    say(index=reference["index"])
"""
    run = spot.start(1, script(body))
    assert run.wait() == 0
    assert [line["index"] for line in run.said] == [0, 1]
    assert [each.step for each in spot.attempt(1).checkpoints] == [1, 2]


def test_metrics_without_a_commit_go_into_the_next_manifest(spot: World) -> None:
    """`report` is for trainings whose checkpoints are found by their format."""
    body = """
training.report(loss=0.5); training.report(accuracy=0.9)
new = training.directory / "c-1.tmp"; new.mkdir(); (new / "w").write_text("w")
new.rename(training.directory / "c-1")
"""
    assert spot.start(1, script(body)).wait() == 0
    assert spot.attempt(1).checkpoints[-1].metrics == {"loss": 0.5, "accuracy": 0.9}


def test_outside_resume_run_everything_is_harmless(tmp_path: Path) -> None:
    """The same script runs on a laptop: no checkpoint, never stop, commits go nowhere."""
    training = Training({})
    assert training.checkpoint is None
    assert not training.should_stop
    assert training.deadline is None
    assert training.commit(tmp_path, step=1) is None
    training.finish()
    training.report(loss=1)
    assert repr(training).startswith("Training(")


def test_an_empty_directory_and_metrics_that_are_no_json_are_refused(tmp_path: Path) -> None:
    """The script hears of its own mistake where it makes it."""
    state = tmp_path / "state"
    for name in ("pins", "requests", "work"):
        (state / name).mkdir(parents=True)
    training = Training({"RESUME_STATE_DIR": str(state), "RESUME_DIR": str(state / "work")})
    with pytest.raises(FileNotFoundError):
        training.commit(state / "work", step=1)
    (state / "work/w").write_text("w")
    with pytest.raises(TypeError):
        training.commit(state / "work", step=1, metrics={"loss": object()})
    assert list((state / "pins").iterdir()) == []


def test_a_copy_goes_exactly_where_it_is_asked_for(tmp_path: Path) -> None:
    """`to_directory(path)` takes str or PathLike and uses exactly it; `as_directory` removes nothing."""
    state, work = tmp_path / "state", tmp_path / "work"
    (work / "c-3").mkdir(parents=True)
    (work / "c-3" / "w").write_text("w")
    state.mkdir()
    (state / "checkpoint.json").write_text(
        '{"uri": "file:///x", "step": 3, "index": 0, "path": "c-3", "metrics": {}, "metadata": {"resume": 1}}'
    )
    checkpoint = Training({"RESUME_STATE_DIR": str(state), "RESUME_DIR": str(work)}).checkpoint
    assert checkpoint is not None
    assert (checkpoint.to_directory(str(tmp_path / "copy")) / "w").read_text() == "w"
    with checkpoint.as_directory() as directory:
        assert directory == work / "c-3"
    assert directory.is_dir()
    assert checkpoint.metadata == {}


def test_importing_the_sdk_costs_the_standard_library_only() -> None:
    """No module outside the standard library and this package is loaded."""
    program = (
        "import sys, airflow_resume_provider.runtime\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'__main__', 'airflow_resume_provider'}))"
    )
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_container_side_imports_neither_airflow_nor_the_batch_client() -> None:
    """Every module of the runtime is importable where these two are not installed."""
    program = """
import importlib, pkgutil, sys
class Blocked:
    def find_spec(self, name, *rest):
        if name == "airflow" or name.startswith(("airflow.", "google.cloud")):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import airflow_resume_provider.runtime as runtime
for module in pkgutil.walk_packages(runtime.__path__, runtime.__name__ + "."):
    if ".callbacks." not in module.name:
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_forked_helper_still_dies_of_the_signal(spot: World) -> None:
    """A data loader's worker is ended with SIGTERM; only the training itself takes it as a request."""
    body = """
import signal
read, write = os.pipe()
worker = os.fork()
if not worker:
    os.write(write, b"here"); time.sleep(60); os._exit(0)
os.read(read, 4)
os.kill(worker, signal.SIGTERM)
say(ended=os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
"""
    run = spot.start(1, script(body))
    assert run.wait() == 0
    assert run.heard("ended") == -15


def test_current_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`current()` is this process's training."""
    monkeypatch.setenv("RESUME_ATTEMPT", "4")
    monkeypatch.setenv("RESUME_TRAINING_ID", "t17")
    assert (current().attempt, current().id) == (4, "t17")
