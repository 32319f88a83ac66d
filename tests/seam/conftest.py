"""Emulated GPUs for the seam's tests: fresh ones for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import windtunnel
from windtunnel.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    """Two V100, for one test."""
    with windtunnel.emulate("2xV100") as emulated:
        yield emulated
