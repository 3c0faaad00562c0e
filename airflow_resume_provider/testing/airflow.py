"""A real Airflow on this machine: scheduler, triggerer, API server and DAG processor.

::

    with LocalAirflow(dags=Path("dags"), env=stack.environment) as airflow:
        run_id = airflow.client.trigger("train_digits")
        assert airflow.client.wait_for_run("train_digits", run_id) == "success"

Everything listens on loopback, on free ports, with an embedded database, and
ends with this process, however that ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_resume_provider.testing.airflow_client import AirflowClient, until
from airflow_resume_provider.testing.sessions import Sessions

# One environment variable beside the command of each component.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "dag-processor": ("dag-processor",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}

# Where the API's health report shows the heartbeat of a component.
HEARTBEATS: Mapping[str, tuple[str, str]] = {
    "dag-processor": ("dag_processor", "latest_dag_processor_heartbeat"),
    "scheduler": ("scheduler", "latest_scheduler_heartbeat"),
    "triggerer": ("triggerer", "latest_triggerer_heartbeat"),
}

# What makes Airflow quick enough for a person to wait for: short heartbeats and scans.
QUICK: Mapping[str, str] = {
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__EXECUTOR": "LocalExecutor",
    "CORE__PARALLELISM": "8",
    "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
    "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "API__WORKERS": "1",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    # Trap: an event soon after a re-deferral can fail a healthy task with the default of 5 s.
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3",
    "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
    "USAGE_DATA_COLLECTION__ENABLED": "False",
}


class LocalAirflow:
    """A running Airflow that is used as a context manager.

    Args:
        dags: the folder of DAG files.
        home: AIRFLOW_HOME; a temporary directory that is removed at the end when absent.
        port: where the API server listens; 0 takes a free port.
        env: further environment of every component (connections, emulator addresses).
        settings: further Airflow settings without their ``AIRFLOW__`` prefix.
        progress: called with a line about what is awaited.
    """

    def __init__(
        self,
        dags: Path,
        *,
        home: Path | None = None,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._temporary = home is None
        self.home = (home or Path(tempfile.mkdtemp(prefix="airflow-"))).resolve()
        self.dags = dags.resolve()
        self._env, self._settings, self._progress = dict(env or {}), dict(settings or {}), progress
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = AirflowClient(self.url)
        self._secret = secrets.token_hex(48)
        self._sessions = Sessions()
        if self._temporary:
            self._sessions.remove_at_end(self.home)
        self._started: dict[str, datetime] = {}

    def __repr__(self) -> str:
        return f"<LocalAirflow {self.url} home={self.home}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a component; also right for the `airflow` command line."""
        ours = {**QUICK, **self._places(), **self._settings}
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
        loopback = "localhost,127.0.0.1"
        return {
            **outer,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{outer.get('PATH', '')}",
            "no_proxy": loopback,
            "NO_PROXY": loopback,
            "PYTHONUNBUFFERED": "1",
            # macOS aborts forked tasks that look up proxies; harmless elsewhere.
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name}": value for name, value in ours.items()},
            **self._env,
        }

    def start(self) -> None:
        """Create the database, start the components, return when all are healthy."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._progress("creating Airflow's database")
        self.cli("db", "migrate")
        with sqlite3.connect(self.home / "airflow.db") as database:
            # Readers then never wait for the one writer.
            database.execute("PRAGMA journal_mode=WAL")
        for name in COMPONENTS:
            self.start_component(name)
        self._progress("waiting until Airflow is healthy")
        until("Airflow to be healthy", self._healthy, timeout=180)

    def stop(self) -> None:
        """End every component and, when the home was temporary, remove it."""
        self._sessions.stop()
        self.client.close()
        if self._temporary:
            shutil.rmtree(self.home, ignore_errors=True)

    def start_component(self, name: str) -> None:
        """Start one of `COMPONENTS`, again after `kill`."""
        extra = ("--port", str(self.port), "--host", "127.0.0.1") if name == "api-server" else ()
        command = (sys.executable, "-m", "airflow", *COMPONENTS[name], *extra)
        self._started[name] = datetime.now(UTC)
        self._sessions.start(
            name, command, env=self.environment, log=self.home / f"{name}.log", cwd=self.home
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a component together with everything it started, and wait for its end."""
        self._sessions.kill(name, number)

    def wait_healthy(self, timeout: float = 120) -> None:
        """Return when every component reports health again, for example after a restart."""
        until("Airflow to be healthy", self._healthy, timeout=timeout)

    def component_log(self, name: str, lines: int = 100) -> str:
        """Return the last lines that a component printed."""
        return self._sessions[name].tail(lines)

    def cli(self, *arguments: str) -> str:
        """Run an `airflow` command in the same environment and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"airflow {' '.join(arguments)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
            )
        return done.stdout

    def _places(self) -> dict[str, str]:
        return {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": self._secret,
            "API_AUTH__JWT_SECRET": self._secret,
            # 60 s: SQLite has one writer at a time and the others must queue.
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}?timeout=60",
            "LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
        }

    def _healthy(self) -> bool:
        for session in self._sessions:
            if not session.alive:
                raise RuntimeError(f"Airflow's {session.name} ended by itself:\n{session.tail()}")
        health = self.client.health()
        return bool(health) and all(self._beats(name, health) for name in HEARTBEATS)

    def _beats(self, name: str, health: Mapping[str, Mapping[str, str | None]]) -> bool:
        # Only a heartbeat after the start counts: a killed predecessor's is fresh for seconds.
        part, field = HEARTBEATS[name]
        report = health.get(part, {})
        beat = report.get(field)
        fresh = beat is not None and datetime.fromisoformat(beat) > self._started[name]
        return fresh and report.get("status") == "healthy"


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
