"""What obstore's and the system's errors mean: trying again helps, or a named error.

obstore gives most failures as text, so this reads the status and the body that
Google Cloud Storage sent.
"""

from __future__ import annotations

import re

from airflow_resume_provider.checkpoints.retrying import Transient
from airflow_resume_provider.checkpoints.store import Unlistable
from airflow_resume_provider.errors import (
    AlreadyExists,
    ObjectNotFound,
    PermissionDenied,
    ResumeError,
    StoreMisconfigured,
)

_STATUS = re.compile(r"status(?: code)?:? ?(\d{3})")
_ANSWER = re.compile(r"(?:^| - )Server returned non-2xx status code: (\d{3})(.*)", re.S)
_PERMISSION = re.compile(r"\bstorage\.(?!googleapis\b)\w+\.\w+")
_DEBUG = re.compile(r"\s*\n+Debug source:.*", re.S)
_PREFIX = re.compile(
    r"^(Generic \w+ error|Object at location .{1,900} \w+ ?\w*|The operation lacked .*?): ", re.S
)
_REQUEST = re.compile(r"Error performing (\w+ request: |\w+ \S+( in [^ ]+)?(, after \d+ retries.*?)? - )")
_TOKEN = re.compile(r"performing token request|External GCP credential provider")
_TRANSIENT_STATUS = {408, 410, 425, 429}
PERMISSIONS = {
    "list": "storage.objects.list",
    "read": "storage.objects.get",
    "write": "storage.objects.create",
    "delete": "storage.objects.delete",
}
_MISCONFIGURED = (
    (
        re.compile(r"UserProjectMissing|requester.pays", re.I),
        "The bucket is requester-pays and no project was named to pay.",
        "Set RESUME_USER_PROJECT (StoreOptions.user_project) to a project that pays for the requests.",
    ),
    (
        re.compile(r"cloud ?kms|kms key|cryptoKey", re.I),
        "The bucket's encryption key (Cloud KMS) is disabled, destroyed or may not be used.",
        "Enable the key, or grant roles/cloudkms.cryptoKeyEncrypterDecrypter to the storage service agent.",
    ),
    (
        re.compile(r"NoSuchBucket|bucket does not exist", re.I),
        "The bucket does not exist.",
        "Create it, or correct the URI.",
    ),
    (
        re.compile(r"accountDisabled|billing account .{0,60}(disabled|absent|delinquent)", re.I),
        "Billing is disabled for the bucket's project.",
        "Enable it.",
    ),
)


def said(error: BaseException) -> str:
    """Return what an error says in one line, without obstore's debug output."""
    text = _REQUEST.sub("", _PREFIX.sub("", _DEBUG.sub("", str(error)))) or type(error).__name__
    return " ".join(text.split())[:400]


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return the status and the words of the service: an address may hold any of the words looked for."""
    text = _DEBUG.sub("", str(error))
    if found := _ANSWER.search(text):
        return int(found[1]), found[2]
    status = _STATUS.search(text)
    return int(status[1]) if status else None, text


def translate(error: BaseException, *, what: str, uri: str) -> Transient | ResumeError:
    """Return what to raise for `error`, seen while doing `what` (list, read, write, delete)."""
    text = str(error)
    status, answer = _answer(error)
    if type(error).__name__ == "InvalidPathError":
        return _unlistable(said(error), uri)
    if _TOKEN.search(text) and not _is_transient(status, error):
        return _no_token(said(error), uri)
    misconfigured = _misconfigured(answer, uri) if status and 400 <= status < 500 else None
    if misconfigured:
        return misconfigured
    if status in (401, 403) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(answer, said(error), what, uri, status)
    if status == 412 or type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
        return AlreadyExists(f"{uri} is there already.", did="It was left as it is.", uri=uri)
    if status == 416:
        return ObjectNotFound(f"{uri} ends before the bytes that were asked for.", uri=uri)
    if status == 404 or isinstance(error, FileNotFoundError):
        return _absent(what, uri)
    if not _is_transient(status, error):
        return StoreMisconfigured(f"The store answered {status} for {uri}: {said(error)}.", uri=uri)
    return Transient(f"the token request failed: {said(error)}" if _TOKEN.search(text) else said(error))


def _is_transient(status: int | None, error: BaseException) -> bool:
    if status is None:
        return type(error).__name__ != "UnauthenticatedError"
    return status >= 500 or status in _TRANSIENT_STATUS


def _no_token(short: str, uri: str) -> PermissionDenied:
    return PermissionDenied(
        f"The request for an access token failed, so {uri} was never asked. It said: {short}.",
        did="Not tried again.",
        can="Let the machine have a service account, or set GOOGLE_APPLICATION_CREDENTIALS.",
        uri=uri,
        permission="an access token",
    )


def _unlistable(short: str, uri: str) -> Unlistable:
    return Unlistable(
        f"The listing of {uri} cannot be read: {short}.",
        did="Not tried again.",
        can="Delete or rename the object that this names.",
        uri=uri,
    )


def _misconfigured(text: str, uri: str) -> StoreMisconfigured | None:
    for pattern, seen, can in _MISCONFIGURED:
        if pattern.search(text):
            return StoreMisconfigured(f"{seen} ({uri})", did="Not tried again.", can=can, uri=uri)
    return None


def _denied(text: str, short: str, what: str, uri: str, status: int | None) -> PermissionDenied:
    named = _PERMISSION.search(text)
    permission = named[0] if named else PERMISSIONS[what]
    seen = "The credentials are not valid" if status == 401 else "The store refuses"
    return PermissionDenied(
        f"{seen} (to {what} {uri}; missing permission: {permission}). It said: {short}.",
        did="Not tried again.",
        can=f"Grant {permission} on the bucket to the account that runs this.",
        uri=uri,
        permission=permission,
    )


def _absent(what: str, uri: str) -> ResumeError:
    if what in ("list", "write"):
        return StoreMisconfigured(
            f"The bucket of {uri} does not exist.",
            did="Not tried again.",
            can="Create it, or correct the URI.",
            uri=uri,
        )
    return ObjectNotFound(f"{uri} is not there.", uri=uri)
