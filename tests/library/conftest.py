"""Emulated GPUs for the library's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import windtunnel
from windtunnel.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    """Two emulated V100."""
    with windtunnel.emulate("2xV100") as emulated:
        yield emulated
