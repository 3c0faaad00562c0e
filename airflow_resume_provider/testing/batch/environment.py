"""The environment variables of a runnable, and the secrets among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class SecretMissing(Exception):
    """A secret variable names a secret that the local file does not hold."""


@dataclass(frozen=True)
class TaskIdentity:
    """What the predefined variables say."""

    job_uid: str
    index: int
    count: int
    retry: int
    node: int
    nodes: int
    main_hostname: str
    hosts_file: str = ""

    def variables(self) -> dict[str, str]:
        """The variables that Batch predefines."""
        found = {
            "BATCH_TASK_INDEX": str(self.index),
            "BATCH_TASK_COUNT": str(self.count),
            "BATCH_TASK_RETRY_ATTEMPT": str(self.retry),
            "BATCH_JOB_UID": self.job_uid,
            "BATCH_NODE_INDEX": str(self.node),
            "BATCH_NODE_COUNT": str(self.nodes),
            "BATCH_MAIN_NODE_HOSTNAME": self.main_hostname,
        }
        if self.hosts_file:
            found["BATCH_HOSTS_FILE"] = self.hosts_file
        return found


def secret_value(name: str, secrets: Mapping[str, str]) -> str:
    """Value of a Secret Manager version, by its full name, without version, or by the secret's id."""
    parts = name.split("/")
    versionless = "/".join(parts[:4])
    short = parts[3] if len(parts) >= 4 else name
    for key in (name, versionless, short):
        if key in secrets:
            return secrets[key]
    raise SecretMissing(name)


def resolve(environment: Any, secrets: Mapping[str, str]) -> dict[str, str]:
    """Plain and secret variables of one Environment message."""
    found = dict(environment.variables)
    for variable, name in environment.secret_variables.items():
        found[variable] = secret_value(name, secrets)
    if environment.encrypted_variables.cipher_text:
        raise SecretMissing(environment.encrypted_variables.key_name)
    return found


def merged(group: Any, runnable: Any, identity: TaskIdentity, secrets: Mapping[str, str]) -> dict[str, str]:
    """All variables of a runnable: task, then task environment, then its own, then the predefined ones."""
    spec = group.task_spec
    found = dict(spec.environments)
    found |= resolve(spec.environment, secrets)
    if identity.index < len(group.task_environments):
        found |= resolve(group.task_environments[identity.index], secrets)
    found |= resolve(runnable.environment, secrets)
    return found | identity.variables()
