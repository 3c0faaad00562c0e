"""A token that is held outlives the server that gave it, and nobody waits for a newer one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_resume_provider.runtime.credentials import HeldToken, held_token
from airflow_resume_provider.runtime.notice import MetadataServer


class Server(MetadataServer):
    """Answers with what it is told to; counts how often it was asked."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        super().__init__({})
        self._answers, self.asked = list(answers), 0

    def get(self, path: str, *, timeout: float) -> bytes:
        """The next answer; the last one again and again."""
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


FIRST = {"access_token": "first", "expires_in": 3600}
SECOND = {"access_token": "second", "expires_in": 3600}


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def mute_server() -> Iterator[str]:
    """Somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_the_first_token_is_used_until_its_half_is_over() -> None:
    """One request to the server, however often the store asks."""
    server, clock = Server(FIRST, SECOND), Clock()
    token = HeldToken(server, clock)
    assert [token()["token"] for _ in range(3)] == ["first"] * 3
    clock.now += 1700
    assert token()["token"] == "first"
    assert server.asked == 1


def test_a_newer_token_is_fetched_early_and_in_the_background() -> None:
    """Half an hour before its end; the one who asks gets the old one at once."""
    server, clock = Server(FIRST, SECOND), Clock()
    token = HeldToken(server, clock)
    token()
    clock.now += 1900
    assert token()["token"] in ("first", "second")
    until(lambda: token()["token"] == "second")
    assert server.asked == 2


def test_a_server_that_is_gone_is_asked_seldom_and_the_token_held_to_its_end() -> None:
    """After the notice: the held token is good for most of an hour, then it is said that there is none."""
    server, clock = Server(FIRST, OSError("gone")), Clock()
    token = HeldToken(server, clock)
    token()
    clock.now += 1900
    token()
    until(lambda: server.asked == 2)
    for _ in range(20):
        assert token()["token"] == "first"
    clock.now += 1600
    assert token()["token"] == "first"
    clock.now += 200
    with pytest.raises(OSError, match="gives no token"):
        token()


def test_a_server_that_hangs_holds_up_nobody() -> None:
    """It takes the connection and never answers; the token comes at once all the same."""
    clock = Clock()
    with mute_server() as address:
        token = HeldToken(Server(FIRST), clock)
        token()
        token._server = MetadataServer({"GCE_METADATA_HOST": address})
        clock.now += 1900
        begun = time.monotonic()
        assert [token()["token"] for _ in range(5)] == ["first"] * 5
        assert time.monotonic() - begun < 1
        renewing = [thread for thread in threading.enumerate() if thread.name == "token"]
        assert len(renewing) == 1


def test_the_end_is_said_by_the_clock_on_the_wall_and_kept_by_one_that_never_jumps() -> None:
    """A clock set back by an hour does not make an old token young."""
    clock = Clock()
    token = HeldToken(Server(FIRST), clock)
    left = (token()["expires_at"] - datetime.now(UTC)).total_seconds()
    assert 3590 < left <= 3600
    clock.now += 1000
    left = (token()["expires_at"] - datetime.now(UTC)).total_seconds()
    assert 2590 < left <= 2600


@pytest.mark.parametrize("answer", [{}, {"access_token": "x"}, [], {"access_token": "x", "expires_in": "?"}])
def test_nonsense_is_no_token(answer: Any) -> None:
    """What cannot be read is an error like silence."""
    with pytest.raises(OSError, match="gives no token"):
        HeldToken(Server(answer), Clock())()


def test_only_a_machine_of_its_own_holds_tokens() -> None:
    """Credentials of a person's own, an emulator, or no metadata server: nothing to hold."""
    assert held_token({"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}) is None
    assert held_token({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}) is None
    assert held_token({"GCE_METADATA_HOST": "127.0.0.1:1"}) is None
