"""The five runnables of a job with sidecars, in the order and with the rules of Batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.integration.runtime_world import Running, World


class Job:
    """The five runnables of one attempt, in the order and with the rules of Batch."""

    def __init__(self, spot: World, attempt: int, *, format: str = "auto") -> None:
        self._spot = spot
        self.directory = spot.root / f"disk-{attempt}" / "work"
        self.directory.parent.mkdir(parents=True)
        self.state = self.directory.with_name("work.resume")
        self.environ = {
            **spot.environ,
            "RESUME_LINEAGE": spot.uri,
            "RESUME_ATTEMPT": str(attempt),
            "RESUME_DIR": str(self.directory),
            "RESUME_STATE_DIR": str(self.state),
            "RESUME_METRICS_FILE": str(self.state / "metrics.json"),
            "RESUME_NOTICE_FILE": str(self.state / "notice.json"),
            "RESUME_FORMAT": format,
            "RESUME_POLL": "0.05",
        }

    def ours(self, *words: str) -> Running:
        """Start one of our runnables."""
        command = [sys.executable, "-m", "airflow_resume_provider.runtime.cli", *words]
        return self._started(command, self.environ)

    def training(self, command: Sequence[str]) -> Running:
        """Start the user's container: the static variables, and nothing that we only know later."""
        return self._started(command, self.environ)

    def _started(self, command: Sequence[str], environ: dict[str, str]) -> Running:
        run = Running(command, environ, self._spot.root / f"run-{len(self._spot.runs)}")
        self._spot.runs.append(run)
        return run

    def run(self, command: Sequence[str]) -> tuple[int, int, Running]:
        """Run it all; return the training's and finish's exit codes, and the training."""
        assert self.ours("restore", "--for-training").wait() == 0
        sync = self.ours("sync")
        training = self.training(command)
        code = training.wait(120)
        if code == 0:
            assert self.ours("finish", "--succeeded").wait() == 0
        result = self.ours("finish").wait()
        assert sync.wait() == 0
        return code, result, training
