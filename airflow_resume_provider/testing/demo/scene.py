"""Plays the demo: local stack, Airflow, the training and its uninterrupted twin; returns the story."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import StoreOptions
from airflow_resume_provider.testing import LocalStack
from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import ENDED
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.demo import observe
from airflow_resume_provider.testing.demo.options import DemoError, Options
from airflow_resume_provider.testing.demo.story import Story, Twin
from airflow_resume_provider.testing.faults import Plan, preempt

DAG, TASK = "train_digits", "train"
VERSIONS = ("apache-airflow", "apache-airflow-providers-google", "google-cloud-batch", "obstore", "numpy")

# Once in training, without any notice and up to eight seconds after a commit, so
# that work is really lost; once while the next attempt restores, with a notice.
PLAN = Plan(
    preempt(job=1, after_commits=4, jitter_seconds=8.0, notice=False),
    preempt(job=2, while_restoring=True, grace_seconds=3.0),
    seed=5,
)

Say = Callable[[str], None]


def play(options: Options, say: Say) -> Story:
    """Run everything and return what happened; whatever was started has ended by then."""
    with tempfile.TemporaryDirectory(prefix="resume-demo-") as place:
        work = Path(place)
        with started_twin(options, work / "twin") as twin, local_stack(options, work / "stack") as stack:
            say(f"local stack: Batch API at {stack.batch_endpoint}, object store at {stack.storage_endpoint}")
            with airflow(options, work, stack, say) as running:
                say(f"Airflow is healthy: {running.url}")
                story = Play(options, running, stack, say).story(twin_of(twin))
                if options.hold:
                    hold(running, say)
                return story


def local_stack(options: Options, root: Path) -> LocalStack:
    """Return a local stack with the plan, in which the trainer's image is this checkout's directory."""
    images = {"*trainer*": {"/opt/trainer": str(options.trainer.parent)}}
    return LocalStack(root=root, executor="process", plan=PLAN, settings=Settings(images=images))


def airflow(options: Options, work: Path, stack: LocalStack, say: Say) -> LocalAirflow:
    """Return an Airflow that knows the example DAG and the stack's addresses."""
    dags = work / "dags"
    dags.mkdir()
    shutil.copy(options.dag, dags)
    env = {
        **stack.environment,
        "RESUME_EXAMPLE_STEPS": str(options.steps),
        "RESUME_EXAMPLE_STEP_SECONDS": str(options.step_seconds),
        "RESUME_EXAMPLE_POLL": "1",
    }
    return LocalAirflow(dags, home=work / "airflow", port=options.port, env=env, progress=say)


@contextmanager
def started_twin(options: Options, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the same training without provider, stack or interruption, at full speed."""
    folder.mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RESUME")}
    command = [sys.executable, str(options.trainer), "--steps", str(options.steps), "--save-every", "50"]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, env=plain, cwd=folder, stdout=output, text=True)
        process.output = output  # type: ignore[attr-defined]
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def twin_of(process: subprocess.Popen[str]) -> Twin:
    """Wait for the twin and return what it came to."""
    if process.wait():
        raise DemoError(f"The uninterrupted training failed with exit code {process.returncode}.")
    output = process.output  # type: ignore[attr-defined]
    output.seek(0)
    printed = observe.lines(output.read())
    end = observe.last(printed, "finished")
    return Twin(str(end["sha256"]), str(end["samples"]), observe.losses(printed))


def hold(running: LocalAirflow, say: Say) -> None:
    """Keep everything open until Ctrl-C."""
    say(f"holding: look at {running.url}, end with Ctrl-C")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


class Play:
    """One run of the DAG, watched until its end."""

    def __init__(self, options: Options, running: LocalAirflow, stack: LocalStack, say: Say) -> None:
        self._options, self._airflow, self._stack, self._say = options, running, stack, say
        self._client = running.client
        self._told: dict[str, str] = {}

    def story(self, twin: Twin) -> Story:
        """Trigger the DAG, wait, and return the story."""
        self._client.wait_for_dag(DAG)
        run_id = self._client.trigger(DAG)
        self._say(f"run {run_id} of {DAG} is triggered")
        state = self._watch(run_id)
        return self._account(run_id, state, twin)

    def _watch(self, run_id: str) -> str:
        deadline = time.monotonic() + self._options.timeout
        while (state := str(self._client.run(DAG, run_id)["state"])) not in ENDED:
            self._tell_news()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"The training has not ended after {self._options.timeout:g} s.\n{self._why(run_id)}"
                )
            time.sleep(0.5)
        self._tell_news()
        if state != "success":
            self._say(self._why(run_id))
        return state

    def _tell_news(self) -> None:
        """Say what has changed about the jobs."""
        for job in self._stack.jobs():
            words = f"{job.name} is {job.state}"
            if self._told.get(job.name) != words:
                self._told[job.name] = words
                self._say(words)

    def _why(self, run_id: str) -> str:
        """Return the end of the task's log, for a person who has to find out."""
        return "\n".join(self._client.log(DAG, run_id, TASK).splitlines()[-25:])

    def _account(self, run_id: str, state: str, twin: Twin) -> Story:
        task = self._client.task_instance(DAG, run_id, TASK)
        xcoms = self._client.xcoms(DAG, run_id, TASK)
        uri = str(xcoms.get("checkpoint_uri") or "")
        observer = observe.LineageObserver(uri.split("/attempts/")[0], self._store())
        logs: Mapping[str, Any] = {job.name: self._stack.logs(job.name) for job in self._stack.jobs()}
        return Story(
            steps=self._options.steps,
            run_state=state,
            try_number=int(task["try_number"]),
            attempts=observer.attempts(xcoms.get("attempts") or (), logs),
            twin=twin,
            sha256=observer.digest(uri),
            samples=observer.samples(uri),
            xcoms=xcoms,
            versions={name: version(name) for name in VERSIONS},
        )

    def _store(self) -> StoreOptions:
        return StoreOptions(emulator=self._stack.storage_endpoint)
