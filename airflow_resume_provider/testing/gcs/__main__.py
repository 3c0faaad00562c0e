"""Serve the buckets below a directory: `python -m airflow_resume_provider.testing.gcs ROOT`."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from .server import GcsServer
from .workers import Workers


async def serve(root: Path, port: int, buckets: list[str], durable: bool, workers: int) -> None:
    """Run until SIGINT or SIGTERM; the first line on stdout says where the server is."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with GcsServer(root, port=port, durable=durable) as server:
        for bucket in buckets:
            server.create_bucket(bucket)
        if workers == 1:
            print(f"export STORAGE_EMULATOR_HOST={server.endpoint}", flush=True)
            await stopped.wait()
            return
    with Workers(root, workers, port=port, durable=durable) as together:
        print(f"export STORAGE_EMULATOR_HOST={together.endpoint}", flush=True)
        await stopped.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="directory of the buckets")
    parser.add_argument("--port", type=int, default=0, help="port; a free one by default")
    parser.add_argument("--bucket", action="append", default=[], help="create this bucket; repeatable")
    parser.add_argument("--durable", action="store_true", help="survive a power cut, not only a kill")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share the work, for load"
    )
    given = parser.parse_args()
    if given.workers < 1:
        parser.error("--workers: at least one has to do the work")
    asyncio.run(serve(given.root, given.port, given.bucket, given.durable, given.workers))


if __name__ == "__main__":
    main()
