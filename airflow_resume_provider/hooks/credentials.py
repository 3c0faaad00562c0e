"""The Airflow connection's credentials, handed to the store of checkpoints."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.runtime.env import STORAGE_EMULATOR_HOST

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from airflow_resume_provider.checkpoints import StoreOptions
    from airflow_resume_provider.hooks.batch import ResumableBatchHook


class ConnectionCredentials:
    """Gives obstore a token of the connection, refreshed when it has run out."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials: Any = credentials  # its methods have no types

    def __call__(self) -> dict[str, Any]:
        """Return a token that is valid now, in the form obstore asks for."""
        from google.auth.transport.requests import Request

        if not self._credentials.valid:
            self._credentials.refresh(Request())
        expiry = getattr(self._credentials, "expiry", None)
        return {
            "token": self._credentials.token,
            # google-auth keeps naive UTC.
            "expires_at": expiry.replace(tzinfo=UTC) if isinstance(expiry, datetime) else None,
        }


def store_options(hook: ResumableBatchHook) -> StoreOptions:
    """Return the options that carry the connection's credentials; none are needed for an emulator."""
    from airflow_resume_provider.checkpoints import StoreOptions

    if os.environ.get(STORAGE_EMULATOR_HOST) or hook._get_field("is_anonymous"):
        return StoreOptions()
    return StoreOptions(credential_provider=ConnectionCredentials(hook.get_credentials()))
