"""Throughput of the object store, with plain sockets so that the client is not what is measured.

python tests/benchmarks/gcs_server.py [--root /dev/shm/somewhere]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
SIZE = 1024 * MIB


class Connection:
    """One keep-alive HTTP connection that looks at status lines only."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._buffer = bytearray(4 * MIB)

    def request(self, head: str, body: memoryview | None = None) -> int:
        """Send a request, drop the response's body, return its length."""
        length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
        self._socket.sendall(f"{head}\r\nHost: x\r\n{length}\r\n".encode())
        if body is not None:
            self._socket.sendall(body)
        return self._response()

    def _response(self) -> int:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError(data)
            data += more
        headers, _, rest = data.partition(b"\r\n\r\n")
        if headers[9:12] not in (b"200", b"206"):
            raise RuntimeError(data[:400])
        lines = dict(line.lower().split(b": ", 1) for line in headers.split(b"\r\n")[1:])
        length = int(lines.get(b"content-length", b"0"))
        left = length - len(rest)
        while left > 0:
            left -= self._socket.recv_into(self._buffer, min(left, len(self._buffer)))
        return length


def _in_parallel(jobs: list[Callable[[], object]]) -> float:
    threads = [threading.Thread(target=job) for job in jobs]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _put(port: int, streams: int, body: memoryview) -> float:
    def job(number: int) -> Callable[[], object]:
        connection = Connection(port)
        return lambda: connection.request(f"PUT /bench/big-{number} HTTP/1.1", body)

    return streams * len(body) / _in_parallel([job(n) for n in range(streams)]) / 2**30


def _put_parts(port: int, streams: int, part: int, body: memoryview) -> float:
    """Parts of an XML multipart upload, as obstore sends them."""
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(b"POST /bench/parts?uploads HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    identity = re.search(rb"<UploadId>(\w+)<", raw.recv(65536))[1].decode()  # type: ignore[index]
    raw.close()
    numbers = iter(range(1, SIZE // part + 1))
    lock = threading.Lock()

    def work() -> None:
        mine = Connection(port)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            mine.request(f"PUT /bench/parts?partNumber={number}&uploadId={identity} HTTP/1.1", body[:part])

    return SIZE / _in_parallel([work] * streams) / 2**30


def _get(port: int, streams: int, span: int) -> float:
    starts = iter(range(0, SIZE, span))
    lock = threading.Lock()

    def work() -> None:
        connection = Connection(port)
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            connection.request(f"GET /bench/big-0 HTTP/1.1\r\nRange: bytes={start}-{start + span - 1}")

    return SIZE / _in_parallel([work] * streams) / 2**30


def _small(port: int, streams: int, count: int, head: str, body: memoryview | None = None) -> float:
    def work() -> None:
        connection = Connection(port)
        for number in range(count):
            connection.request(head.format(number % 500), body)

    return streams * count / _in_parallel([work] * streams)


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _show(process: int, what: str, unit: str, amount: float, measure: Callable[[], float]) -> None:
    """Print a rate, and the server's CPU time for it, which other work on the machine disturbs less."""
    before = _cpu_seconds(process)
    rate = measure()
    spent = (_cpu_seconds(process) - before) / amount
    cost = f"{spent:5.2f} CPU s/GiB" if unit == "GiB/s" else f"{spent * 1e6:5.0f} CPU us each"
    print(f"{what:32} {rate:8.2f} {unit}  {cost}", flush=True)


def _measure(process: int, port: int) -> None:
    body = memoryview(os.urandom(64 * MIB) * (SIZE // (64 * MIB)))
    small = memoryview(os.urandom(65536))
    big = [
        ("PUT 1 GiB, one stream", 1.0, lambda: _put(port, 1, body)),
        ("PUT 2 x 1 GiB", 2.0, lambda: _put(port, 2, body)),
        ("PUT parts of 8 MiB, 4 streams", 1.0, lambda: _put_parts(port, 4, 8 * MIB, body)),
        ("GET ranges of 64 MiB, 1 stream", 1.0, lambda: _get(port, 1, 64 * MIB)),
        ("GET ranges of 64 MiB, 4 streams", 1.0, lambda: _get(port, 4, 64 * MIB)),
        ("GET ranges of 4 MiB, 8 streams", 1.0, lambda: _get(port, 8, 4 * MIB)),
    ]
    for what, gib, measure in big:
        _show(process, what, "GiB/s", gib, measure)
    put = "PUT /bench/small-{} HTTP/1.1"
    _show(process, "PUT 64 KiB, 8 streams", "/s", 4000, lambda: _small(port, 8, 500, put, small))
    get = "GET /bench/small-{} HTTP/1.1"
    _show(process, "GET 64 KiB, 8 streams", "/s", 8000, lambda: _small(port, 8, 1000, get))


def main() -> None:
    """Start a server on a memory disk and print what it does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/dev/shm")
    root = Path(tempfile.mkdtemp(dir=parser.parse_args().root, prefix="gcs-bench-"))
    server = subprocess.Popen(
        [sys.executable, "-m", "airflow_resume_provider.testing.gcs", str(root), "--bucket", "bench"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        _measure(server.pid, int(server.stdout.readline().rpartition(":")[2]))
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
