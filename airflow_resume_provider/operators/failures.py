"""How the operator ends without success: the errors that Airflow sees."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_resume_provider.errors import AttemptFailed


class TrainingFailed(AirflowFailException):
    """Nothing more will be tried, not even by Airflow's retries."""


class PreemptedRetry(AttemptFailed):
    """The attempt was preempted and the author wants Airflow to repeat it, at once."""
