"""Thousands of deferred triggers in one process: the stock trigger and ours, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.batch_stub import PARENT, job_name

ABOUT = "5,000 deferred triggers in one process, 10 s period, pages of 100"
PERIOD = 10.0
SECONDS = 60.0
ENDING = 20  # jobs that end while we watch, for the latency of noticing
WARM_UP = 15.0
CONNECTION = '{"conn_type": "google_cloud_platform", "extra": {"is_anonymous": true}}'


async def _lags(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(0.02)
        lags.append(loop.time() - before - 0.02)


async def _sampling_costs() -> float:
    """Return the share of a core that measuring the lag takes by itself, which no trigger is to blame for."""
    sampler = asyncio.create_task(_lags([]))
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(WARM_UP)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    sampler.cancel()
    return share


def _stock(number: int, endpoint: str) -> Callable[[], Awaitable[Any]]:
    import grpc
    from airflow.providers.google.cloud.triggers import cloud_batch
    from google.cloud.batch_v1 import BatchServiceAsyncClient
    from google.cloud.batch_v1.services.batch_service.transports import BatchServiceGrpcAsyncIOTransport

    class Hook(cloud_batch.CloudBatchAsyncHook):
        def get_conn(self) -> Any:
            if self._client is None:
                # Its real channels each have credentials of their own, and so share no connection.
                own = [("grpc.use_local_subchannel_pool", 1)]
                channel = grpc.aio.insecure_channel(endpoint, options=own)
                self._client = BatchServiceAsyncClient(
                    transport=BatchServiceGrpcAsyncIOTransport(channel=channel)
                )
            return self._client

    class Trigger(cloud_batch.CloudBatchJobFinishedTrigger):
        def _get_async_hook(self) -> Any:
            return Hook(gcp_conn_id=self.gcp_conn_id)

    trigger = Trigger(
        job_name=job_name(number), project_id="p", location="us-central1", polling_period_seconds=PERIOD
    )
    return lambda: anext(trigger.run())


def _ours(number: int, endpoint: str) -> Callable[[], Awaitable[Any]]:
    import google.cloud.batch_v1  # noqa: F401 - what a trigger loads in a thread; imports are not measured

    import airflow_resume_provider.hooks.batch  # noqa: F401
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger

    hold = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": number, "token": "x"}
    trigger = TrainAttemptTrigger(
        job_name=job_name(number),
        hold={**hold, "job_name": job_name(number)},
        carry={"attempt": 1, "generation": 1, "began": 0.0, "ledger": {}},
        submitted=0.0,
        poll_interval=PERIOD,
        minimum_seconds=0.0,
    )
    return lambda: anext(trigger.run())


def measure(way: str, number: int, endpoint: str, seconds: float) -> dict[str, float]:
    """Run the triggers of one way in this process and return what they cost."""
    make = {"stock": _stock, "ours": _ours}[way]
    make(0, endpoint)  # imports are not what is measured
    return asyncio.run(_measure(make, number, endpoint, seconds))


async def _measure(make: Any, number: int, endpoint: str, seconds: float) -> dict[str, float]:
    noticed: dict[int, float] = {}
    lags: list[float] = []
    sampling = await _sampling_costs()
    rss = _rss()

    async def one(i: int) -> None:
        await make(i, endpoint)()
        noticed[i] = time.time()

    tasks = []
    for i in range(number):
        tasks.append(asyncio.create_task(one(i)))
        if i % 50 == 49:
            await asyncio.sleep(0.05)  # as a triggerer creates them
    await asyncio.sleep(WARM_UP)
    sampler = asyncio.create_task(_lags(lags))
    before, cpu, began = _ask({}), time.process_time(), time.monotonic()
    now = time.time()
    ends = {i * (number // ENDING): now + 5 + i * (seconds - PERIOD - 10) / ENDING for i in range(ENDING)}
    _ask({"end": ends})
    await asyncio.sleep(seconds)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    after = _ask({})
    sampler.cancel()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    late = [noticed[i] - moment if i in noticed else seconds for i, moment in ends.items()]
    lags.sort()
    return {
        "calls_per_minute": (after["calls"] - before["calls"]) / took * 60,
        "mb_per_minute": (after["bytes"] - before["bytes"]) / took * 60 / 1e6,
        "cpu_share": cpu / took - sampling,
        "lag_p99_ms": lags[int(len(lags) * 0.99)] * 1000,
        "lag_max_ms": lags[-1] * 1000,
        "mib": _rss() - rss,
        "open_files": _open_files(),
        "noticed_after_s": max(late),
    }


def _rss() -> float:
    """MiB in use now; where the system does not tell, the most that was ever used."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _open_files() -> float:
    descriptors = Path("/proc/self/fd")
    return float(len(list(descriptors.iterdir()))) if descriptors.exists() else 0.0


