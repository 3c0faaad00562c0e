"""The story on a terminal: attempts, what happened when, the XComs, the proof."""

from __future__ import annotations

import json

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_resume_provider.testing.demo.proof import claims
from airflow_resume_provider.testing.demo.story import Attempt, Story

STYLES = {"preempted": "yellow", "succeeded": "green"}


def show(console: Console, story: Story) -> None:
    """Print everything that a reader needs to believe the result."""
    console.print(attempts_table(story))
    console.print(events_table(story))
    console.print(xcoms(story))
    console.print(proof(story))


def attempts_table(story: Story) -> Table:
    """Return one row an attempt."""
    table = Table(title="Attempts", title_justify="left", title_style="bold")
    for name in ("attempt", "verdict", "resumed at", "steps trained", "commits", "lost", "Batch job"):
        table.add_column(name, justify="left" if name in {"verdict", "Batch job"} else "right")
    for attempt in story.attempts:
        table.add_row(*_cells(attempt), style=STYLES.get(attempt.verdict, "red"))
    return table


def _cells(attempt: Attempt) -> list[str]:
    where = (" in restore" if attempt.in_restore else " in training") if attempt.preempted else ""
    trained = f"{attempt.losses[0].step}–{attempt.losses[-1].step}" if attempt.losses else "–"
    lost = f"{len(attempt.lost)} steps, {attempt.seconds_lost:.1f} s" if attempt.lost else "nothing"
    return [
        str(attempt.number),
        attempt.verdict + where,
        attempt.origin,
        trained,
        str(len(attempt.commits)),
        lost,
        attempt.job_name.rsplit("/", 1)[-1],
    ]


def events(story: Story) -> list[tuple[float, int, str]]:
    """Return (seconds since the first submission, attempt, words), in order of time."""
    found = [event for attempt in story.attempts for event in _events_of(attempt)]
    return sorted(((time - story.began, number, words) for time, number, words in found if time > 0))


def _events_of(attempt: Attempt) -> list[tuple[float, int, str]]:
    number = attempt.number
    restored = f"restored step {attempt.resumed_step}" if attempt.resumed_from else "started fresh"
    commits = [
        (c.time, number, f"committed step {c.step}, accuracy {c.accuracy:.1%}") for c in attempt.commits
    ]
    return [
        (attempt.submitted, number, "submitted"),
        *([(attempt.losses[0].time, number, f"{restored}, training")] if attempt.losses else []),
        *commits,
        (attempt.ended, number, attempt.verdict + (" while it restored" if attempt.in_restore else "")),
    ]


def events_table(story: Story) -> Table:
    """Return what happened when."""
    table = Table(title="Timeline", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    table.add_column("seconds", justify="right")
    table.add_column("attempt", justify="right")
    table.add_column("what happened")
    for seconds, number, words in events(story):
        table.add_row(f"{seconds:.1f}", str(number), words)
    return table


def xcoms(story: Story) -> RenderableType:
    """Return the task's XComs, one a line, long ones shortened."""
    table = Table(
        title="XComs of the task", title_justify="left", title_style="bold", box=None, padding=(0, 2)
    )
    table.add_column("key")
    table.add_column("value", overflow="fold")
    # Airflow keeps the operator's extra links as XComs too.
    for key, value in sorted((k, v) for k, v in story.xcoms.items() if not k.startswith("_")):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(key, text if len(text) <= 300 else f"{text[:300]} …")
    return table


def proof(story: Story) -> RenderableType:
    """Return the two digests and every claim with what was seen."""
    lines: list[RenderableType] = [
        Text(f"sha256 of the final weights, preempted {story.preemptions}×:  {story.sha256 or 'none'}"),
        Text(f"sha256 of the final weights, uninterrupted: {story.twin.sha256 or 'none'}"),
        Text(),
    ]
    for claim in claims(story):
        line = Text("✓ " if claim.held else "✕ ", style="bold green" if claim.held else "bold red")
        lines.append(line.append(claim.text, style="default").append(f"  {claim.seen}", style="dim"))
    held = all(claim.held for claim in claims(story))
    return Panel(Group(*lines), title="Proof", border_style="green" if held else "red", expand=False)
