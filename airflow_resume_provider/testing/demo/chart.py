"""The two pictures of the report as inline SVG: the loss over steps, and the attempts over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from airflow_resume_provider.testing.demo.story import Attempt, Loss, Story

COLOURS = ("#2f6fde", "#d9822b", "#1d9a6c", "#8a55c8", "#c2437b")
WIDTH = 1060


def colour(attempt: Attempt) -> str:
    """Return the attempt's colour."""
    return COLOURS[(attempt.number - 1) % len(COLOURS)]


@dataclass(frozen=True)
class Frame:
    """A plotting area that maps data to pixels; `log` for a logarithmic vertical axis."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float] = (0, 1)

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height

    def x(self, value: float) -> float:
        """Return the horizontal pixel."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        """Return the vertical pixel of a value on the logarithmic axis."""
        low, high = (math.log10(edge) for edge in self.y_range)
        part = (math.log10(max(value, self.y_range[0])) - low) / (high - low)
        return self.bottom - min(part, 1.0) * self.height


def smooth(losses: Sequence[Loss], reach: int = 9) -> list[Loss]:
    """Return the running geometric mean, which is the running mean on a logarithmic axis."""
    logs = [math.log(max(loss.loss, 1e-12)) for loss in losses]
    result = []
    for place, loss in enumerate(losses):
        window = logs[max(0, place - reach) : place + reach + 1]
        result.append(Loss(loss.step, math.exp(sum(window) / len(window)), loss.time))
    return result


def path(frame: Frame, losses: Iterable[Loss]) -> str:
    """Return the `d` attribute of a line through the losses."""
    points = [f"{frame.x(loss.step):.1f},{frame.y(loss.loss):.1f}" for loss in losses]
    return "M" + "L".join(points) if points else ""


def loss_frame(story: Story) -> Frame:
    """Return the plotting area that holds every loss of the story."""
    values = [loss.loss for attempt in story.attempts for loss in attempt.losses] or [0.1, 1.0]
    low, high = max(min(values), 1e-4) * 0.8, max(values) * 1.5
    return Frame(56, 64, WIDTH - 76, 290, (0, max(story.steps, 1)), (low, high))


def loss_chart(story: Story) -> str:
    """Return the loss of all attempts on one axis, with commits, preemptions and lost work."""
    frame = loss_frame(story)
    parts = [*_grid(frame), *_twin(frame, story)]
    for attempt in story.attempts:
        parts += [*_curve(frame, attempt), *_commits(frame, attempt)]
    parts += [*_lost(frame, story), *_preemptions(frame, story)]
    return svg(frame.bottom + 62, parts, "Training loss over steps, preemptions marked", "loss")


def svg(height: float, parts: Iterable[str], title: str, name: str) -> str:
    """Wrap parts into an SVG of the common width that scales with its container."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, kind: str = "label", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" {more}>{escape(words)}</text>'


def _grid(frame: Frame) -> list[str]:
    low, high = (math.log10(edge) for edge in frame.y_range)
    values = [m * 10**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 3)]
    parts = []
    for value in (v for v in values if frame.y_range[0] <= v <= frame.y_range[1]):
        y, right = frame.y(value), frame.left + frame.width
        parts.append(f'<line x1="{frame.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(frame.left - 8, y + 4, f"{value:g}", more='text-anchor="end"'))
    for step in ticks(frame.x_range[1]):
        parts.append(_text(frame.x(step), frame.bottom + 34, f"{step:g}", more='text-anchor="middle"'))
    middle = frame.left + frame.width / 2
    parts.append(_text(middle, frame.bottom + 54, "optimizer step", "axis", 'text-anchor="middle"'))
    parts.append(_text(frame.left - 42, frame.top - 12, "loss", "axis"))
    return parts


def ticks(end: float, about: int = 6) -> list[float]:
    """Return round numbers from 0 to `end`."""
    raw = end / about
    power = 10 ** math.floor(math.log10(raw))
    size = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    return [size * i for i in range(int(end / size + 1e-9) + 1)]


def _twin(frame: Frame, story: Story) -> list[str]:
    if not story.twin.losses:
        return []
    return [f'<path d="{path(frame, smooth(story.twin.losses))}" class="twin"/>']


def _curve(frame: Frame, attempt: Attempt) -> list[str]:
    if not attempt.losses:
        return []
    kept = [loss for loss in smooth(attempt.losses) if loss.step <= attempt.kept_step]
    ink = f'stroke="{colour(attempt)}"'
    return [
        f'<path d="{path(frame, attempt.losses)}" class="raw" {ink}/>',
        f'<path d="{path(frame, kept)}" class="kept" {ink}/>',
    ]


def _lost(frame: Frame, story: Story) -> list[str]:
    """Draw lost work over everything else: the later attempt's line lies exactly below it."""
    return [
        f'<path d="{path(frame, lost)}" class="lost" stroke="{colour(attempt)}"/>'
        for attempt in story.attempts
        if attempt.lost and (lost := [x for x in smooth(attempt.losses) if x.step >= attempt.kept_step])
    ]


def _commits(frame: Frame, attempt: Attempt) -> list[str]:
    y = frame.bottom + 12
    return [
        f'<circle cx="{frame.x(commit.step):.1f}" cy="{y}" r="3.6" fill="{colour(attempt)}">'
        f"<title>attempt {attempt.number} committed step {commit.step}</title></circle>"
        for commit in attempt.commits
    ]


def _preemptions(frame: Frame, story: Story) -> list[str]:
    ends = [
        (
            attempt.losses[-1].step if attempt.losses else attempt.resumed_step or _newest(story, attempt),
            attempt,
        )
        for attempt in story.attempts
        if attempt.preempted
    ]
    # Rightmost lowest, so that no line crosses the words of a flag to its left.
    ends.sort(key=lambda end: (-end[0], -end[1].number))
    return [part for row, (step, attempt) in enumerate(ends) for part in _flag(frame, attempt, step, row)]


def _newest(story: Story, attempt: Attempt) -> int:
    return max((a.kept_step for a in story.attempts if a.number < attempt.number), default=0)


def _flag(frame: Frame, attempt: Attempt, step: int, row: int) -> list[str]:
    """Draw where an attempt ended, with its words above the plot."""
    x, ink, y = frame.x(step), colour(attempt), frame.top - 22 - 19 * row
    turn = -1 if x > frame.left + 0.62 * frame.width else 1
    anchor = "start" if turn > 0 else "end"
    start = frame.x(attempt.kept_step) if attempt.lost else x
    return [
        f'<rect x="{start:.1f}" y="{frame.top}" width="{max(x - start, 0):.1f}" height="{frame.height}" '
        f'fill="{ink}" class="repeat"/>',
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{frame.bottom}" class="flag" stroke="{ink}"/>',
        f'<path d="M{x:.1f},{y - 10} l{7 * turn},6 l{-7 * turn},6 z" fill="{ink}"/>',
        _text(x + 13 * turn, y + 1, _ending(attempt, step), "note", f'fill="{ink}" text-anchor="{anchor}"'),
    ]


def _ending(attempt: Attempt, step: int) -> str:
    if attempt.in_restore:
        return f"attempt {attempt.number} preempted while it restored"
    repeat = f", {len(attempt.lost)} steps to repeat" if attempt.lost else ""
    return f"attempt {attempt.number} preempted at step {step}{repeat}"
