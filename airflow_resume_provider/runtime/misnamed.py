"""What lies at a URI that a person has named for something else."""

from __future__ import annotations

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.store import Store, exists, open_store
from airflow_resume_provider.errors import CheckpointNotFound, InvalidInput


def no_checkpoint(uri: str, error: CheckpointNotFound) -> CheckpointNotFound:
    """Return the error of a URI that is no checkpoint, with what it is in place of one."""
    return CheckpointNotFound(error.seen, did=_what_it_is(uri.rstrip("/")), uri=uri)


def require_directory(uri: str) -> None:
    """Raise `InvalidInput` for the URI of a manifest, which is in a checkpoint and not one itself."""
    directory, _, last = uri.rstrip("/").rpartition("/")
    if last == names.MANIFEST:
        raise InvalidInput(
            f"{uri} is a manifest, not a checkpoint.",
            can=f"Name the directory that it lies in, {directory}.",
            parameter="uri",
            value=uri,
        )


def require_lineage(store: Store) -> str:
    """Return words about a lineage without attempts; raises `InvalidInput` for a checkpoint's URI."""
    if exists(store, names.MANIFEST):
        place = names.split_checkpoint(store.uri)
        raise InvalidInput(
            f"{store.uri} is a checkpoint, not a lineage.",
            can=f"Its lineage is {place[0]}." if place else "",
            parameter="lineage",
            value=store.uri,
        )
    return f"There is no lineage at {store.uri} (yet): no attempt has left anything there."


def _what_it_is(uri: str) -> str:
    store = open_store(uri, parameter="checkpoint")
    if store.directories(names.ATTEMPTS):
        return f"It is a lineage, not a checkpoint; `resume-run list --lineage {uri}` shows its checkpoints."
    if names.split_checkpoint(uri) is None:
        return "It is no lineage either. A checkpoint's URI ends in attempts/N/checkpoints/N."
    return ""
