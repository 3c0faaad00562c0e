"""What can never work is refused when the DAG is parsed, with the parameter's name."""

from __future__ import annotations

import pytest

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.operators.train import ResumableTrainOperator


def operator(**changes):
    """An operator with these parameters."""
    defaults = {
        "task_id": "train",
        "project_id": "local-project",
        "region": "us-central1",
        "image": "image",
        "command": ["python", "train.py"],
        "checkpoint_root": "gs://bucket/root",
    }
    return ResumableTrainOperator(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("checkpoint_root", "s3://bucket/root"),
        ("checkpoint_root", "gs://"),
        ("checkpoint_root", "gs://bucket/../x"),
        ("checkpoint_root", "/tmp/x"),
        ("labels", {"Team": "nlp"}),
        ("labels", {"team": "N L P"}),
        ("labels", {"resume_day": "x"}),
        ("labels", {f"l{i}": "x" for i in range(60)}),
        ("max_preemptions", -1),
        ("max_infrastructure_failures", -1),
        ("max_attempts_without_progress", 0),
        ("quick_death_seconds", -1),
        ("provisioning_model", "CHEAP"),
        ("region", "moon"),
        ("zones", ["us-east1-b"]),
        ("command", "python train.py"),
        ("command", []),
        ("image", ""),
        ("env", {"RESUME_LINEAGE": "x"}),
        ("env", {"a-b": "x"}),
        ("secret_env", {"KEY": "hunter2"}),
        ("accelerator_count", -1),
        ("accelerator_count", 1),
        ("placements", []),
        ("placements", [{"zonez": []}]),
        ("placements", {"zones": []}),
        ("placements", [{"provisioning_model": "CHEAP"}]),
        ("placements", [{"zones": ["us-east1-b"], "region": "us-central1"}]),
        ("placements", [{"attempts": 0}]),
        ("placements", [{"queue_timeout": -1}]),
        ("placement_policy", "wander"),
        ("on_preemption", "panic"),
        ("resume", "maybe"),
        ("resume_from", "checkpoint-7"),
        ("on_clear", "forget"),
        ("job", {"taskGroupz": []}),
        ("job", {"status": {}}),
        ("timeout", 0),
        ("stall_timeout", -1),
        ("queue_timeout", 0),
        ("poll_interval", 0),
        ("grace_seconds", 0),
        ("keep_last", -1),
        ("stop_signal", "NOPE"),
        ("shm_size", "lots"),
        ("boot_disk_gb", 0),
        ("boot_disk_gb", 1.5),
        ("priority", 100),
        ("max_run_seconds", 0),
        ("project_id", "Not A Project"),
    ],
)
def test_what_cannot_work_is_refused_by_name(parameter, value):
    """The error names the parameter and says what would work."""
    with pytest.raises(InvalidInput) as refused:
        operator(**{parameter: value})
    assert refused.value.parameter.startswith(parameter)
    assert "Give" in str(refused.value) or "Use" in str(refused.value)


def test_a_secret_is_not_repeated_in_the_error():
    """Somebody who pasted the secret itself does not find it in the DAG processor's log."""
    with pytest.raises(InvalidInput) as refused:
        operator(secret_env={"KEY": "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("field", sorted(ResumableTrainOperator.template_fields))
def test_templates_are_not_checked_before_they_are_rendered(field):
    """Every templated field takes a template."""
    structured = {"zones": ["{{ x }}"], "env": {"A": "{{ x }}"}, "labels": {"a": "{{ x }}"}}
    structured |= {"placements": [{"zones": ["{{ x }}"]}], "secret_env": {"A": "{{ x }}"}}
    structured |= {"command": ["{{ x }}"], "job": {"labels": {"a": "{{ x }}"}}}
    value = structured.get(field, "{{ x }}")
    extra = {"accelerator_count": 1} if field == "accelerator_type" else {}
    assert getattr(operator(**{field: value}, **extra), field) == value


def test_other_tasks_results_are_accepted_as_arguments():
    """An XComArg is a template, too."""
    from airflow.sdk import DAG, task

    with DAG("d", schedule=None):

        @task
        def upstream() -> str:
            return "gs://bucket/checkpoint"

        result = upstream()
        trained = operator(resume_from=result, image=result, checkpoint_root=result)
    assert trained.upstream_task_ids == {"upstream"}


def test_words_people_use_are_understood():
    """on-demand is STANDARD; lower case is fine."""
    from airflow_resume_provider.operators.plan import plan

    made = plan(operator(placements=[{"provisioning_model": "on_demand"}, {"provisioning_model": "spot"}]))
    assert [rung.provisioning_model for rung in made.rules.ladder] == ["STANDARD", "SPOT"]


def test_zones_of_a_rung_say_its_region():
    """A rung that only names zones runs in their region."""
    from airflow_resume_provider.operators.plan import plan

    made = plan(
        operator(zones=["us-central1-a"], placements=[{"zones": ["us-east1-b"]}, {"region": "us-west1"}])
    )
    assert [(rung.region, rung.zones) for rung in made.rules.ladder] == [
        ("us-east1", ("us-east1-b",)),
        ("us-west1", ()),
    ]
