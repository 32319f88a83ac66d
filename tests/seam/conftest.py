"""Emulated GPUs for the seam's tests: fresh ones for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import windtunnel
from windtunnel.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    """Two V100, for one test; their host is quick, so that kernels show in the times between events."""
    with windtunnel.emulate("2xV100", host="reference") as emulated:
        yield emulated
