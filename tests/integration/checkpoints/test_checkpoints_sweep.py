"""Many small objects from one thread: what goes wrong with one of them costs that one only."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_world import BUCKET, DisturbedServer, Raw, eventually, read_tree, refuse, write_tree
from test_checkpoints_direct import secured

from airflow_resume_provider.checkpoints import Checkpoint, Lineage, StoreOptions
from airflow_resume_provider.checkpoints.direct import DirectReader
from airflow_resume_provider.checkpoints.sweep import sweep
from airflow_resume_provider.errors import CheckpointBroken

WANTED = [(f"d/{number:03d}", 1000 + number) for number in range(120)]


def contents(key: str) -> bytes:
    """An object's bytes: every one has its own, so that a mix-up shows."""
    number = int(key.rpartition("/")[2])
    return bytes([number % 251]) * (1000 + number)


def right(key: str, *fields: str, status: str = "206 Partial Content", body: bytes | None = None) -> bytes:
    """The expected answer, or one that differs in what is given."""
    data = contents(key)
    body = data if body is None else body
    if not any(field.startswith("Content-Range") for field in fields):
        fields = (*fields, f"Content-Range: bytes 0-{len(data) - 1}/{len(data)}")
    if not any(field.startswith(("Content-Length", "Transfer")) for field in fields):
        fields = (*fields, f"Content-Length: {len(body)}")
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode() + body


class Scripted:
    """A server that answers each object as it is told; `None` in an answer closes the connection.

    Objects without a script get the right answer.
    """

    def __init__(self) -> None:
        self.scripts: dict[str, list[bytes | None]] = {}
        self.asked: Counter[str] = Counter()
        self.connections = self.open = self.most = self.crowd = 0
        self._crowded = threading.Event()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End what is silent."""
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self.open += 1
            self.most = max(self.most, self.open)
            if self.open >= self.crowd:
                self._crowded.set()
        with connection, suppress(OSError):
            while self._one(connection):
                pass
        with self._lock:
            self.open -= 1

    def _one(self, connection: socket.socket) -> bool:
        request = b""
        while b"\r\n\r\n" not in request:
            if not (more := connection.recv(65536)):
                return False
            request += more
        key = request.split(b" ")[1].decode().partition("/b/")[2].replace("%2F", "/")
        with self._lock:
            self.asked[key] += 1
        self._crowded.wait(20)
        script = self.scripts.get(key, [right(key)])
        for part in script:
            if part is None:
                return False
            connection.sendall(part)
        if not script:
            self._over.wait(60)
        return True


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A server of ours."""
    server = Scripted()
    yield server
    server.close()


class Taken(dict[str, bytes]):
    """What a sweep has handed over, copied at once as it must be."""

    def __call__(self, number: int, data: memoryview) -> None:
        """Take one; nothing comes twice."""
        key = WANTED[number][0]
        assert key not in self
        self[key] = bytes(data)


def run(endpoint: str, taken: Callable[[int, memoryview], object], **options: float) -> list[str]:
    """Sweep everything; returns the keys that were left."""
    read_seconds = options.get("read_seconds", 10.0)
    chosen = StoreOptions(emulator=endpoint, read_seconds=read_seconds, connect_seconds=2.0)
    reader = DirectReader("b", chosen, endpoint)
    return [WANTED[number][0] for number in sweep(reader, WANTED, taken, int(options.get("most", 32)))]


def test_each_object_comes_once_and_whole(scripted: Scripted) -> None:
    """Over a few connections that are used again and again."""
    taken = Taken()
    assert run(scripted.endpoint, taken) == []
    assert taken == {key: contents(key) for key, _ in WANTED}
    assert set(scripted.asked.values()) == {1}
    assert scripted.connections <= 32


