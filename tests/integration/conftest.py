"""Fixtures of the tests of the container side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime_world import World, world


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[World]:
    """A Spot VM whose store is a directory."""
    with world(tmp_path) as made:
        yield made


@pytest.fixture
def spot_gcs(tmp_path: Path) -> Iterator[World]:
    """A Spot VM whose store is a bucket."""
    with world(tmp_path, gcs=True) as made:
        yield made
