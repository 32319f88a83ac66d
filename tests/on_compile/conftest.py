"""torch.compile with Inductor; without Triton nothing here is collected, and a warning says so."""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import windtunnel
from windtunnel.session import Session

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
    warnings.warn("tests/on_compile is left out, for want of Triton: `make test-compile` runs it", stacklevel=1)
else:
    collect_ignore_glob = []


@pytest.fixture
def session() -> Iterator[Session]:
    """Two A100, for one test."""
    with windtunnel.emulate("2xA100") as emulated:
        yield emulated
