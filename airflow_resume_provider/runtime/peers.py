"""Processes of one training that tell each other what happens, over the store alone.

The first one has a new *session* each time it starts, so that what an earlier run of the same
attempt has left means nothing to the next one.

    attempts/0001/nodes/hello-<token>.json        from another node or process: it has come
    attempts/0001/nodes/welcome-<token>.json      from the first, as long as it runs: what all start from
    attempts/0001/nodes/notice-<session>.json     from whoever got a preemption notice
    attempts/0001/nodes/end-<session>.json        from the first: it commits nothing more
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_resume_provider.checkpoints.names import attempt_prefix
from airflow_resume_provider.checkpoints.store import Store
from airflow_resume_provider.checkpoints.view import read_json
from airflow_resume_provider.errors import AlreadyExists, ResumeError

log = logging.getLogger("resume-run")
_LOOK_SECONDS = 1.0
# A listing costs more than a look at one name, and once all have come nobody else is expected.
_LIST_SECONDS = 10.0


class Peers:
    """This process's view of the others of its session."""

    def __init__(self, store: Store, attempt: int, session: str, others: int = 0) -> None:
        self._store, self._session, self._others = store, session, others
        self._directory = f"{attempt_prefix(attempt)}/nodes"
        self._welcomed: set[str] = set()
        self._next_listing = 0.0

    def watch(self, report: Callable[[str], None], welcome: Mapping[str, Any] | None = None) -> None:
        """Report the first notice of any node, from a thread; with `welcome`, greet whoever comes."""
        threading.Thread(target=self._watch, args=(report, welcome), name="peers", daemon=True).start()

    def tell(self, source: str) -> None:
        """Pass a notice on."""
        self._try_to_say("notice", {"source": source})

    @property
    def notice(self) -> str:
        """Who has got a notice, or an empty string."""
        return str(read_json(self._store, self._name("notice")).get("source", ""))

    def end(self) -> None:
        """Say that the first one is done."""
        self._try_to_say("end", {})

    @property
    def ended(self) -> bool:
        """Whether the first one has said so."""
        return bool(read_json(self._store, self._name("end")))

    def _watch(self, report: Callable[[str], None], welcome: Mapping[str, Any] | None) -> None:
        while True:
            try:
                if welcome is not None and time.monotonic() >= self._next_listing:
                    self._greet(welcome)
                if source := self.notice:
                    return report(source)
            except ResumeError as error:
                log.debug("the other nodes cannot be heard: %s", error)
            time.sleep(_LOOK_SECONDS)

    def _greet(self, welcome: Mapping[str, Any]) -> None:
        names = [entry.name.rpartition("/")[2] for entry in self._store.objects(self._directory)]
        hellos = {name.removeprefix("hello-") for name in names if name.startswith("hello-")}
        for token in sorted(hellos - self._welcomed):
            if f"welcome-{token}" not in names:
                say(self._store, f"{self._directory}/welcome-{token}", {**welcome, "session": self._session})
                self._others -= 1
            self._welcomed.add(token)
        if self._others <= 0:
            self._next_listing = time.monotonic() + _LIST_SECONDS

    def _try_to_say(self, what: str, value: Mapping[str, Any]) -> None:
        try:
            say(self._store, self._name(what), {"session": self._session, **value})
        except ResumeError as error:
            log.warning("the other nodes could not be told: %s", error)

    def _name(self, what: str) -> str:
        return f"{self._directory}/{what}-{self._session}.json"


def say_hello(store: Store, attempt: int, token: str, who: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Say that somebody has come; what is returned looks for the first one's answer, `{}` until then."""
    directory = f"{attempt_prefix(attempt)}/nodes"
    say(store, f"{directory}/hello-{token}.json", who)
    return lambda: dict(read_json(store, f"{directory}/welcome-{token}.json"))


def say(store: Store, name: str, value: Mapping[str, Any]) -> None:
    """Write a record that nobody changes any more; who is first counts."""
    try:
        store.create(name, json.dumps(value).encode())
    except AlreadyExists:
        return  # said before, in a try whose answer was lost, or by another node
