"""Emulated GPUs for tests with jax; without it nothing here is collected (tests/conftest.py says so)."""

from importlib.util import find_spec

import pytest

from understudy.session import Options, Session

FOUND = find_spec("jax")
# The folder of these tests is itself a package without files for Python: it has no origin.
collect_ignore_glob = [] if FOUND is not None and FOUND.origin else ["test_*.py"]


@pytest.fixture
def session():
    """Two emulated V100, in jax only."""
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("jax")
    yield session
    session.end()
