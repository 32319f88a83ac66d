"""Emulated GPUs for tests with jax; without it nothing here is collected, and a warning says so."""

import warnings
from importlib.util import find_spec

import pytest

from windtunnel.options import Options
from windtunnel.session import Session

FOUND = find_spec("jax")
# Python takes this very folder for a package without files where it meets it on its path: that one has no origin.
if FOUND is not None and FOUND.origin:
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["test_*.py"]
    warnings.warn("tests/on_jax is left out, for want of jax: `make test-jax` runs it", stacklevel=1)


@pytest.fixture
def session():
    """Two emulated V100, in jax only."""
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("jax")
    yield session
    session.end()
