"""The client of the local Airflow: what a busy database refuses is asked again, everything else is not."""

from __future__ import annotations

import httpx
import pytest
import tenacity

from airflow_resume_provider.testing.airflow_client import AirflowClient

BUSY = httpx.Response(500, json={"detail": {"reason": "Database error"}})
BROKEN = httpx.Response(500, json={"detail": "a defect"})
STARTED = httpx.Response(200, json={"dag_run_id": "r"})


def client(*answers: httpx.Response) -> tuple[AirflowClient, list[str]]:
    """A client of a server that gives these answers, and the requests that it got."""
    left, seen = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(200, json={"access_token": "t"})
        seen.append(f"{request.method} {request.url.path}")
        return left.pop(0)

    made = AirflowClient("http://127.0.0.1:1")
    made.close()
    made._http = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    return made, seen


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between tries."""
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)


def test_a_busy_database_is_asked_again() -> None:
    """Airflow has undone the change, so there is one run."""
    made, seen = client(BUSY, BUSY, STARTED)
    assert made.trigger("d") == "r"
    assert seen == ["POST /api/v2/dags/d/dagRuns"] * 3


@pytest.mark.parametrize(("answers", "requests"), [([BROKEN], 1), ([BUSY] * 5, 5)], ids=["defect", "busy"])
def test_other_errors_and_an_endless_one_are_said(answers: list[httpx.Response], requests: int) -> None:
    """A defect is no reason to try again, and patience ends."""
    made, seen = client(*answers)
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        made.trigger("d")
    assert len(seen) == requests
