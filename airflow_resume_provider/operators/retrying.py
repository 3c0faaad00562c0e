"""Lets Airflow repeat a preempted attempt at once, where Airflow asks tasks about their retries (3.3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryPolicy
from airflow.sdk.definitions.retry_policy import RetryDecision

from airflow_resume_provider.operators.failures import PreemptedRetry


class PreemptionRetryPolicy(RetryPolicy):
    """Retries a preemption without delay; anything else is left to the author's own policy.

    It can never exceed the task's `retries`.
    """

    def __init__(self, otherwise: RetryPolicy | None = None) -> None:
        self.otherwise = otherwise

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        """Return what Airflow does about the failure."""
        if isinstance(exception, PreemptedRetry):
            return RetryDecision.retry(delay=timedelta(0), reason="preempted")
        if self.otherwise is not None:
            return self.otherwise.evaluate(exception, try_number, max_tries, context)
        return RetryDecision.default()
