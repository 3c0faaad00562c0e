"""The benchmark's store: every measured client gets back the bytes that it has sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.checkpoint_transfer import server

SIZES = (1, 65_536, 700_000, 9_000_000, 70_000_001)
CLIENTS = ("airflow-resume", "google-cloud-storage", "transfer_manager", "gcsfs")


def transfer(client: str, job: str, directory: Path, endpoint: str) -> None:
    """One transfer as it is measured."""
    words = [sys.executable, "-m", "tests.benchmarks.transfer_client", client, job, "bench", client]
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": endpoint}
    done = subprocess.run([*words, str(directory)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_sent_comes_back(tmp_path: Path, client: str) -> None:
    """Small and large, in one piece, in parts and in sessions."""
    sent = tmp_path / "sent"
    sent.mkdir()
    for size in SIZES:
        (sent / f"{size}.bin").write_bytes(os.urandom(size))
    with server(str(tmp_path)) as endpoint:
        transfer(client, "commit", sent, endpoint)
        transfer(client, "restore", tmp_path / "back", endpoint)
    for size in SIZES:
        assert (tmp_path / "back" / f"{size}.bin").read_bytes() == (sent / f"{size}.bin").read_bytes()
