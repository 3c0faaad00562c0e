"""A test that takes the machine away from a DAG's training; shown in the documentation."""

import pytest

from airflow_resume_provider.testing import Plan, preempt


@pytest.mark.resume_local(plan=Plan(preempt(job=1, after_commits=2)))
def test_the_count_survives_a_preemption(resume_local, resume_dag, monkeypatch):
    """One preemption, two jobs, one try, and the count goes on where it was."""
    from counting_dag import counting  # here, since Airflow reads its settings when it is imported

    monkeypatch.setenv("RESUME_TRIGGER_MIN_SECONDS", "1")
    run = resume_dag(counting())
    assert run.state == "success"
    assert [attempt["verdict"] for attempt in run.xcom("count", "attempts")] == ["preempted", "succeeded"]
    assert run.xcom("count", "return_value")["step"] == 5
    assert len(resume_local.jobs()) == 2
