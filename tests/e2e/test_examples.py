"""Every example DAG, run as it stands by a real Airflow on the local stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_resume_provider.testing import LocalStack, Plan, Settings, preempt
from airflow_resume_provider.testing.airflow import LocalAirflow
from airflow_resume_provider.testing.airflow_client import AirflowClient
from airflow_resume_provider.testing.faults import stock_out

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CHECKOUT = Path(__file__).parents[2]
DAGS = CHECKOUT / "dags"
EXAMPLES = sorted(path.stem for path in DAGS.glob("*.py"))
TRAINER = {"/opt/trainer": str(CHECKOUT / "docker" / "trainer")}
# Frameworks are not installed beside Airflow: programs that write the same files are in their places.
# The trainings themselves run in tests/frameworks.
STAND_IN = {"/opt/trainer": str(Path(__file__).with_name("stand_ins"))}
STANDING_IN = ("hugging-face", "lightning", "marian", "several-nodes")
SETTINGS = Settings(images={"*trainer*": TRAINER, **{f"{name}:*": STAND_IN for name in STANDING_IN}})
FRAMEWORKS = ("train_hugging_face", "train_lightning", "train_marian", "several_nodes")
PLAN = Plan(
    *(preempt(job={"airflow_dag": dag_id}, after_commits=1, notice=False) for dag_id in FRAMEWORKS),
    preempt(job={"airflow_dag": "train_digits"}, after_commits=1, notice=False),
    preempt(job={"airflow_dag": "train_unmodified_image"}, after_commits=1, grace_seconds=3),
    preempt(job={"airflow_dag": "sweep", "airflow_map_index": "1"}, after_commits=1, grace_seconds=3),
    stock_out(zones=["us-central1-a"], provisioning="SPOT"),
    stock_out(zones=["us-east1"], provisioning="SPOT"),
)
QUICK = {
    "RESUME_EXAMPLE_ARGUMENTS": "--steps 200 --step-seconds 0.02",
    "RESUME_EXAMPLE_STEP_SECONDS": "0.01",
    "RESUME_EXAMPLE_POLL": "1",
    "RESUME_EXAMPLE_QUEUE": "5",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with LocalStack(tmp_path_factory.mktemp("stack"), plan=PLAN, settings=SETTINGS) as stack:
        yield stack


def astro_environment(stack: LocalStack) -> dict[str, str]:
    """What `astro dev` gives to every service, the stack's host and ports being this test's."""
    text = (CHECKOUT / "docker" / "astro" / ".env").read_text()
    text = text.replace("resume-local:8790", stack.batch_endpoint)
    text = text.replace("http://resume-local:8791", stack.storage_endpoint)
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def airflow(stack: LocalStack) -> Iterator[LocalAirflow]:
    with LocalAirflow(DAGS, env={**astro_environment(stack), **QUICK}) as airflow:
        yield airflow


@pytest.fixture(scope="module")
def runs(airflow: LocalAirflow) -> dict[str, str]:
    """All examples at once, so that the slowest sets the pace."""
    for dag_id in EXAMPLES:
        airflow.client.wait_for_dag(dag_id)
    broken = {"key": "resume_broken_after", "value": "120"}
    airflow.client.request("POST", "variables", json=broken)
    return {dag_id: airflow.client.trigger(dag_id) for dag_id in EXAMPLES}


@pytest.fixture
def client(airflow: LocalAirflow) -> AirflowClient:
    return airflow.client


def succeeded(client: AirflowClient, runs: dict[str, str], dag_id: str) -> None:
    state = client.wait_for_run(dag_id, runs[dag_id], timeout=400)
    assert state == "success", client.task_instances(dag_id, runs[dag_id])


def attempts(client: AirflowClient, runs: dict[str, str], dag_id: str, **which: Any) -> list[str]:
    task_id = which.pop("task_id", "train")
    entries = client.xcoms(dag_id, runs[dag_id], task_id, **which)["attempts"]
    return [entry["verdict"] for entry in entries]


def test_every_example_has_a_test() -> None:
    """A new example DAG without a test of its own here is a failure."""
    tested = {name.removeprefix("test_example_") for name in globals() if name.startswith("test_example_")}
    assert set(EXAMPLES) == tested


def test_example_train_digits(client: AirflowClient, runs: dict[str, str]) -> None:
    """The own image: preempted once, finished in the same try; the downstream task reads the summary."""
    succeeded(client, runs, "train_digits")
    run_id = runs["train_digits"]
    assert attempts(client, runs, "train_digits") == ["preempted", "succeeded"]
    assert client.task_instance("train_digits", run_id, "train")["try_number"] == 1
    uri = client.xcoms("train_digits", run_id, "train")["checkpoint_uri"]
    assert client.xcoms("train_digits", run_id, "report")["return_value"] == f"step 200 at {uri}"


def test_example_train_unmodified_image(client: AirflowClient, runs: dict[str, str]) -> None:
    """The unmodified image: what the sidecars committed is what the next attempt starts from."""
    succeeded(client, runs, "train_unmodified_image")
    assert attempts(client, runs, "train_unmodified_image") == ["preempted", "succeeded"]
    xcoms = client.xcoms("train_unmodified_image", runs["train_unmodified_image"], "train")
    assert xcoms["resumed_from"]
    assert xcoms["return_value"]["step"] == 200


def test_example_sweep(client: AirflowClient, runs: dict[str, str]) -> None:
    """The sweep: three trials in lineages of their own, one of them preempted, and the best is named."""
    succeeded(client, runs, "sweep")
    found = [client.xcoms("sweep", runs["sweep"], "train", index) for index in range(3)]
    uris = [xcoms["checkpoint_uri"] for xcoms in found]
    assert len({uri.split("/g1/")[0] for uri in uris}) == 3
    assert [xcoms["return_value"]["preemptions"] for xcoms in found] == [0, 1, 0]
    assert client.xcoms("sweep", runs["sweep"], "best")["return_value"] in uris


def test_example_spot_then_on_demand(client: AirflowClient, runs: dict[str, str], stack: LocalStack) -> None:
    """The ladder: Spot is sold out in two places, so the third job is an on-demand one and finishes."""
    succeeded(client, runs, "spot_then_on_demand")
    assert attempts(client, runs, "spot_then_on_demand") == ["stocked_out", "stocked_out", "succeeded"]
    jobs = [job.name for job in stack.jobs() if job.labels["airflow_dag"] == "spot_then_on_demand"]
    assert ["us-east1" in name for name in jobs] == [False, True, False]


def test_example_warm_start(client: AirflowClient, runs: dict[str, str]) -> None:
    """The warm start: the second training begins at the first one's last step."""
    succeeded(client, runs, "warm_start")
    run_id = runs["warm_start"]
    pretrained = client.xcoms("warm_start", run_id, "pretrain")["checkpoint_uri"]
    finetuned = client.xcoms("warm_start", run_id, "finetune")
    assert finetuned["resumed_from"] == pretrained
    assert finetuned["return_value"]["step"] == 400


