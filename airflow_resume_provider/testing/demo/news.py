"""What a person sees while the demo runs: one line for each thing that happened, and what is going on now."""

from __future__ import annotations

import re
import time

from rich.console import Console
from rich.status import Status
from rich.text import Text

from airflow_resume_provider.testing import JobSummary, LocalStack
from airflow_resume_provider.testing.demo import observe

# The runtime's own words in a job's log that are worth a line.
WORTHY = re.compile(
    r"resume-run [\d:]+ (?P<words>fresh start|restored step \d+|committed step \d+|preempted|finished)"
)
STYLES = {"FAILED": "yellow", "SUCCEEDED": "green"}


class Progress:
    """Prints what happened with the seconds since the start, below it what is going on.

    Args:
        console: where to; what is going on is shown on terminals only.
        status: the line that changes in place.
    """

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status, self._began = console, status, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, line: str, style: str = "") -> None:
        """Print a line that stays."""
        stamp = Text(f"{self.seconds:6.1f} s  ", style="dim")
        self._console.print(stamp.append(line, style=style or "default"))
        self.now(line.partition("\n")[0])

    def now(self, words: str) -> None:
        """Show what is going on."""
        self._status.update(Text(words, style="dim"))


class News:
    """Tells what has changed about the stack's jobs since it was last asked."""

    def __init__(self, stack: LocalStack, progress: Progress, steps: int) -> None:
        self._stack, self._progress, self._steps = stack, progress, steps
        self._told: set[str] = set()

    def tell(self) -> None:
        """Look at every job once."""
        for job in self._stack.jobs():
            log = self._stack.logs(job.name)
            for match in WORTHY.finditer(log):
                self._once(f"attempt {job.number}: {match['words']}")
            self._once(f"attempt {job.number}: job {job.id} is {job.state}", STYLES.get(job.state, ""))
            self._show_step(job, log)

    def _once(self, line: str, style: str = "") -> None:
        if line not in self._told:
            self._told.add(line)
            self._progress.say(line, style)

    def _show_step(self, job: JobSummary, log: str) -> None:
        if job.state == "RUNNING" and (trained := observe.losses(observe.lines(log))):
            last = trained[-1]
            self._progress.now(
                f"attempt {job.number}: step {last.step} of {self._steps}, loss {last.loss:.3f}"
            )
