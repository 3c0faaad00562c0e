"""The DAGs of the crash matrix: one training each, with what goes wrong in their names."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_resume_provider.operators.train import ResumableTrainOperator

TRAINER = os.environ["E2E_TRAINER"]
SCRATCH = Path(os.environ["E2E_SCRATCH"])


class Dying(ResumableTrainOperator):
    """Kills its own process, or its supervisor, right after the first job was created."""

    def __init__(self, *, victim: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.victim = victim

    def _conducting(self, context: Any) -> Any:
        conductor = super()._conducting(context)
        submit = conductor.hook.submit

        def dying(*arguments: Any) -> Any:
            done = submit(*arguments)
            mark = SCRATCH / f"{self.dag_id}.died"
            if not mark.exists():
                mark.touch()
                self._die()
            return done

        conductor.hook.submit = dying
        return conductor

    def _die(self) -> None:
        if self.victim == "task":
            os.kill(os.getpid(), signal.SIGKILL)
        # The orphan goes on, as a real one would.
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1)


# What is preempted after its first commit must not have finished by then, however busy the machine is.
SLOW = ["--step-seconds", "0.3"]
SETTINGS: dict[str, Any] = {
    "project_id": "local-project",
    "region": "us-central1",
    "image": "trainer:latest",
    "checkpoint_root": "gs://resume/e2e",
    "poll_interval": 1,
    "trigger_min_seconds": 5,
    "not_found_grace": 5,
    "retries": 1,
    "retry_delay": timedelta(seconds=1),
}


def train(kind: type[ResumableTrainOperator] = ResumableTrainOperator, **changes: Any) -> Any:
    """One training; what is not said is quick and plain."""
    extra = changes.pop("arguments", [])
    partial = changes.pop("partial", False)
    settings = {**SETTINGS, "task_id": "train", "command": ["python", TRAINER, *extra], **changes}
    return kind.partial(**settings) if partial else kind(**settings)


def failing(name: str, times: int) -> list[str]:
    """Arguments of a trainer that fails so many times at step 12."""
    return ["--fail-at", "12", "--fail-times", str(times), "--marks", str(SCRATCH / f"{name}.marks")]


def case(name: str) -> DAG:
    """A DAG that only runs when it is told to."""
    return DAG(name, schedule=None, catchup=False)


with case("plain"):
    train(outlets=[Asset("trained")])
with case("task_killed"):
    train(Dying, victim="task")
with case("supervisor_killed"):
    train(Dying, victim="supervisor", arguments=["--step-seconds", "0.2"])
with case("triggerer_killed"):
    train(arguments=["--step-seconds", "1"])
with case("cleared_deferred"):
    train(arguments=["--step-seconds", "1"])
with case("cleared_running"):
    train(arguments=["--step-seconds", "1"], deferrable=False)
with case("marked_failed"):
    train(arguments=["--step-seconds", "5"])
with case("marked_success"):
    train(arguments=["--step-seconds", "5"])
with case("run_failed"):
    train(arguments=["--step-seconds", "5"])
with case("failed_running"):
    train(arguments=["--step-seconds", "5"], deferrable=False)
with case("retried_by_hand"):
    train(arguments=failing("retried_by_hand", 1), retries=0)
with case("four_preemptions"):
    train(arguments=SLOW)
with case("two_errors"):
    train(arguments=failing("two_errors", 2))
with case("one_error"):
    train(arguments=failing("one_error", 1))
with case("stocked_out"):
    train(
        placements=[
            {"zones": ["us-central1-a"], "queue_timeout": 8},
            {"region": "us-east1", "provisioning_model": "STANDARD"},
        ]
    )
with case("mapped"):
    train(partial=True, arguments=SLOW).expand(env=[{"LR": "1"}, {"LR": "2"}, {"LR": "3"}])
with case("retried_preemption"):
    train(arguments=SLOW, on_preemption="retry", retries=3, retry_delay=timedelta(minutes=10))
with case("decorated"):

    @task.resumable_train(**SETTINGS, command=["python", TRAINER])
    def chosen(steps: int) -> dict[str, Any]:
        """The training's options, chosen when the task runs."""
        return {"steps": steps, "step_seconds": 0.3}

    chosen.override(task_id="train")(30)
