"""An access token that is held: fetched early, renewed early, used until it really expires.

After a preemption notice the metadata server may not answer any more
(https://github.com/fsspec/gcsfs/issues/476), while the token that it gave is good for most of an hour.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.notice import MetadataServer

_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_RENEW_BEFORE = 1800.0


class HeldToken:
    """A credential provider for the store: `{"token", "expires_at"}` of this machine's service account."""

    def __init__(self, server: MetadataServer | None = None, clock: Callable[[], float] = time.time) -> None:
        self._server, self._clock = server or MetadataServer(), clock
        self._lock = threading.Lock()
        self._token, self._expires = "", 0.0

    def __call__(self) -> dict[str, Any]:
        """Return a token, the held one when no newer one is to be had.

        Raises:
            OSError: there is none at all.
        """
        with self._lock:
            if self._clock() > self._expires - _RENEW_BEFORE:
                self._renew()
            return {"token": self._token, "expires_at": datetime.fromtimestamp(self._expires, UTC)}

    def _renew(self) -> None:
        try:
            said = json.loads(self._server.get(_PATH, timeout=3.0))
            self._token, self._expires = said["access_token"], self._clock() + float(said["expires_in"])
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if self._clock() >= self._expires:
                raise OSError(f"the metadata server gives no token: {error}") from error


def held_token(environ: Mapping[str, str] = os.environ) -> HeldToken | None:
    """Return a held token on a Compute Engine machine without credentials of its own, else None."""
    if environ.get("GOOGLE_APPLICATION_CREDENTIALS") or environ.get(env.STORAGE_EMULATOR_HOST):
        return None
    token = HeldToken(MetadataServer(environ))
    try:
        token()
    except OSError:
        return None
    return token
