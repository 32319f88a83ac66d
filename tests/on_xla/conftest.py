"""Emulated GPUs for JAX with XLA's GPU compiler; without it nothing here is collected, and a warning says so."""

import warnings
from importlib.util import find_spec

import pytest

from windtunnel.options import Options
from windtunnel.session import Session

collect_ignore_glob = [] if find_spec("jax_cuda12_plugin") else ["test_*.py"]
if collect_ignore_glob:
    warnings.warn("tests/on_xla is left out, for want of jax-cuda12-plugin: `make test-xla` runs it", stacklevel=1)


@pytest.fixture
def session():
    """Two emulated A100, in jax only."""
    session = Session(Options(gpus="2xA100-SXM4-40GB", clock="real"))
    session.attach("jax")
    yield session
    session.end()