ODD: dict[str, Callable[[str], list[bytes | None]]] = {
    "not there": lambda key: [right(key, "Content-Range: none", status="404 Not Found", body=b"<Error/>")],
    "not now": lambda key: [right(key, "Content-Range: none", status="503 Unavailable", body=b"")],
    "whole": lambda key: [right(key, status="200 OK")],
    "another range": lambda key: [right(key, "Content-Range: bytes 1-2/3")],
    "short": lambda key: [right(key, body=contents(key)[:-1])],
    "more than said": lambda key: [right(key) + b"more"],
    "more than asked": lambda key: [right(key, body=contents(key) + b"more")],
    "chunked": lambda key: [right(key, "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n")],
    "compressed": lambda key: [right(key, "Content-Encoding: gzip")],
    "endless head": lambda key: [b"HTTP/1.1 206 Partial Content\r\nX: " + b"x" * 40_000],
    "broken off in the head": lambda key: [right(key)[:20], None],
    "broken off in the body": lambda key: [right(key)[:-10], None],
    "no answer": lambda key: [None],
    "another protocol": lambda key: [b"SSH-2.0-OpenSSH_9.2\r\n\r\n"],
    "silence": lambda key: [],
    "silence in the head": lambda key: [right(key)[:20]],
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_left_and_everything_else_comes(scripted: Scripted, odd: str) -> None:
    """Three objects among many; nothing of theirs is taken, nobody else waits for them."""
    strange = [WANTED[number][0] for number in (2, 50, 119)]
    for key in strange:
        scripted.scripts[key] = ODD[odd](key)
    taken = Taken()
    assert run(scripted.endpoint, taken, read_seconds=0.5) == strange
    assert taken == {key: contents(key) for key, _ in WANTED if key not in strange}


def test_a_server_that_closes_after_each_answer_serves_all(scripted: Scripted) -> None:
    """It says so, or it does not; what it has not answered then is left."""
    for key, _ in WANTED:
        scripted.scripts[key] = [right(key, "Connection: close"), None]
    taken = Taken()
    assert run(scripted.endpoint, taken) == []
    assert len(taken) == scripted.connections == len(WANTED)


def test_a_server_that_refuses_everything_is_not_asked_for_everything(scripted: Scripted) -> None:
    """The readers that wait and try again are there for this."""
    for key, _ in WANTED:
        scripted.scripts[key] = ODD["not now"](key)
    taken = Taken()
    assert len(run(scripted.endpoint, taken)) == len(WANTED)
    assert not taken
    assert scripted.asked.total() < 20


def test_few_streams_are_few_connections(scripted: Scripted) -> None:
    """One is one."""
    taken = Taken()
    assert run(scripted.endpoint, taken, most=1) == []
    assert (len(taken), scripted.connections) == (len(WANTED), 1)


def test_where_taking_is_slow_threads_have_to_do_it(scripted: Scripted) -> None:
    """On a disk behind a network one after the other takes far longer than side by side."""
    taken = Taken()

    def slowly(number: int, data: memoryview) -> None:
        taken(number, data)
        time.sleep(0.004)  # the slow disk

    # Forty tell; what is on its way then, and what has been asked for in their place, still comes.
    left = run(scripted.endpoint, slowly, most=16)
    assert sorted([*taken, *left]) == [key for key, _ in WANTED]
    assert 40 <= len(taken) <= 39 + 2 * 16


def test_a_service_that_hangs_up_at_once_leaves_all() -> None:
    """A balancer without anybody behind it accepts and resets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def reset() -> None:
            with suppress(OSError):
                while not over.is_set():
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        threading.Thread(target=reset, daemon=True).start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for _ in range(200):
            assert len(run(endpoint, Taken())) == len(WANTED)
        over.set()


def test_without_a_descriptor_for_the_loop_all_is_left(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads with one connection at a time may still manage."""

    def none_left() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("select.epoll", none_left)
    assert len(run(scripted.endpoint, Taken())) == len(WANTED)


@pytest.mark.parametrize("host", ["a..b", "nowhere.invalid"])
def test_a_host_that_cannot_be_leaves_all(host: str) -> None:
    """What is wrong with it, obstore says."""
    assert len(run(f"http://{host}:1", Taken())) == len(WANTED)


def test_where_nobody_listens_all_is_left() -> None:
    """One connection is tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert len(run(endpoint, Taken())) == len(WANTED)


def fill(server: DisturbedServer) -> None:
    """Put the objects into a real store."""
    raw = Raw(f"gs://{BUCKET}/d", server.endpoint)
    for key, _ in WANTED:
        raw.put(key.removeprefix("d/"), contents(key))


def test_slow_answers_get_more_connections(scripted: Scripted) -> None:
    """As many as help, and no more than allowed: here nobody is answered before 17 have asked."""
    scripted.crowd = 17
    taken = Taken()
    assert run(scripted.endpoint, taken, most=24) == []
    assert len(taken) == len(WANTED)
    assert 17 <= scripted.most <= 24


FEW = """
import resource, sys
from airflow_resume_provider.checkpoints import StoreOptions
from airflow_resume_provider.checkpoints.direct import DirectReader
from airflow_resume_provider.checkpoints.sweep import sweep
wanted = [(f"d/{number:03d}", 1000 + number) for number in range(120)]
reader = DirectReader("b", StoreOptions(), sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))  # standard streams, epoll, and three connections
taken = []
left = sweep(reader, wanted, lambda number, data: taken.append(number), 32)
print(sorted([*taken, *left]) == list(range(120)), len(taken))
"""


def test_few_descriptors_are_enough(scripted: Scripted) -> None:
    """It makes do with the connections that there can be."""
    command = [sys.executable, "-c", FEW, scripted.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    accounted, taken = done.stdout.split()
    assert accounted == "True"
    assert int(taken) > 100
    assert scripted.most <= 3


def test_a_full_disk_ends_it_and_leaves_nothing_open(scripted: Scripted) -> None:
    """What the taker raises reaches the caller."""
    seen: list[int] = []

    def full(number: int, data: memoryview) -> None:
        seen.append(number)
        if len(seen) == 5:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        run(scripted.endpoint, full)
    assert len(seen) == 5
    eventually(lambda: not scripted.open)


def test_a_fork_in_the_middle_changes_nothing(scripted: Scripted) -> None:
    """A child that holds copies of all descriptors lives on while connections close."""
    children: list[int] = []
    taken = Taken()

    def take(number: int, data: memoryview) -> None:
        taken(number, data)
        if number % 40 == 20:
            child = os.fork()
            if not child:
                with suppress(BaseException):
                    threading.Event().wait(30)
                os._exit(0)
            children.append(child)

    for key, _ in WANTED[::7]:
        scripted.scripts[key] = [right(key, "Connection: close"), None]
    try:
        assert run(scripted.endpoint, take) == []
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert taken == {key: contents(key) for key, _ in WANTED}


def test_over_tls(server: DisturbedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a certificate that the machine trusts, and with no other."""
    fill(server)
    with secured(server, tmp_path) as endpoint:
        untrusting = DirectReader(BUCKET, StoreOptions(emulator=endpoint), endpoint)
        assert len(sweep(untrusting, WANTED, Taken(), 32)) == len(WANTED)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        reader = DirectReader(BUCKET, StoreOptions(emulator=endpoint), endpoint)
        taken = Taken()
        assert sweep(reader, WANTED, taken, 32) == []
        assert taken == {key: contents(key) for key, _ in WANTED}