def test_example_fix_and_clear(client: AirflowClient, runs: dict[str, str]) -> None:
    """Fix and clear: the run fails after step 120, and once cleared goes on from step 100."""
    run_id = runs["fix_and_clear"]
    assert client.wait_for_run("fix_and_clear", run_id, timeout=400) == "failed"
    client.request("DELETE", "variables/resume_broken_after")
    client.clear("fix_and_clear", run_id, ["train"])
    succeeded(client, runs, "fix_and_clear")
    assert attempts(client, runs, "fix_and_clear") == ["user_error", "succeeded"]
    xcoms = client.xcoms("fix_and_clear", run_id, "train")
    assert xcoms["return_value"]["step"] == 200
    assert "/attempts/0001/" in xcoms["resumed_from"]


def one_preemption_and_the_end(client: AirflowClient, runs: dict[str, str], dag_id: str) -> None:
    """The second attempt starts from what the first one had committed, and reaches the last step."""
    succeeded(client, runs, dag_id)
    assert attempts(client, runs, dag_id) == ["preempted", "succeeded"]
    xcoms = client.xcoms(dag_id, runs[dag_id], "train")
    assert "/attempts/0001/" in xcoms["resumed_from"]
    assert xcoms["return_value"]["step"] == 60


def test_example_train_hugging_face(client: AirflowClient, runs: dict[str, str]) -> None:
    """The Trainer's files are recognised, committed and restored."""
    one_preemption_and_the_end(client, runs, "train_hugging_face")


def test_example_train_lightning(client: AirflowClient, runs: dict[str, str]) -> None:
    """Lightning's files are recognised, committed and restored."""
    one_preemption_and_the_end(client, runs, "train_lightning")


def test_example_train_marian(client: AirflowClient, runs: dict[str, str]) -> None:
    """Marian's files are recognised, committed and restored."""
    one_preemption_and_the_end(client, runs, "train_marian")


def test_example_several_nodes(client: AirflowClient, runs: dict[str, str], stack: LocalStack) -> None:
    """Two tasks, one for each node, make one checkpoint; the next attempt has both shards on both."""
    one_preemption_and_the_end(client, runs, "several_nodes")
    jobs = [job for job in stack.jobs() if job.labels["airflow_dag"] == "several_nodes"]
    assert [sum(job.tasks.values()) for job in jobs] == [2, 2]
