"""An access token that is held: fetched early, renewed early, used until it really expires.

After a preemption notice the metadata server may not answer any more
(https://github.com/fsspec/gcsfs/issues/476), while the token that it gave is good for most of an hour.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_resume_provider.runtime import env
from airflow_resume_provider.runtime.notice import MetadataServer

_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_RENEW_BEFORE = 1800.0
_AGAIN_SECONDS = 30.0


class HeldToken:
    """A credential provider for the store: `{"token", "expires_at"}` of this machine's service account."""

    def __init__(
        self, server: MetadataServer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server, self._clock = server or MetadataServer(), clock
        self._lock = threading.Lock()
        self._renewing: threading.Thread | None = None
        self._token, self._expires, self._renew_at = "", 0.0, 0.0

    def __call__(self) -> dict[str, Any]:
        """Return a token, the held one at once as long as it is good: nobody waits for a newer one.

        Raises:
            OSError: there is none at all.
        """
        with self._lock:
            if self._clock() >= self._expires:
                self._renew()
            elif self._clock() >= self._renew_at and not (self._renewing and self._renewing.is_alive()):
                self._renewing = threading.Thread(target=self._try_to_renew, name="token", daemon=True)
                self._renewing.start()
            left = timedelta(seconds=self._expires - self._clock())
            return {"token": self._token, "expires_at": datetime.now(UTC) + left}

    def _try_to_renew(self) -> None:
        with contextlib.suppress(OSError):
            self._renew()

    def _renew(self) -> None:
        asked = self._clock()
        try:
            said = json.loads(self._server.get(_PATH, timeout=3.0))
            token, lasts = str(said["access_token"]), float(said["expires_in"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self._renew_at = self._clock() + _AGAIN_SECONDS
            raise OSError(f"the metadata server gives no token: {error}") from error
        self._token, self._expires = token, asked + lasts
        # The server itself holds a token and gives the same one until it is nearly over.
        self._renew_at = max(self._expires - _RENEW_BEFORE, self._clock() + _AGAIN_SECONDS)


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
