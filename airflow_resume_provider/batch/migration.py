"""Turns the `job=` of a `CloudBatchSubmitJobOperator` into arguments of a `ResumableTrainOperator`.

::

    python -m airflow_resume_provider.batch.migration job.json
"""

from __future__ import annotations

import argparse
import json
import pprint
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_resume_provider.batch import migration_parts as parts
from airflow_resume_provider.batch.given_job import plain
from airflow_resume_provider.batch.migration_parts import Notes, only, refuse
from airflow_resume_provider.errors import InvalidInput


@dataclass(frozen=True)
class Translated:
    """Arguments of the new operator, and what a person should know about them.

    `arguments` lacks `task_id`, `project_id` and `checkpoint_root`, and `region` where the job
    does not say it. What has no argument of its own is in `arguments["job"]`.
    """

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()

    def as_source(self) -> str:
        """Return the call as Python source, with the notes as comments."""
        lines = ["ResumableTrainOperator(", '    task_id="train",', '    project_id="…",']
        if "region" not in self.arguments:
            lines.append('    region="…",')
        lines.append('    checkpoint_root="gs://…/checkpoints",')
        for name, value in self.arguments.items():
            text = pprint.pformat(value, sort_dicts=False, width=90).replace("\n", "\n        ")
            lines.append(f"    {name}={text},")
        return "\n".join([*lines, ")", *(f"# {note}" for note in self.notes)])


def translate(job: Mapping[str, Any] | Any) -> Translated:
    """Return the arguments that run the same container on the same machine, resumably.

    Args:
        job: the dictionary, in the client's or in the REST spelling, or a `batch_v1.Job`; messages,
            durations and enumeration members inside a dictionary are taken, too.

    Raises:
        InvalidInput: the job is none that one operator can run: several runnables, a script,
            independent tasks, several task groups, an instance template, zones of several regions.
    """
    given, notes = plain(job), Notes()
    arguments: dict[str, Any] = {}
    group = only(
        given.get("task_groups"), "task groups", "One operator runs one group: make a task for each."
    )
    parts.tasks(group, notes)
    spec = group.get("task_spec", {})
    arguments |= parts.container(spec, notes)
    arguments |= parts.limits(spec, arguments, notes)
    arguments |= parts.machine(given.get("allocation_policy", {}), spec, notes)
    arguments |= parts.labels(given, notes)
    parts.logs(given, notes)
    if rest := parts.pruned(given):
        arguments["job"] = rest
    return Translated(arguments, tuple(notes))


def _read(path: Path) -> Any:
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise refuse(
            f"no JSON in {path}", f"Write the job as JSON ({error}); Python's True and None are no JSON."
        ) from error
    if not isinstance(found, Mapping):
        raise refuse(f"a {type(found).__name__} in {path}", "Give one job, a JSON object.")
    return found


def main() -> int:
    """Print the operator for a job in a JSON file; what cannot be carried over is said on stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "job", type=Path, help="JSON file with the job, or the output of gcloud batch jobs describe"
    )
    try:
        print(translate(_read(parser.parse_args().job)).as_source())
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
