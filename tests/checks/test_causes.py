"""Every operator that waits on CUDA is named in words, with advice of its own."""

from __future__ import annotations

from windtunnel.checks.host_sync import CAUSES
from windtunnel.seam.torch.operators.tables import SYNCHRONIZING


def test_no_wait_is_shown_by_an_operator_s_raw_name():
    assert set(CAUSES) >= SYNCHRONIZING
