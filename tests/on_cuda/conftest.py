"""CUDA C++ on emulated GPUs; without the extra nothing here is collected, and a warning says so."""

from collections.abc import Iterator

import pytest

from helpers.cuda_compiler import left_out
from windtunnel import emulate
from windtunnel.session import Session

collect_ignore_glob = left_out("tests/on_cuda")


@pytest.fixture
def session() -> Iterator[Session]:
    """One emulated H100."""
    with emulate("H100") as running:
        yield running
