"""Airflow's own Batch operator and hook against the stack, unmodified, deferrable and not."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from stack_clients import job_of, script

from airflow_resume_provider.testing import LocalStack

needs_dag_test = pytest.mark.skipif(
    version("apache-airflow").startswith("3.2."),
    reason="dag.test() of Airflow 3.2 does not start with current FastAPI: its own API lacks svcs_registry",
)

REGION = "us-central1"


@pytest.fixture
def dag_of(monkeypatch: pytest.MonkeyPatch, resume_local: LocalStack) -> Callable[..., Any]:
    """A DAG with one stock operator, whose clients are pointed at the stack and otherwise untouched."""
    import grpc
    from airflow.providers.google.cloud.hooks import cloud_batch
    from airflow.providers.google.cloud.operators.cloud_batch import CloudBatchSubmitJobOperator
    from airflow.sdk import DAG
    from google.cloud.batch_v1.services.batch_service.transports import (
        BatchServiceGrpcAsyncIOTransport,
        BatchServiceGrpcTransport,
    )

    endpoint = resume_local.batch_endpoint
    sync, asynchronous = cloud_batch.BatchServiceClient, cloud_batch.BatchServiceAsyncClient
    monkeypatch.setattr(
        cloud_batch,
        "BatchServiceClient",
        lambda **_: sync(transport=BatchServiceGrpcTransport(channel=grpc.insecure_channel(endpoint))),
    )
    monkeypatch.setattr(
        cloud_batch,
        "BatchServiceAsyncClient",
        lambda **_: asynchronous(
            transport=BatchServiceGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(endpoint))
        ),
    )

    def make(text: str, deferrable: bool) -> Any:
        with DAG("stock", schedule=None) as dag:
            CloudBatchSubmitJobOperator(
                task_id="submit",
                project_id="local-project",
                region=REGION,
                job_name="stock-job",
                job=job_of(script(text)),
                deferrable=deferrable,
                polling_period_seconds=0.2,
            )
        return dag

    return make


@needs_dag_test
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("deferrable", [False, True])
def test_the_stock_operator_runs_a_job(
    dag_of: Callable[..., Any], resume_dag: Callable[..., Any], resume_local: LocalStack, deferrable: bool
) -> None:
    """The task succeeds with the job and its XCom is the job's message."""
    run = resume_dag(dag_of("echo hello", deferrable))
    assert run.state == "success"
    assert [job.state for job in resume_local.jobs()] == ["SUCCEEDED"]
    assert run.xcom("submit")["name"].endswith("/jobs/stock-job")
    assert "hello" in resume_local.logs("stock-job")


@needs_dag_test
@pytest.mark.filterwarnings("ignore")
def test_the_stock_operator_fails_with_the_job(
    dag_of: Callable[..., Any], resume_dag: Callable[..., Any], resume_local: LocalStack
) -> None:
    """Deferred, a failed job fails the task."""
    run = resume_dag(dag_of("exit 3", deferrable=True))
    assert (run.state, run.task("submit").state) == ("failed", "failed")
