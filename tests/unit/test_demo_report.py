"""The demo's account of what happened: its claims, its timeline, its page."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from airflow_resume_provider.testing.demo import report, timeline
from airflow_resume_provider.testing.demo.chart import loss_chart, ticks
from airflow_resume_provider.testing.demo.gantt import gantt, spans
from airflow_resume_provider.testing.demo.proof import claims
from airflow_resume_provider.testing.demo.story import Attempt, Commit, Loss, Story, Twin


def losses(first: int, last: int, start: float) -> tuple[Loss, ...]:
    return tuple(Loss(step, 2.0 / step, start + step) for step in range(first, last + 1))


def commits(start: float, *steps: int) -> tuple[Commit, ...]:
    return tuple(Commit(index, step, start + step, 0.9) for index, step in enumerate(steps))


FIRST = Attempt(1, "p/jobs/a-1", "preempted", 10, 12, 50, "", 0, commits(13, 10, 20), losses(1, 24, 13))
SECOND = Attempt(2, "p/jobs/a-2", "preempted", 55, 57, 58, account="a notice came before the training")
THIRD = Attempt(3, "p/jobs/a-3", "succeeded", 60, 62, 90, "gs://x", 20, commits(50, 30), losses(21, 30, 50))
TWIN = Twin("d" * 64, "s" * 64, losses(1, 30, 0))
STORY = Story(
    30, "success", 1, (FIRST, SECOND, THIRD), TWIN, "d" * 64, "s" * 64, {"checkpoint_uri": "gs://x"}
)


def broken(story: Story) -> list[str]:
    return [claim.text for claim in claims(story) if not claim.held]


def test_a_good_story_holds() -> None:
    """Three attempts, two preemptions, equal digests: nothing is broken."""
    assert broken(STORY) == []


@pytest.mark.parametrize(
    ("story", "word"),
    [
        (replace(STORY, sha256="e" * 64), "same bytes"),
        (replace(STORY, sha256="", twin=replace(TWIN, sha256="")), "same bytes"),
        (replace(STORY, samples="t" * 64), "same order"),
        (replace(STORY, try_number=2), "try_number"),
        (replace(STORY, run_state="failed"), "succeeded"),
        (replace(STORY, attempts=(FIRST, THIRD)), "three attempts"),
        (
            replace(STORY, attempts=(FIRST, replace(SECOND, verdict="infrastructure"), THIRD)),
            "two preemptions",
        ),
        (replace(STORY, attempts=(FIRST, SECOND, replace(THIRD, resumed_step=10))), "newest checkpoint"),
        (replace(STORY, attempts=(FIRST, SECOND, replace(THIRD, losses=losses(22, 30, 50)))), "every step"),
        (replace(STORY, attempts=(SECOND, FIRST, THIRD)), "once while training"),
        (replace(STORY, attempts=(FIRST, replace(SECOND, account=""), THIRD)), "once while training"),
        (replace(STORY, attempts=()), "every step"),
    ],
)
def test_each_way_to_be_wrong_is_seen(story: Story, word: str) -> None:
    """Whatever is not as promised breaks the claim that promises it."""
    assert any(word in text for text in broken(story))


def test_lost_work_is_what_came_after_the_last_commit() -> None:
    """Four steps after the last commit are lost, with the time they took; a clean end loses nothing."""
    assert [loss.step for loss in FIRST.lost] == [21, 22, 23, 24]
    assert FIRST.seconds_lost == 4
    assert THIRD.seconds_lost == 0
    assert STORY.steps_lost == 4


def test_an_attempt_without_any_commit_keeps_nothing() -> None:
    """All steps of an attempt that never committed count as lost, back to where it had resumed."""
    attempt = replace(THIRD, commits=())
    assert attempt.kept_step == 20
    assert len(attempt.lost) == 10


def test_the_timeline_is_in_order_of_time() -> None:
    """Events of all attempts are merged by time, seconds counted from the first submission."""
    events = timeline.events(STORY)
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    assert events[0] == (0, 1, "submitted")
    assert events[-1][2] == "succeeded"
    assert any("while it restored" in words for _, _, words in events)


def test_the_terminal_shows_attempts_xcoms_and_both_digests() -> None:
    """What is printed holds every attempt's job, the XComs and both digests in full."""
    console = Console(width=200, record=True, file=io.StringIO())
    timeline.show(console, STORY)
    text = console.export_text()
    assert all(name in text for name in ("a-1", "a-2", "a-3", "gs://x"))
    assert text.count("d" * 64) == 2


class Tags(HTMLParser):
    """Collects what a page would load from elsewhere, and its unclosed SVG elements."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attributes if name in {"src", "href"}]


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    """The report is self-contained, has no unfilled place, and names both digests."""
    page = report.write(STORY, tmp_path).read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.loads == []
    assert not re.search(r"<!--\w+-->", page)
    assert page.count("d" * 64) == 2
    assert "Preempted twice. Finished once. The same bytes." in page


def test_what_comes_from_the_training_cannot_become_markup() -> None:
    """Angle brackets in XComs and job names are shown, not interpreted."""
    evil = "</script><b>x"
    story = replace(STORY, xcoms={"k": evil}, attempts=(replace(FIRST, job_name=evil), SECOND, THIRD))
    assert "<b>x" not in report.html(story)


def test_a_story_in_which_nothing_happened_can_still_be_shown(tmp_path: Path) -> None:
    """A run that failed before its first attempt has a report that says so."""
    empty = Story(30, "failed", 1, (), Twin("", ""))
    assert "Different bytes!" in report.write(empty, tmp_path).read_text()


def test_the_picture_for_a_readme_stands_alone(tmp_path: Path) -> None:
    """The SVG file carries its own style and a white ground."""
    report.write(STORY, tmp_path)
    text = (tmp_path / "training.svg").read_text()
    assert text.startswith("<svg xmlns=")
    assert "<style>" in text
    assert 'fill="#fff"' in text


def test_charts_mark_each_preemption_and_commit() -> None:
    """Two flags, three commits as dots, lost work dotted exactly once."""
    chart = loss_chart(STORY)
    assert chart.count('class="flag"') == 2
    assert chart.count("<circle") == 3
    assert chart.count('class="lost"') == 1
    assert gantt(STORY).count('class="span training"') == 2


def test_a_row_of_the_second_chart_has_no_holes() -> None:
    """Each span starts where the one before ended."""
    for attempt in STORY.attempts:
        parts = spans(attempt)
        assert all(before[2] == after[1] for before, after in itertools.pairwise(parts))


def test_ticks_are_round() -> None:
    """Axis numbers are 1, 2 or 5 times a power of ten apart."""
    assert ticks(600) == [0, 100, 200, 300, 400, 500, 600]
    assert ticks(97, about=8) == [0, 20, 40, 60, 80]
