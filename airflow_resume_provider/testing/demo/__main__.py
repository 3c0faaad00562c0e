"""`python -m airflow_resume_provider.testing.demo`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from rich.console import Console

from airflow_resume_provider.testing.demo import options as command_line
from airflow_resume_provider.testing.demo import report, timeline
from airflow_resume_provider.testing.demo.news import Progress
from airflow_resume_provider.testing.demo.options import DemoError, Options
from airflow_resume_provider.testing.demo.proof import claims

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo; 0 only if everything that it promises was seen to hold."""
    options = command_line.parse(arguments)
    # A pipe has no width of its own; the tables need a little more than the usual 80.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    # A polite end from outside takes the same way out as Ctrl-C: everything is ended.
    signal.signal(signal.SIGTERM, _interrupt)
    # Shells start what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, _interrupt)
    try:
        command_line.check(options)
        with command_line.sole_user(options.folder):
            return play(options, console)
    except DemoError as error:
        console.print(f"[red]demo:[/] {error}", markup=True)
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything it had started is ended")
        return INTERRUPTED


def play(options: Options, console: Console) -> int:
    """Play, print, write the report."""
    from airflow_resume_provider.testing.demo import scene

    with console.status("starting") as status:
        progress = Progress(console, status)
        story = scene.play(options, progress)
    timeline.show(console, story)
    page = report.write(story, options.folder)
    console.print(f"{progress.seconds:.0f} s in all; the picture: {page.resolve()}", markup=False)
    return 0 if all(claim.held for claim in claims(story)) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
