"""A connection's credentials: the same as Google's own hook returns, without loading it where it can be."""

import json
import subprocess
import sys

import pytest
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_resume_provider.hooks.batch import ResumableBatchHook
from airflow_resume_provider.hooks.credentials import field, is_plain

LONG = "extra__google_cloud_platform__"


def key_of(name):
    """The content of a service account's key file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": f"{name}@p.iam.gserviceaccount.com",
        "private_key": pem.decode(),
        "private_key_id": "1",
        "project_id": "p",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


@pytest.fixture
def connected(monkeypatch, tmp_path):
    """Sets the extras of the connection; the environment has a key of its own."""
    path = tmp_path / "default.json"
    path.write_text(json.dumps(key_of("default")))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for name in ("BATCH_EMULATOR_HOST", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)

    def connect(extra):
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(connection))

    return connect


EXTRAS = {
    "nothing": {},
    "empty fields": {"key_path": "", "keyfile_dict": None, "is_anonymous": False},
    "a project": {"project": "other", "num_retries": 3},
    "long names": {LONG + "project": "other", LONG + "key_path": ""},
    "anonymous": {"is_anonymous": True},
    "anonymous, long name": {LONG + "is_anonymous": True},
    "a key": {"keyfile_dict": key_of("connection")},
    "a key, long name": {LONG + "keyfile_dict": key_of("connection")},
    "a scope": {"scope": "https://www.googleapis.com/auth/devstorage.read_only"},
    "another account": {"impersonation_chain": "other@p.iam.gserviceaccount.com"},
    "a quota project": {"quota_project_id": "pays-for-all"},
    "unknown": {"what_is_this": "1"},
}


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_credentials_are_those_of_googles_own_hook(connected, extra):
    """Whatever the connection asks for: the same kind, account, scopes and payer."""
    connected(extra)
    ours, theirs = ResumableBatchHook().get_credentials(), GoogleBaseHook().get_credentials()
    assert type(ours) is type(theirs)
    for name in ("service_account_email", "quota_project_id"):
        assert getattr(ours, name, None) == getattr(theirs, name, None)
    for name in ("_scopes", "_target_scopes"):
        assert list(getattr(ours, name, None) or ()) == list(getattr(theirs, name, None) or ())


def test_the_connection_is_asked_for_once(connected):
    """Two answers could differ, and only the thread that makes the hook may wait for one."""
    connected(EXTRAS["a key"])
    hook = ResumableBatchHook()
    connected({"keyfile_dict": key_of("another")})
    assert hook.get_credentials().service_account_email == "connection@p.iam.gserviceaccount.com"


def test_an_account_to_impersonate_is_impersonated(connected):
    """Also when only the operator says so."""
    connected({})
    found = ResumableBatchHook(impersonation_chain="other@p.iam.gserviceaccount.com").get_credentials()
    assert found.service_account_email == "other@p.iam.gserviceaccount.com"


LOADED = """
import json, os, sys
from airflow_resume_provider.hooks.batch import ResumableBatchHook
for extra in json.loads(sys.argv[1]):
    os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps({"conn_type": "google", "extra": extra})
    ResumableBatchHook().get_conn()
    print("loaded", "airflow.providers.google.common.hooks.base_google" in sys.modules)
"""


def test_googles_hook_is_loaded_for_what_only_it_knows(connected):
    """Its loading would take most of the time between a preemption and the next job."""
    names = ["nothing", "empty fields", "a project", "anonymous", "a key"]
    connections = json.dumps([EXTRAS[name] for name in names])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, connections], check=True, capture_output=True, text=True
    )
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert loaded == ["loaded False"] * 4 + ["loaded True"]


def test_without_credentials_the_error_is_googles(connected, monkeypatch, tmp_path):
    """A person finds its words in Google's documentation."""
    from google.auth.exceptions import DefaultCredentialsError

    connected({})
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(DefaultCredentialsError, match=r"nowhere\.json"):
        ResumableBatchHook().get_credentials()


def test_another_universe_is_where_the_client_goes(connected, monkeypatch):
    """The variable that the Google provider's hooks read."""
    connected({"is_anonymous": True})
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "example.org")
    assert "example.org" in ResumableBatchHook().get_conn().api_endpoint


@pytest.mark.parametrize(
    ("extra", "chain", "plain"),
    [
        ({}, None, True),
        ({}, [], True),
        ({}, "a@b", False),
        ({"batch_endpoint": "localhost:1"}, None, True),
        ({LONG + "key_path": "/key"}, None, False),
        ({"anything_new": 1}, None, False),
    ],
)
def test_what_is_not_known_counts_as_special(extra, chain, plain):
    """A field of a later version of the Google provider must not be passed over."""
    assert is_plain(extra, chain) is plain


def test_the_short_name_of_a_field_wins():
    """As in Google's hook."""
    assert field({"project": "a", LONG + "project": "b"}, "project") == "a"
    assert field({"project": "", LONG + "project": "b"}, "project") is None
    assert field({LONG + "project": "b"}, "project") == "b"
