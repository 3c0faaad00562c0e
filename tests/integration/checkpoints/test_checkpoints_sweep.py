"""Many small files from one thread: asked for once each, and what goes wrong is fetched the patient way."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from checkpoint_world import DisturbedServer, Raw, read_tree, write_tree

from airflow_resume_provider.checkpoints import Lineage, StoreOptions
from airflow_resume_provider.checkpoints.direct import DirectBucket
from airflow_resume_provider.checkpoints.sweep import sweep
from airflow_resume_provider.testing.gcs import Fault

FILES = {
    **{f"shard-{number:04d}.bin": os.urandom(number) for number in range(1, 300)},
    "empty": b"",
    "d/e/[0] ü%20.bin": b"odd",
    "beyond a chunk": os.urandom(300_000),
    "just a chunk": os.urandom(262_144 - 16 * 1024),
    "one more byte": os.urandom(262_144 - 16 * 1024 + 1),
}


@pytest.fixture
def committed(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> str:
    Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    return gs_uri


def test_every_file_is_asked_for_once(committed: str, tmp_path: Path, server: DisturbedServer) -> None:
    """Whether it is swept or not; an empty one is not asked for at all."""
    Lineage.open(committed).restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES
    asked = [path for verb, path in server.requests if verb == "GET" and "000000%2F" in path]
    asked = [path for path in asked if "manifest" not in path and "list-type" not in path]
    assert (len(asked), len(set(asked))) == (len(FILES) - 1, len(FILES) - 1)


def test_a_directory_as_a_store(tmp_path: Path) -> None:
    """The same files from `file://`."""
    lineage = Lineage.open(f"file://{tmp_path}/lineage")
    lineage.commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault(status=503), 60),
        (Fault(reset=True), 60),
        (Fault(after=20, reset=True), 60),
        (Fault(after=20, stall=5), 4),
    ],
    ids=["503", "reset", "short", "stall"],
)
def test_what_does_not_come_is_fetched_again(
    committed: str, tmp_path: Path, server: DisturbedServer, fault: Fault, times: int
) -> None:
    """A fifth of the answers break; the files are whole all the same."""
    server.plan.add(fault, method="GET", path="shard%2D...[05]", times=times)
    options = StoreOptions(max_total_seconds=60, read_seconds=0.5)
    Lineage.open(committed, options=options).restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES


def test_wrong_bytes_are_never_kept(committed: str, tmp_path: Path, server: DisturbedServer) -> None:
    """Once wrong, the file is fetched again; always wrong, the checkpoint is broken."""

    def wrong(request: web.Request) -> web.Response | None:
        if "0100%2Ebin" not in request.raw_path or left.pop() is None:
            return None
        return web.Response(status=206, body=b"x" * 100, headers={"Content-Range": "bytes 0-99/100"})

    left: list[object] = [None, 1]
    server.answer = wrong
    Lineage.open(committed).restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == FILES
    left = [1] * 100
    restored = Lineage.open(committed).restore(2, tmp_path / "again")
    assert restored.reference is None
    assert "shard-0100.bin has crc32c" in str(restored.choice.passed_over)


def test_a_missing_file_is_named(committed: str, tmp_path: Path, server: DisturbedServer) -> None:
    """The sweep says nothing of it; the patient way does."""
    raw = Raw(committed, server.endpoint)
    (name,) = [name for name in raw.names() if name.endswith("shard-0100.bin")]
    raw.delete(name)
    restored = Lineage.open(committed).restore(2, tmp_path / "out")
    assert restored.reference is None
    assert "shard-0100.bin" in str(restored.choice.passed_over)


Answer = Callable[[asyncio.StreamWriter, int], Awaitable[bool]]


class Service:
    """Answers every request with the number in its path, as `answer` wants; knows how many were waiting."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.waiting = self.most = self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.waiting += 1
                self.most = max(self.most, self.waiting)
                goes_on = await self.answer(writer, int(re.search(rb"/(\d+) ", head)[1]))  # type: ignore[index]
                self.waiting -= 1
                if not goes_on:
                    await writer.drain()
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _main(self, ports: queue.Queue[int]) -> None:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1000)
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        ports.put(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # the closed transports let go of their sockets

    @contextmanager
    def running(self) -> Iterator[DirectBucket]:
        """Run it in a thread, and yield a reader of it."""
        ports: queue.Queue[int] = queue.Queue()
        thread = threading.Thread(target=lambda: asyncio.run(self._main(ports)), daemon=True)
        thread.start()
        try:
            yield DirectBucket("b", StoreOptions(read_seconds=1), f"http://127.0.0.1:{ports.get(timeout=10)}")
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)


