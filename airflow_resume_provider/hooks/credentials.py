"""A connection's credentials: the short way where it asks for nothing special, else Google's own hook's.

Loading Google's hook takes as long as everything else between a preemption and the next job together,
and what it is loaded for are fields that most connections do not have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_resume_provider.runtime.env import STORAGE_EMULATOR_HOST

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from google.auth.credentials import Credentials

    from airflow_resume_provider.checkpoints import StoreOptions
    from airflow_resume_provider.hooks.batch import ResumableBatchHook

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Fields that say nothing of how to sign in, except that nobody does.
PLAIN = frozenset({"batch_endpoint", "is_anonymous", "num_retries", "project"})
_PREFIX = "extra__google_cloud_platform__"


def field(extras: Mapping[str, Any], name: str) -> Any:
    """Return a field of a Google Cloud connection, under its short or its old long name."""
    value = extras.get(name, extras.get(_PREFIX + name))
    return None if value == "" else value


def is_plain(extras: Mapping[str, Any], impersonation_chain: str | Sequence[str] | None) -> bool:
    """Return whether a connection means Application Default Credentials, or none at all.

    A field that is not known here counts as one that matters.
    """
    said = {name.removeprefix(_PREFIX) for name, value in extras.items() if value not in (None, "", False)}
    return not impersonation_chain and said <= PLAIN


def credentials(connection: Connection, impersonation_chain: str | Sequence[str] | None) -> Credentials:
    """Return the credentials that Google's own hook returns for this connection."""
    extras = connection.extra_dejson
    if not is_plain(extras, impersonation_chain):
        return _googles_own(connection, impersonation_chain)
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    anonymous: Any = AnonymousCredentials  # it has no types
    found: Credentials
    if field(extras, "is_anonymous"):
        found = anonymous()
    else:
        found, _project = google.auth.default(scopes=SCOPES)
    return found


def _googles_own(connection: Connection, impersonation_chain: str | Sequence[str] | None) -> Credentials:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

    class Given(GoogleBaseHook):
        """Takes the connection that is here already: not every thread of a triggerer may ask for it."""

        @classmethod
        def get_connection(cls, conn_id: str) -> Connection:
            return connection

    return Given(connection.conn_id, impersonation_chain).get_credentials()


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

    if os.environ.get(STORAGE_EMULATOR_HOST) or field(hook.extras, "is_anonymous"):
        return StoreOptions()
    return StoreOptions(credential_provider=ConnectionCredentials(hook.get_credentials()))