def _ask(command: dict[str, Any]) -> dict[str, float]:
    print(json.dumps(command), flush=True)
    return dict(json.loads(sys.stdin.readline()))


def _run(way: str, number: int, page: int, seconds: float) -> dict[str, float]:
    """Run one way: its process speaks to the stub's through us."""
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    stub = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.batch_stub", str(number), str(page)], **pipe
    )  # type: ignore[call-overload]
    endpoint = json.loads(stub.stdout.readline())["endpoint"]
    environment = {
        **os.environ,
        "BATCH_EMULATOR_HOST": endpoint,
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": CONNECTION,
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    arguments = [sys.executable, "-m", "tests.benchmarks.watching", way, str(number), endpoint, str(seconds)]
    watcher = subprocess.Popen(arguments, env=environment, **pipe)  # type: ignore[call-overload]
    result: dict[str, float] = {}
    try:
        for line in watcher.stdout:
            if line.startswith("RESULT "):
                result = json.loads(line.removeprefix("RESULT "))
            elif line.startswith("{"):
                stub.stdin.write(line)
                stub.stdin.flush()
                watcher.stdin.write(stub.stdout.readline())
                watcher.stdin.flush()
    finally:
        for process in (watcher, stub):
            process.stdin.close()
            process.wait(30)
            process.stdout.close()
    if not result:
        raise RuntimeError(f"the {way} way ended without a result")
    return result


COLUMNS = {
    "calls_per_minute": "calls/min",
    "mb_per_minute": "MB/min",
    "cpu_share": "CPU share",
    "lag_p99_ms": "lag p99 ms",
    "lag_max_ms": "lag max ms",
    "mib": "added MiB",
    "open_files": "open files",
    "noticed_after_s": "noticed after s",
}


def run(quick: bool = False) -> list[str]:
    """Print the table and return the targets that were missed."""
    numbers = (200,) if quick else (1000, 5000)
    seconds = 30.0 if quick else SECONDS
    missed: list[str] = []
    print(f"{'way':<7}{'jobs':>6}" + "".join(f"{title:>16}" for title in COLUMNS.values()))
    for number in numbers:
        results = {}
        for way in ("stock", "ours"):
            results[way] = _run(way, number, 100, seconds)
            cells = "".join(f"{results[way][key]:>16.4g}" for key in COLUMNS)
            print(f"{way:<7}{number:>6}{cells}", flush=True)
        if number == 5000:
            missed += _missed(results["stock"], results["ours"])
    return missed


def _missed(stock: dict[str, float], ours: dict[str, float]) -> list[str]:
    targets = {
        "calls <= 2.5 % of stock": ours["calls_per_minute"] <= 0.025 * stock["calls_per_minute"],
        "CPU <= 5 % of stock": ours["cpu_share"] <= 0.05 * stock["cpu_share"],
        "memory <= 5 % of stock": ours["mib"] <= 0.05 * stock["mib"],
        "loop lag p99 < 10 ms": ours["lag_p99_ms"] < 10,
        "loop lag max < 100 ms": ours["lag_max_ms"] < 100,
        "noticed within a period + 2 s": ours["noticed_after_s"] <= PERIOD + 2,
    }
    return [f"watching 5,000 jobs: {name}" for name, reached in targets.items() if not reached]


if __name__ == "__main__":
    print(
        "RESULT " + json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))),
        flush=True,
    )

__all__ = ["ABOUT", "PARENT", "run"]