def body(number: int) -> bytes:
    return str(number).rjust(6, "0").encode()


def whole(number: int, *, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\nContent-Range: bytes 0-5/6\r\n"
    return head + more + b"\r\n" + body(number)


async def at_once(writer: asyncio.StreamWriter, number: int) -> bool:
    writer.write(whole(number))
    return True


async def late(writer: asyncio.StreamWriter, number: int) -> bool:
    await asyncio.sleep(0.02)
    return await at_once(writer, number)


async def in_pieces(writer: asyncio.StreamWriter, number: int) -> bool:
    for byte in whole(number):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    return True


async def closing(writer: asyncio.StreamWriter, number: int) -> bool:
    writer.write(whole(number, more=b"Connection: close\r\n"))
    return False


async def hanging_up(writer: asyncio.StreamWriter, number: int) -> bool:
    return await at_once(writer, number) and number % 5 != 4


async def silent_for_one(writer: asyncio.StreamWriter, number: int) -> bool:
    if number == 3:
        await asyncio.sleep(30)
    return await at_once(writer, number)


def swept(answer: Answer, count: int = 400, most: int = 64) -> tuple[Service, dict[int, bytes]]:
    service = Service(answer)
    with service.running() as reader:
        wanted = [(str(number), 6) for number in range(count)]
        found = {index: bytes(content) for index, content in sweep(reader, wanted, most)}
    assert all(content == body(index) for index, content in found.items())
    return service, found


@pytest.mark.parametrize("answer", [at_once, late, in_pieces])
def test_all_that_comes_is_taken(answer: Answer) -> None:
    """At once, late, or byte by byte."""
    assert len(swept(answer)[1]) == 400


def test_the_longer_answers_take_the_more_are_asked_for() -> None:
    """With an answer after 20 ms there are many in flight, but never more than allowed."""
    service, _ = swept(late, 2000, 64)
    assert 32 <= service.most <= 64


def test_never_more_connections_than_allowed() -> None:
    """A gentle reader stays gentle."""
    service, found = swept(late, 50, 2)
    assert (len(found), service.connections) == (50, 2)


def test_connections_that_end_leave_the_rest_undone() -> None:
    """Said in the head or not: what was not answered is left out, and nothing is waited for."""
    assert 0 < len(swept(closing)[1]) < 400
    assert 0 < len(swept(hanging_up)[1]) < 400


def test_one_silent_connection_holds_up_no_other() -> None:
    """Only what was asked on it is missing."""
    assert set(range(400)) - set(swept(silent_for_one)[1]) == {3}


def test_nobody_there() -> None:
    """No connection, no answers, no error: whoever asks the patient way will know."""
    reader = DirectBucket("b", StoreOptions(connect_seconds=1), "http://127.0.0.1:1")
    assert list(sweep(reader, [("x", 6)], 8)) == []


def test_whoever_stops_in_between_leaves_no_connection_open() -> None:
    """An error while writing ends the sweep."""
    service = Service(late)
    with service.running() as reader:
        answers = sweep(reader, [(str(number), 6) for number in range(1000)], 64)
        next(answers)
        answers.close()
        assert [t.name for t in threading.enumerate() if t.name.startswith("connect")] == []
