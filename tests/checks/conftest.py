"""Fixtures for the checks' tests."""

from __future__ import annotations

import pytest
from traces import Program


@pytest.fixture
def program() -> Program:
    """An empty program on one GPU."""
    return Program()
