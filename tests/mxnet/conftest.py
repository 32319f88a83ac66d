"""Emulated GPUs for tests with mxnet; without it nothing here is collected (tests/conftest.py says so)."""

from importlib.util import find_spec

import pytest
from understudy.session import Options, Session

FOUND = find_spec("mxnet")
# The folder of these tests is itself a package without files for Python: it has no origin.
collect_ignore_glob = [] if FOUND is not None and FOUND.origin else ["test_*.py"]


@pytest.fixture
def session():
    """Two emulated V100, in mxnet only."""
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("mxnet")
    yield session
    session.end()
