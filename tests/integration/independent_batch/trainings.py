"""What runs in the independent server's jobs: a script for each training, and what has to come of it."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_resume_provider.checkpoints import AttemptRecord, EndRecord, EndState, Lineage
from tests.integration.independent_batch.jobs import Fate, Held

PLATFORM = (50002, 50003, 50004, 50006)
VERDICTS = {
    "finish": "succeeded",
    "preempted": "preempted",
    "preempted early": "preempted",
    "preempted, exit 0": "preempted",
    "platform": "infrastructure",
    "error": "user_error",
    "timeout": "timed_out",
    "vanishes": "lost",
    "stocked out": "stocked_out",
    "cancelled": "cancelled",
    "deleted": "cancelled",
    "cleared": "cancelled",
}
ENDS_THE_TASK = ("finish", "timeout", "cancelled", "deleted")
ON_THE_WAY = ("preempted", "preempted early", "preempted, exit 0", "platform", "error", "vanishes", "cleared")
RETRIES = 3


@dataclass(frozen=True)
class Outcome:
    """How one attempt goes, and whether Airflow gives its try up without reason on the way."""

    kind: str
    commits: int = 1
    spurious: bool = False


@dataclass
class Script:
    """All attempts of one training, in order; the last one ends the task."""

    outcomes: Sequence[Outcome]
    surprises: list[str] = field(default_factory=list)
    newest: str = ""
    step: int = 0

    @classmethod
    def drawn(cls, seed: str) -> Script:
        """Draw one within the budgets: what goes wrong is survivable until the last attempt."""
        dice = random.Random(seed)
        kinds = [dice.choice(ON_THE_WAY) for _ in range(dice.randint(0, 4))]
        # Each costs its grace in time, so there is one at most.
        kinds = [k for i, k in enumerate(kinds) if k != "vanishes" or "vanishes" not in kinds[:i]]
        kinds = (
            ["stocked out"] * dice.randint(0, 1) + kinds + [dice.choice((*["finish"] * 5, *ENDS_THE_TASK))]
        )
        left = RETRIES
        outcomes = []
        for kind in kinds:
            left -= kind == "error"
            if kind == "error" and left < 0:
                kind = "preempted"
            spurious = left > 0 and kind in ("finish", "preempted", "platform") and dice.random() < 0.3
            left -= spurious
            outcomes.append(Outcome(kind, dice.randint(0, 2), spurious))
        return cls(outcomes)

    @property
    def verdicts(self) -> list[str]:
        """The verdict that each attempt deserves."""
        return [VERDICTS[o.kind] for o in self.outcomes]

    @property
    def tries(self) -> int:
        """The tries that it may cost."""
        return 1 + sum(o.spurious + (o.kind in ("error", "cleared")) for o in self.outcomes)

    def has(self, kind: str) -> bool:
        """Whether an attempt goes like this."""
        return any(outcome.kind == kind for outcome in self.outcomes)

    @property
    def succeeds(self) -> bool:
        """Whether the task does."""
        return self.outcomes[-1].kind == "finish"


class Containers:
    """Plays the container of each job by its training's script, with real commits into the lineage."""

    def __init__(self, scripts: dict[str, Script], scratch: Path) -> None:
        self._scripts = scripts
        self._scratch = scratch
        self._lock = threading.Lock()
        self.dice = random.Random(1)

    def __call__(self, held: Held) -> Fate:
        """Run one job's container, and say what becomes of the job."""
        with self._lock:
            return self._run(held, self._scripts[held.spec.labels["airflow_task"]])

    def _run(self, held: Held, script: Script) -> Fate:
        environment = dict(held.spec.task_groups[0].task_spec.runnables[0].environment.variables)
        number = int(environment["RESUME_ATTEMPT"])
        if environment["RESUME_FROM"] != script.newest:
            script.surprises.append(f"attempt {number} was offered {environment['RESUME_FROM']!r}")
        if number > len(script.outcomes):
            script.surprises.append(f"attempt {number} is one too many")
            return Fate("cancelled")
        outcome = script.outcomes[number - 1]
        if outcome.kind == "stocked out":
            return Fate("queued")
        if outcome.kind != "preempted early":
            self._train(script, outcome, number, environment)
        return self._fate(outcome.kind)

    def _train(self, script: Script, outcome: Outcome, number: int, environment: dict[str, str]) -> None:
        lineage = Lineage.open(environment["RESUME_LINEAGE"])
        resumed, began = environment["RESUME_FROM"], datetime.now(UTC).isoformat()
        lineage.begin_attempt(AttemptRecord(attempt=number, resumed_from=resumed, started=began, writer="w"))
        for _ in range(outcome.commits or outcome.kind == "finish"):
            script.step += 10
            script.newest = self._commit(lineage, number, script.step, resumed)
        ends = {
            "finish": (EndState.FINISHED, 0),
            "error": (EndState.FAILED, 1),
            "preempted, exit 0": (EndState.PREEMPTED, 80),
        }
        if outcome.kind in ends:
            state, code = ends[outcome.kind]
            ended = datetime.now(UTC).isoformat()
            lineage.end_attempt(EndRecord(attempt=number, state=state, exit_code=code, ended=ended))

    def _commit(self, lineage: Lineage, number: int, step: int, resumed: str) -> str:
        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            (Path(directory) / "weights").write_text(str(step))
            made: Any = lineage.commit(
                directory, attempt=number, step=step, resumed_from=resumed, metrics={"loss": 1 / step}
            )
        return str(made.uri)

    def _fate(self, kind: str) -> Fate:
        codes = {"preempted": 50001, "preempted early": 50001, "error": 1, "timeout": 50005}
        if kind in ("vanishes", "cancelled", "deleted"):
            return Fate(kind)
        if kind == "cleared":
            return Fate("runs on")
        return Fate("ends", self.dice.choice(PLATFORM) if kind == "platform" else codes.get(kind, 0))
