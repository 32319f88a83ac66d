"""The same models and callbacks in two processes, in a file without an emulation that they would inherit."""

from __future__ import annotations

import pytest
from host_cases import CASES
from training import launch

pytestmark = [pytest.mark.long, pytest.mark.weekly]
"""Each starts programs of its own."""


@pytest.mark.parametrize("gpus", [False, True])
def test_two_processes_train_as_a_loop_by_hand(gpus, tmp_path):
    result = launch(2, tmp_path, gpus=gpus, program="host_cases.py")
    assert result == {"cases": len(CASES), "wrong": [{}, {}]}
