"""A look at a thread's stack collects no garbage, which would let other threads run while their list is locked."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from windtunnel.seam.torch.state.looks import stack_of


def test_no_collection_while_the_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, collects = sys._current_frames, []

    def listed() -> dict[int, object]:
        collects.append(gc.isenabled())
        return dict(frames())

    monkeypatch.setattr(sys, "_current_frames", listed)
    assert stack_of(threading.get_ident())
    assert collects == [False]
    assert gc.isenabled()
    gc.disable()
    try:
        assert stack_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()
