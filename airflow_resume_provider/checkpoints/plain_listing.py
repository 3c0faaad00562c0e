"""A listing that goes on past names which obstore cannot represent.

An object called `attempts//x`, which a mistyped copy leaves behind, makes obstore
refuse the whole page. Such names are nothing that we have written, so here they
are left out, and everything else is listed by the same request.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from os import environ
from typing import Any

from airflow_resume_provider.checkpoints.store import Listed, StoreOptions

_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"


class PlainListing:
    """Lists one bucket by Google Cloud Storage's XML API; `OSError` says what the service said."""

    def __init__(self, bucket: str, options: StoreOptions, endpoint: str) -> None:
        self._url = f"{endpoint or 'https://storage.googleapis.com'}/{urllib.parse.quote(bucket)}"
        self._options, self._emulated = options, bool(endpoint)
        self._open = urllib.request.build_opener(
            *([urllib.request.ProxyHandler({})] if endpoint else [])
        ).open

    def objects(self, prefix: str) -> list[Listed]:
        """Return everything below the directory `prefix`, by full names."""
        return [
            Listed(row.findtext("{*}Key", ""), int(row.findtext("{*}Size", "0")))
            for page in self._pages(prefix)
            for row in page.iterfind("{*}Contents")
            if _is_ours(row.findtext("{*}Key", ""))
        ]

    def directories(self, prefix: str) -> list[str]:
        """Return the names of the directories right below `prefix`."""
        rows = [
            row.findtext("{*}Prefix", "")
            for page in self._pages(prefix, delimiter="/")
            for row in page.iterfind("{*}CommonPrefixes")
        ]
        return [row.rstrip("/").rpartition("/")[2] for row in rows if _is_ours(row)]

    def _pages(self, prefix: str, **how: str) -> Iterator[ElementTree.Element]:
        query = {"list-type": "2", "prefix": f"{prefix}/" if prefix else "", **how}
        while True:
            page = self._page(query)
            yield page
            query["continuation-token"] = page.findtext("{*}NextContinuationToken", "")
            if not query["continuation-token"]:
                return

    def _page(self, query: dict[str, str]) -> ElementTree.Element:
        headers = {"authorization": f"Bearer {self._token()}"}
        if self._options.user_project:
            headers["x-goog-user-project"] = self._options.user_project
        body = self._get(f"{self._url}?{urllib.parse.urlencode(query)}", headers)
        try:
            return ElementTree.fromstring(body)  # noqa: S314, from the store that is trusted with the bytes
        except ElementTree.ParseError as error:
            raise OSError(f"the listing is no XML: {error}") from error

    def _get(self, url: str, headers: dict[str, str]) -> bytes:
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310, https or an emulator
            with self._open(request, timeout=self._options.read_seconds) as answer:
                return bytes(answer.read())
        except http.client.HTTPException as error:
            raise OSError(f"the listing broke off: {error!r}") from error
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            # Worded like obstore's, so that it means the same.
            raise OSError(
                f"Server returned non-2xx status code: {error.code} {error.reason}: {said}"
            ) from error

    def _token(self) -> str:
        if self._emulated:
            return "emulator"
        if self._options.credential_provider:
            return str(self._options.credential_provider()["token"])
        return _default_token()

    def __repr__(self) -> str:
        return f"PlainListing({self._url!r})"


def _default_token() -> str:
    """Return a token of Application Default Credentials where they can be read, else the machine's own."""
    try:
        import google.auth
        import google.auth.transport.requests as transport
    except ImportError:
        return _machine_token()
    try:
        credentials: Any = google.auth.default(
            scopes=["https://www.googleapis.com/auth/devstorage.read_only"]
        )[0]
        credentials.refresh(transport.Request())
    except google.auth.exceptions.GoogleAuthError as error:
        raise OSError(f"Error performing token request: {error}") from error
    return str(credentials.token)


def _machine_token() -> str:
    host = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = urllib.request.Request(f"http://{host}{_METADATA}", headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310, http by definition
            return str(json.loads(answer.read())["access_token"])
    except (OSError, ValueError, KeyError) as error:
        raise OSError(f"Error performing token request: {error}") from error


def _is_ours(name: str) -> bool:
    return not any(part in ("", ".", "..") for part in name.rstrip("/").split("/")) and not name.endswith(
        "//"
    )
