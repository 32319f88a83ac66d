"""A machine of two V100 for tests with integers: no framework, no values."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.settings import parse
from windtunnel.session import build_machine
from windtunnel.trace.trace import Trace


@pytest.fixture
def machine() -> Machine:
    """Two V100-SXM2-16GB and the host that drives them."""
    return build_machine(gpus.parse("2xV100"), (11, 2), Trace(), parse(""))
