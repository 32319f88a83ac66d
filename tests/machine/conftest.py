"""A machine of two V100 for tests with integers: no framework, no values."""

from __future__ import annotations

import pytest

from understudy import gpus
from understudy.machine.machine import Machine
from understudy.machine.memory.settings import parse
from understudy.session import build_machine
from understudy.trace.trace import Trace


@pytest.fixture
def machine() -> Machine:
    """Two V100-SXM2-16GB and the host that drives them."""
    return build_machine(gpus.parse("2xV100"), (11, 2), Trace(), parse(""))
