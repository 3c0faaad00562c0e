"""`python -m airflow_resume_provider.testing.demo`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from rich.console import Console

from airflow_resume_provider.testing.demo import options as command_line
from airflow_resume_provider.testing.demo import report, timeline
from airflow_resume_provider.testing.demo.options import DemoError, Options
from airflow_resume_provider.testing.demo.proof import claims

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo; 0 only if everything that it promises was seen to hold."""
    options = command_line.parse(arguments)
    console = Console(highlight=False)
    # A polite end from outside takes the same way out as Ctrl-C: everything is ended.
    signal.signal(signal.SIGTERM, _interrupt)
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

    began = time.monotonic()
    with console.status("starting") as status:

        def say(line: str) -> None:
            console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  ", end="")
            console.print(line, markup=False)
            status.update(line.splitlines()[0])

        story = scene.play(options, say)
    timeline.show(console, story)
    page = report.write(story, options.folder)
    console.print(f"{time.monotonic() - began:.0f} s in all; the picture: {page.resolve()}", markup=False)
    return 0 if all(claim.held for claim in claims(story)) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
