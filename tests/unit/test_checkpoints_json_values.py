"""JSON that every reader understands, and names that every store can hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.commit import Commit
from airflow_resume_provider.checkpoints.json_values import finite, is_finite, parse
from airflow_resume_provider.checkpoints.manifest import Manifest
from airflow_resume_provider.checkpoints.retrying import Transient
from airflow_resume_provider.checkpoints.store import StoreOptions, open_store
from airflow_resume_provider.checkpoints.store_errors import translate
from airflow_resume_provider.errors import (
    InvalidInput,
    ManifestUnreadable,
    ObjectNotFound,
    PermissionDenied,
    StoreMisconfigured,
)

ENTRY = {"path": "w", "size": 0, "crc32c": "AAAAAA=="}
MANIFEST = {"schema": 1, "training_id": "t", "attempt": 1, "index": 0, "step": 0, "files": [ENTRY]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_finite_values_are_json(value: object) -> None:
    """Whatever a trainer reports becomes JSON, and what is JSON already does not change."""
    assert is_finite(finite(value))
    assert finite(finite(value)) == finite(value)
    if is_finite(value):
        assert finite(value) == value


def test_numbers_json_does_not_have() -> None:
    """They are read and written as the strings that name them."""
    assert parse('{"a": NaN, "b": [Infinity, -Infinity, 1e999]}') == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity", "Infinity"],
    }


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 200_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"\xff"])
def test_one_error_for_what_is_no_json(raw: bytes) -> None:
    """Truncated, binary and endlessly nested text are all `ValueError`."""
    with pytest.raises(ValueError):  # noqa: PT011
        parse(raw)


def test_lone_surrogate_in_a_manifest() -> None:
    """A path that no file system can hold makes the manifest unreadable."""
    entry = {"path": "x\ud800", "size": 0, "crc32c": "AAAAAA=="}
    with pytest.raises(ManifestUnreadable, match="not valid Unicode"):
        Manifest.from_json(json.dumps({**MANIFEST, "files": [entry]}).encode())


def test_nan_in_a_manifest() -> None:
    """A manifest that another program wrote with NaN is read, and written again as JSON."""
    raw = json.dumps({**MANIFEST, "metrics": {"loss": float("nan")}, "future": float("inf")}).encode()
    manifest = Manifest.from_json(raw)
    assert manifest.metrics == {"loss": "NaN"}
    assert b"Infinity" in manifest.to_json()


@pytest.mark.parametrize(
    "path", ["a", "model.bin", "s/manifest.json", ".resumed", ".hidden", "a b%20", "\u2028"]
)
def test_natural_names(path: str) -> None:
    """A name that stores can hold is the object's name."""
    assert names.stored_as(path) == ""


@pytest.mark.parametrize(
    "path",
    ["manifest.json", "manifest.json/x", ".resume/manifest.json", ".resume/x", ".resume-staged-x"]
    + [f"a{chr(code)}b" for code in (1, 9, 10, 13, 127)],
)
def test_names_that_need_another(path: str) -> None:
    """Reserved names and control characters are stored under another name, one for each path."""
    stored = names.stored_as(path)
    assert stored.startswith(".resume/")
    assert stored.isprintable()
    assert names.stored_as(f"{path}x") != stored


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "x"])
def test_seconds_that_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RESUME_STORE_SECONDS must be a number of seconds, or it is said which variable is wrong."""
    monkeypatch.setenv("RESUME_STORE_SECONDS", text)
    with pytest.raises(InvalidInput, match="RESUME_STORE_SECONDS"):
        StoreOptions()


@pytest.mark.parametrize("uri", ["gs:///x", "gs://", "file:///l\udcff", "gs://b/\udcff"])
def test_uris_without_a_bucket_or_in_no_encoding(uri: str) -> None:
    """They are refused by the name of the parameter, before anything is asked."""
    with pytest.raises(InvalidInput, match="lineage is"):
        open_store(uri)


TOKEN = "Generic GCS error: Error performing token request: Error performing GET http://m/token in 2ms - "


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found"])
@pytest.mark.parametrize("what", ["list", "read", "write"])
def test_credentials_that_are_missing(status: str, what: str) -> None:
    """A refused token request is said to be one: it is no missing permission, object or bucket."""
    error = translate(
        Exception(f"{TOKEN}Server returned non-2xx status code: {status}: no"), what=what, uri="gs://b/x"
    )
    assert isinstance(error, PermissionDenied)
    assert "request for an access token failed" in str(error)
    assert "storage.objects" not in str(error)


def test_token_server_that_does_not_answer() -> None:
    """A token request that may succeed later is tried again, and named."""
    for said in (
        "HTTP error: error sending request",
        "Server returned non-2xx status code: 503 Unavailable: x",
    ):
        error = translate(Exception(TOKEN + said), what="read", uri="gs://b/x")
        assert isinstance(error, Transient)
        assert "token request" in str(error)


def test_unreadable_credentials_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A credentials file that is not there is a named error, not a traceback."""
    from airflow_resume_provider.errors import StoreMisconfigured

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(StoreMisconfigured, match="GOOGLE_APPLICATION_CREDENTIALS"):
        open_store("gs://b/x")


@pytest.mark.parametrize("name", ["requester-pays", "cloudkms-data", "status503", "storage.objects.all"])
def test_a_name_is_no_answer(name: str) -> None:
    """Only what the service said counts, whatever the bucket and the object are called."""
    where = f"https://storage.googleapis.com/{name}/l/manifest.json"

    def error(status: str, body: str = "") -> OSError:
        begins = (
            f"Object at location {name}/l/manifest.json not found: Error performing GET {where} in 9ms - "
        )
        answer = f"Server returned non-2xx status code: {status}: {body}"
        return OSError(f"{begins}{answer}\n\nDebug source:\nstatus 200")

    def meaning(status: str, body: str = "") -> Exception:
        return translate(error(status, body), what="read", uri=f"gs://{name}/l/manifest.json")

    assert isinstance(meaning("404 Not Found"), ObjectNotFound)
    assert isinstance(meaning("503 Service Unavailable"), Transient)
    assert isinstance(meaning("400 Bad Request", "UserProjectMissing"), StoreMisconfigured)
    denied = meaning("403 Forbidden", "x does not have storage.objects.get access to storage.googleapis.com")
    assert isinstance(denied, PermissionDenied)
    assert denied.permission == "storage.objects.get"


def test_a_manifest_nested_too_deeply_is_unreadable() -> None:
    """It parses, and then nothing could walk through its metrics; an own one is refused before it goes up."""
    deep: dict[str, object] = {}
    for _ in range(400):
        deep = {"a": deep}
    with pytest.raises(ManifestUnreadable, match="too deeply"):
        Manifest.from_json(json.dumps({**MANIFEST, "metrics": deep}).encode())
    with pytest.raises(InvalidInput, match="metadata"):
        Commit(attempt=1, step=1, metadata=deep)


def test_what_utf8_cannot_hold_is_refused_before_anything_goes_up() -> None:
    """A lone surrogate would fail when the manifest is written, after all files were."""
    with pytest.raises(InvalidInput, match="metadata"):
        Commit(attempt=1, step=1, metadata={"a": "\ud800"})
