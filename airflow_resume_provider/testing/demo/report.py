"""`demo/report.html`: one file, nothing to load, light and dark, with details under the pointer."""

from __future__ import annotations

import dataclasses
import json
from html import escape
from pathlib import Path

from airflow_resume_provider.testing.demo.chart import WIDTH, colour, loss_chart, loss_frame
from airflow_resume_provider.testing.demo.gantt import gantt
from airflow_resume_provider.testing.demo.proof import Claim, claims
from airflow_resume_provider.testing.demo.story import Attempt, Story

HERE = Path(__file__).parent


def write(story: Story, folder: Path) -> Path:
    """Write the page, the picture for a README and the bare facts into `folder`; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "story.json").write_text(json.dumps(dataclasses.asdict(story), indent=1))
    (folder / "training.svg").write_text(picture(story))
    page = folder / "report.html"
    page.write_text(html(story))
    return page


def html(story: Story) -> str:
    """Return the whole page."""
    values = {
        "style": (HERE / "report.css").read_text(),
        "script": (HERE / "report.js").read_text(),
        "headline": _headline(story),
        "tiles": _tiles(story),
        "legend": _legend(story),
        "loss": loss_chart(story),
        "gantt": gantt(story),
        "proof": _proof(story),
        "attempts": _table(story),
        "xcoms": escape(json.dumps(dict(story.xcoms), indent=2, ensure_ascii=False)),
        "versions": escape(" · ".join(f"{name} {version}" for name, version in story.versions.items())),
        # "</" would end the script element early.
        "data": json.dumps(_points(story)).replace("</", "<\\/"),
    }
    page = (HERE / "report.template.html").read_text()
    for name, value in values.items():
        page = page.replace(f"<!--{name}-->", value)
    return page


def picture(story: Story) -> str:
    """Return the loss chart as a file of its own, its style inside and on a white ground."""
    style = f"<style>{(HERE / 'report.css').read_text().split('/* page */')[0]}</style>"
    ground = f'<rect width="{WIDTH}" height="100%" fill="#fff"/>'
    head, body = loss_chart(story).split(">", 1)
    return f"{head}>{style}{ground}{body}"


def _headline(story: Story) -> str:
    times = {0: "never", 1: "once", 2: "twice"}.get(story.preemptions, f"{story.preemptions} times")
    same = story.sha256 and story.sha256 == story.twin.sha256
    return f"Preempted {times}. Finished once. {'The same bytes.' if same else 'Different bytes!'}"


def _tiles(story: Story) -> str:
    share = story.steps_lost / max(story.steps, 1)
    tiles = [
        (str(len(story.attempts)), "attempts", "Batch jobs submitted for one training"),
        (str(story.preemptions), "preemptions", "machines taken away without asking"),
        (str(story.try_number), "Airflow try", "no retry was spent on a preemption"),
        (
            f"{story.steps_lost}",
            "steps repeated",
            f"{share:.1%} of {story.steps}, {story.seconds_lost:.1f} s",
        ),
    ]
    return "".join(
        f'<div class="tile"><b>{number}</b><span>{name}</span><small>{text}</small></div>'
        for number, name, text in tiles
    )


def _legend(story: Story) -> str:
    attempts = [
        f'<span><i class="swatch" style="background:{colour(attempt)}"></i>attempt {attempt.number}</span>'
        for attempt in story.attempts
    ]
    return "".join(
        [
            *attempts,
            '<span><i class="swatch wide"></i>never interrupted</span>',
            '<span><i class="swatch dashed"></i>lost, trained again</span>',
            '<span><i class="dot"></i>checkpoint committed</span>',
        ]
    )


def _proof(story: Story) -> str:
    pairs = ((f"preempted {story.preemptions}×", story.sha256), ("uninterrupted", story.twin.sha256))
    digests = "".join(
        f'<div class="digest"><span>{name}</span><code>{escape(digest or "none")}</code></div>'
        for name, digest in pairs
    )
    return f"{digests}<ul>{''.join(_claim(claim) for claim in claims(story))}</ul>"


def _claim(claim: Claim) -> str:
    kind, mark = ("held", "✓") if claim.held else ("broken", "✕")
    return f'<li class="{kind}"><i>{mark}</i>{escape(claim.text)} <small>{escape(claim.seen)}</small></li>'


def _table(story: Story) -> str:
    return "".join(_table_row(attempt, story.began) for attempt in story.attempts)


def _table_row(attempt: Attempt, began: float) -> str:
    trained = f"{attempt.losses[0].step} – {attempt.losses[-1].step}" if attempt.losses else "—"
    cells = [
        f'<i class="swatch" style="background:{colour(attempt)}"></i>{attempt.number}',
        escape(attempt.verdict),
        f"{attempt.submitted - began:.1f} s",
        f"{attempt.ended - attempt.submitted:.1f} s",
        attempt.origin,
        trained,
        str(len(attempt.commits)),
        f"{len(attempt.lost)} steps, {attempt.seconds_lost:.1f} s" if attempt.lost else "—",
        f"<code>{escape(attempt.job_name.rsplit('/', 1)[-1])}</code>",
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _points(story: Story) -> dict[str, object]:
    """Return what the page's script needs to name the point under the pointer."""
    frame = loss_frame(story)
    points = [
        [
            round(frame.x(loss.step), 1),
            round(frame.y(loss.loss), 1),
            attempt.number,
            loss.step,
            round(loss.loss, 5),
            round(loss.time - story.began, 1),
            int(loss.step > attempt.kept_step),
        ]
        for attempt in story.attempts
        for loss in attempt.losses
    ]
    colours = {attempt.number: colour(attempt) for attempt in story.attempts}
    return {"points": points, "colours": colours, "width": WIDTH, "top": frame.top, "bottom": frame.bottom}
