"""One measured transfer in a process of its own: arguments are client, job, bucket, prefix, directory.

Prints seconds, CPU seconds (of this process and its children) and peak memory
as JSON. Imports and connections' libraries are loaded before the clock starts.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

_RANGE = 64 * 1024 * 1024


def ours(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the transfer with this project's own code, verification included."""
    from airflow_resume_provider.checkpoints import (
        Lineage,
        gcs_store,  # noqa: F401
    )

    lineage = Lineage.open(f"gs://{bucket}/{prefix}")
    if job == "commit":
        return lambda: lineage.commit(directory, attempt=1, step=time.time_ns())
    return lambda: lineage.restore(2, directory, learn=False)


def gcs_sequential(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the transfer with google-cloud-storage, one file after the other."""
    client = _client()
    if job == "commit":

        def send() -> None:
            for path in _files(directory):
                name = f"{prefix}/{path.relative_to(directory)}"
                client.bucket(bucket).blob(name).upload_from_filename(str(path))

        return send

    def fetch() -> None:
        for blob in client.list_blobs(bucket, prefix=f"{prefix}/"):
            target = directory / blob.name.removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(str(target))

    return fetch


def gcs_transfer_manager(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the transfer with google-cloud-storage's transfer manager in two processes."""
    from google.cloud.storage import transfer_manager

    handle = _client().bucket(bucket)
    if job == "commit":
        names = [str(path.relative_to(directory)) for path in _files(directory)]
        return lambda: _raise_first(
            transfer_manager.upload_many_from_filenames(
                handle, names, source_directory=str(directory), blob_name_prefix=f"{prefix}/", max_workers=2
            )
        )

    def fetch() -> None:
        names = [
            blob.name.removeprefix(f"{prefix}/") for blob in _client().list_blobs(bucket, prefix=f"{prefix}/")
        ]
        _raise_first(
            transfer_manager.download_many_to_path(
                handle,
                names,
                destination_directory=str(directory),
                blob_name_prefix=f"{prefix}/",
                max_workers=2,
            )
        )

    return fetch


def gcsfs(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the transfer with gcsfs."""
    # Not `gcsfs.GCSFileSystem`: that may first ask a gRPC service that emulators do not have.
    from gcsfs.core import GCSFileSystem

    system = GCSFileSystem(token="anon", project="p", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])
    remote = f"{bucket}/{prefix}"
    if job == "commit":
        return lambda: system.put(f"{directory}/", f"{remote}/", recursive=True)
    # One request at a time was gcsfs at its best with small files.
    batch = 1 if os.environ.get("BENCH_SMALL_FILES") else None
    return lambda: system.get(f"{remote}/", f"{directory}/", recursive=True, batch_size=batch)


def unverified(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return our own transfer without computing checksums, to see what they cost."""
    from airflow_resume_provider.checkpoints import checksum, download

    checksum.extend = lambda data, value=0: value
    checksum.combine = lambda first, second, length: first
    download._right = lambda entry, crc: True
    return ours(job, bucket, prefix, directory)


def loopback(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the network's limit: the same bytes in ranges of 64 MiB over plain sockets, thrown away."""
    pieces = _ranges(bucket, prefix)
    return lambda: _side_by_side(4, lambda piece: _receive(bucket, *piece), pieces)


def sockets_to_disk(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return the limit of network and disk: the same, written to where it belongs, unverified."""
    pieces = _ranges(bucket, prefix)

    def fetch() -> None:
        for name, size in {name: size for name, _, _, size in pieces}.items():
            with (directory / Path(name).name).open("wb") as file:
                file.truncate(size)
        streams = min(8, max(2, os.cpu_count() or 1))
        _side_by_side(streams, lambda piece: _receive(bucket, *piece, directory), pieces)

    return fetch


def _ranges(bucket: str, prefix: str) -> list[tuple[str, int, int, int]]:
    """Return name, start, end and the file's size of each range; neighbours are of different files."""
    blobs = [(blob.name, blob.size) for blob in _client().list_blobs(bucket, prefix=f"{prefix}/")]
    found = [(n, s, min(s + _RANGE, size), size) for n, size in blobs for s in range(0, size, _RANGE)]
    return sorted(found, key=lambda piece: piece[1])


def _side_by_side(
    streams: int, work: Callable[[tuple[str, int, int, int]], None], pieces: list[tuple[str, int, int, int]]
) -> None:
    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(work, pieces))


def _receive(bucket: str, name: str, start: int, end: int, size: int, directory: Path | None = None) -> None:
    host, _, port = os.environ["STORAGE_EMULATOR_HOST"].removeprefix("http://").partition(":")
    request = f"GET /{bucket}/{name} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{end - 1}\r\n\r\n"
    buffer = memoryview(bytearray(512 * 1024))
    with (
        socket.create_connection((host, int(port))) as connection,
        (directory / Path(name).name).open("r+b", buffering=0) if directory else nullcontext() as file,
    ):
        connection.sendall(request.encode())
        head = connection.recv(1)
        while not head.endswith(b"\r\n\r\n"):
            head += (byte := connection.recv(1))
            if not byte:
                break
        if b" 206 " not in head:
            raise ConnectionError(f"{name} was answered with {head!r}")
        while start < end:
            got = connection.recv_into(buffer[: min(len(buffer), end - start)], 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionError(f"{name} ended at {start}, not {end}")
            if file and os.pwrite(file.fileno(), buffer[:got], start) < got:
                raise OSError(errno.ENOSPC, "the disk is full")
            start += got


def copy(job: str, bucket: str, prefix: str, directory: Path) -> Callable[[], object]:
    """Return `cp -r` of the same bytes on the same disk; `prefix` is the source directory."""
    import subprocess

    return lambda: subprocess.run(["cp", "-r", prefix, str(directory)], check=True)


CLIENTS = {
    "airflow-resume": ours,
    "google-cloud-storage": gcs_sequential,
    "transfer_manager": gcs_transfer_manager,
    "gcsfs": gcsfs,
    "cp": copy,
    "unverified": unverified,
    "loopback limit": loopback,
    "sockets to disk": sockets_to_disk,
}


def _client():  # type: ignore[no-untyped-def]
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    return storage.Client(project="p", credentials=AnonymousCredentials())


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _raise_first(results: list[object]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


def _cpu() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def _peak_mib() -> float:
    """Return this process's own peak; `ru_maxrss` would carry over the parent's from before exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Measure one transfer."""
    client, job, bucket, prefix, where = sys.argv[1:6]
    directory = Path(where)
    if job == "restore":
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        if client not in ("airflow-resume", "unverified", "cp"):
            directory.mkdir()
    transfer = CLIENTS[client](job, bucket, prefix, directory)
    cpu, began = _cpu(), time.perf_counter()
    transfer()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu": _cpu() - cpu, "peak_mib": _peak_mib()}))


if __name__ == "__main__":
    main()
