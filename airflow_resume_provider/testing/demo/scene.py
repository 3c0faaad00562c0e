"""Plays the demo: local stack, Airflow, the training and its uninterrupted twin; returns the story."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from airflow_resume_provider.checkpoints import StoreOptions
from airflow_resume_provider.testing import LocalStack
from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import ENDED
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.demo import observe
from airflow_resume_provider.testing.demo.news import News, Progress
from airflow_resume_provider.testing.demo.options import DemoError, Options
from airflow_resume_provider.testing.demo.story import Story, Twin
from airflow_resume_provider.testing.executors.containers import ContainerExecutor
from airflow_resume_provider.testing.faults import Plan, preempt
from airflow_resume_provider.testing.sessions import Session, Sessions

TASK = "train"
VERSIONS = ("apache-airflow", "apache-airflow-providers-google", "google-cloud-batch", "obstore", "numpy")

# Once in training, without any notice and up to eight seconds after a commit, so
# that work is really lost; once while the next attempt restores, with a notice.
PLAN = Plan(
    preempt(job=1, after_commits=4, jitter_seconds=8.0, notice=False),
    preempt(job=2, while_restoring=True, grace_seconds=3.0),
    seed=5,
)


def play(options: Options, progress: Progress) -> Story:
    """Run everything and return what happened; whatever was started has ended by then."""
    with tempfile.TemporaryDirectory(prefix="resume-demo-") as place, Sessions() as sessions:
        work = Path(place)
        sessions.remove_at_end(work)
        twin = started_twin(options, sessions, work)
        with local_stack(options, work / "stack") as stack:
            progress.say(f"local stack: Batch at {stack.batch_endpoint}, objects at {stack.storage_endpoint}")
            with airflow(options, work, stack, progress) as running:
                progress.say(f"Airflow is healthy: {running.url}")
                story = Play(options, running, stack, progress).story(twin_of(twin))
                if options.hold:
                    hold(running, progress)
                return story


def local_stack(options: Options, root: Path) -> LocalStack:
    """Return a local stack with the plan; without containers, the trainer's image is this checkout's."""
    if options.images:
        # Never pulled: a demo must not run an image of the same name from somewhere else.
        executor = ContainerExecutor(options.executor, pull="never")
        return LocalStack(root=root, executor=executor, plan=PLAN)
    images = {"*trainer*": {"/opt/trainer": str(options.trainer.parent)}}
    return LocalStack(root=root, executor="process", plan=PLAN, settings=Settings(images=images))


def airflow(options: Options, work: Path, stack: LocalStack, progress: Progress) -> LocalAirflow:
    """Return an Airflow that knows the example DAG and the stack's addresses."""
    dags = work / "dags"
    dags.mkdir()
    shutil.copy(options.dag, dags)
    env = {
        **stack.environment,
        "RESUME_EXAMPLE_ARGUMENTS": f"--steps {options.steps} --step-seconds {options.step_seconds}",
        "RESUME_EXAMPLE_POLL": "1",
    }
    return LocalAirflow(dags, home=work / "airflow", port=options.port, env=env, progress=progress.say)


def started_twin(options: Options, sessions: Sessions, work: Path) -> Session:
    """Start the same training without provider, stack or interruption, at full speed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RESUME")}
    env["RESUME_DIR"] = str(work / "twin")
    command = [sys.executable, str(options.trainer), "--steps", str(options.steps), "--save-every", "50"]
    return sessions.start("twin", command, env=env, log=work / "twin.log")


def twin_of(session: Session) -> Twin:
    """Wait for the twin and return what it came to."""
    if session.process.wait():
        raise DemoError(f"The uninterrupted training failed:\n{session.tail()}")
    printed = observe.lines(session.log.read_text())
    end = observe.last(printed, "finished")
    return Twin(str(end["sha256"]), str(end["samples"]), observe.losses(printed))


def hold(running: LocalAirflow, progress: Progress) -> None:
    """Keep everything open until Ctrl-C."""
    progress.say(f"holding: look at {running.url}, end with Ctrl-C")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


class Play:
    """One run of the DAG, watched until its end."""

    def __init__(
        self, options: Options, running: LocalAirflow, stack: LocalStack, progress: Progress
    ) -> None:
        self._options, self._stack, self._progress = options, stack, progress
        self._client = running.client
        self._news = News(stack, progress, options.steps)

    def story(self, twin: Twin) -> Story:
        """Trigger the DAG, wait, and return the story."""
        self._client.wait_for_dag(self._options.dag_id)
        run_id = self._client.trigger(self._options.dag_id)
        self._progress.say(f"run {run_id} of {self._options.dag_id} is triggered")
        state = self._watch(run_id)
        return self._account(run_id, state, twin)

    def _watch(self, run_id: str) -> str:
        deadline = time.monotonic() + self._options.timeout
        while (state := str(self._client.run(self._options.dag_id, run_id)["state"])) not in ENDED:
            self._news.tell()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"The training has not ended after {self._options.timeout:g} s.\n{self._why(run_id)}"
                )
            time.sleep(0.5)
        self._news.tell()
        if state != "success":
            self._progress.say(self._why(run_id))
        return state

    def _why(self, run_id: str) -> str:
        """Return the end of the task's log, for a person who has to find out."""
        return "\n".join(self._client.log(self._options.dag_id, run_id, TASK).splitlines()[-25:])

    def _account(self, run_id: str, state: str, twin: Twin) -> Story:
        task = self._client.task_instance(self._options.dag_id, run_id, TASK)
        xcoms = self._client.xcoms(self._options.dag_id, run_id, TASK)
        uri = str(xcoms.get("checkpoint_uri") or "")
        if not uri:
            raise DemoError(f"The run is {state} and no checkpoint was ever published.")
        store = StoreOptions(emulator=self._stack.storage_endpoint)
        observer = observe.LineageObserver(uri.split("/attempts/")[0], store)
        logs = {job.name: self._stack.logs(job.name) for job in self._stack.jobs()}
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