def no_token() -> dict[str, object]:
    """A provider that has none."""
    raise OSError("the metadata server gives no token")


def test_without_a_token_all_is_left(monkeypatch: pytest.MonkeyPatch, scripted: Scripted) -> None:
    """Nobody is asked without one."""
    monkeypatch.setattr("airflow_resume_provider.checkpoints.direct._SERVICE", scripted.endpoint)
    reader = DirectReader("b", StoreOptions(credential_provider=no_token), "")
    assert len(sweep(reader, WANTED, Taken(), 32)) == len(WANTED)
    assert not scripted.asked


FULL = """
import os, resource, sys
from airflow_resume_provider.checkpoints import Lineage, StoreOptions
lineage = Lineage.open("gs://b/l", options=StoreOptions(emulator=sys.argv[1]))
lineage.choose(2)  # what obstore needs is open from now on
used = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 12))
lineage.restore(2, sys.argv[2])
"""


def test_a_restore_with_few_descriptors_is_whole(server: DisturbedServer, tmp_path: Path) -> None:
    """Connections that have taken all of them give some back to the files."""
    lineage = Lineage.open(f"gs://{BUCKET}/l", options=StoreOptions(emulator=server.endpoint))
    files = {f"{number:03d}": os.urandom(100 + number) for number in range(150)}
    lineage.commit(write_tree(tmp_path / "in", files), attempt=1, step=1)
    command = [sys.executable, "-c", FULL, server.endpoint, str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=60)
    assert read_tree(tmp_path / "out") == files


FILES = {f"part/{number:03d}": os.urandom(500 + number) for number in range(60)} | {
    "empty": b"",
    "a b%20c/ü.bin": b"odd",
    "large": os.urandom(400_000),
}


def test_a_restore_asks_once_for_each_object(server: DisturbedServer, tmp_path: Path) -> None:
    """Small ones by sweep, the empty and the large one as ever."""
    lineage = Lineage.open(f"gs://{BUCKET}/l", options=StoreOptions(emulator=server.endpoint))
    lineage.commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES
    assert server.count("GET", "part") == 60


def test_what_a_sweep_leaves_is_asked_for_again(server: DisturbedServer, tmp_path: Path) -> None:
    """An error that goes away costs one more request; the counts of the progress stay right."""
    lineage = Lineage.open(f"gs://{BUCKET}/l", options=StoreOptions(emulator=server.endpoint))
    lineage.commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    answers = iter([refuse(503, "Try again", fragment="part%2F007")])
    server.answer = lambda request: (
        next(answers, lambda _: None)(request) if "part%2F007" in request.raw_path else None
    )
    seen: list[tuple[int, int]] = []
    lineage.restore(2, tmp_path / "out", progress=lambda p: seen.append((p.done_bytes, p.done_files)))
    assert read_tree(tmp_path / "out") == FILES
    assert seen[-1] == (sum(map(len, FILES.values())), len(FILES))
    assert max(seen) == seen[-1]


def test_wrong_bytes_are_told_from_a_wrong_object(server: DisturbedServer, tmp_path: Path) -> None:
    """The same size, another checksum: asked for again, and then named; nothing of it is left."""
    options = StoreOptions(emulator=server.endpoint)
    lineage = Lineage.open(f"gs://{BUCKET}/l", options=options)
    reference = lineage.commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    Raw(reference.uri, server.endpoint).put("part/013", os.urandom(513))
    with pytest.raises(CheckpointBroken, match="part/013 has crc32c"):
        Checkpoint.from_uri(reference.uri, options=options).to_directory(tmp_path / "out")
    assert not (tmp_path / "out").exists()
