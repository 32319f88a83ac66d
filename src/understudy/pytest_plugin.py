"""pytest plugin: tests that need GPUs run on emulated ones, or on real ones where there are some."""

from __future__ import annotations

import pytest

MARKERS = (
    "gpus(n, model=None): the test needs n GPUs of a model",
    "max_syncs(n): the test fails when the host waits for a GPU more than n times",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
