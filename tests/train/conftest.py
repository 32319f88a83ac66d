"""Emulated GPUs for the Trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import windtunnel
from windtunnel.session import Session


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def session() -> Iterator[Session]:
    """Three emulated V100."""
    with windtunnel.emulate("3xV100") as emulated:
        yield emulated
