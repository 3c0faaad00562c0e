"""The attempts over time as inline SVG: waiting, restoring, training, and what had to be repeated."""

from __future__ import annotations

from html import escape

from airflow_resume_provider.testing.demo.chart import WIDTH, Frame, colour, svg, ticks
from airflow_resume_provider.testing.demo.story import Attempt, Story

ROW = 40


def gantt(story: Story) -> str:
    """Return one row an attempt, on an axis of seconds since the first submission."""
    frame = Frame(96, 14, WIDTH - 206, ROW * len(story.attempts), (0, max(story.seconds, 1)))
    parts = _axis(frame)
    for row, attempt in enumerate(story.attempts):
        parts += _row(frame, frame.top + row * ROW, attempt, story.began)
    return svg(frame.bottom + 48, parts, "Attempts over time", "gantt")


def _axis(frame: Frame) -> list[str]:
    parts = []
    for second in ticks(frame.x_range[1], about=8):
        x = frame.x(second)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.bottom}" class="grid"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{frame.bottom + 18}" class="label" text-anchor="middle">{second:g}</text>'
        )
    middle = frame.left + frame.width / 2
    parts.append(
        f'<text x="{middle}" y="{frame.bottom + 40}" class="axis" text-anchor="middle">'
        "seconds since the first job was submitted</text>"
    )
    return parts


def spans(attempt: Attempt) -> list[tuple[str, float, float]]:
    """Return (kind, start, end) of what the attempt's time went into."""
    began = attempt.started or attempt.ended
    trained = attempt.losses[0].time if attempt.losses else attempt.ended
    kept = attempt.kept[-1].time if attempt.kept else trained
    died = attempt.lost[-1].time if attempt.lost else kept
    return [
        ("waiting", attempt.submitted, began),
        ("restoring", began, trained),
        ("training", trained, kept),
        ("repeated", kept, died),
        ("ending", died, max(attempt.ended, died) if attempt.losses else died),
    ]


def _row(frame: Frame, y: float, attempt: Attempt, began: float) -> list[str]:
    ink = colour(attempt)
    parts = [f'<text x="0" y="{y + 25}" class="note" fill="{ink}">attempt {attempt.number}</text>']
    for kind, start, end in spans(attempt):
        if end > start:
            left, right = frame.x(start - began), frame.x(end - began)
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 10}" width="{right - left:.1f}" height="22" rx="3" '
                f'class="span {kind}" fill="{ink}"><title>{escape(kind)}: {end - start:.1f} s</title></rect>'
            )
    parts += [
        f'<line x1="{frame.x(c.time - began):.1f}" x2="{frame.x(c.time - began):.1f}" y1="{y + 6}" '
        f'y2="{y + 36}" class="commit" stroke="{ink}"><title>step {c.step} committed</title></line>'
        for c in attempt.commits
    ]
    return [*parts, _end(frame.x(attempt.ended - began), y, attempt)]


def _end(x: float, y: float, attempt: Attempt) -> str:
    mark = "✕" if attempt.preempted else "✓" if attempt.verdict == "succeeded" else "!"
    words = escape(f"{mark} {attempt.verdict}")
    return f'<text x="{x + 8:.1f}" y="{y + 25}" class="note" fill="{colour(attempt)}">{words}</text>'
