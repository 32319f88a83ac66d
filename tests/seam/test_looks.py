"""A look at a thread's stack: no other thread runs meanwhile, and none that begins or has ended spoils it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest

from windtunnel.seam import sites
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


BESIDE_NEW_THREADS = """
import ctypes, sys, threading
from windtunnel.seam.torch.state.looks import stack_of
sys.setswitchinterval(1e-5)
looking, main = True, threading.get_ident()
def look():
    while looking:
        assert stack_of(main)[-1][2] == "<module>"
looker = threading.Thread(target=look)
looker.start()
system, number = ctypes.CDLL(None), ctypes.c_ulong()
takes_the_lock = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
for _ in range(20_000):
    system.pthread_create(ctypes.byref(number), None, takes_the_lock, None)
    system.pthread_join(number, None)
looking = False
looker.join()
"""


@pytest.mark.long
def test_looks_while_threads_of_c_enter_python() -> None:
    """Such a thread is in Python's list a moment before it is whole: `faulthandler` ends the process there."""
    assert subprocess.run([sys.executable, "-c", BESIDE_NEW_THREADS], check=False, timeout=300).returncode == 0


def test_a_thread_that_has_ended_has_no_stack() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert thread.ident is not None
    assert stack_of(thread.ident) == []


def test_a_file_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to the file system lets the thread go on that is being looked at."""
    kind = sites.kind_of(__file__)
    monkeypatch.setattr(os.path, "realpath", None)
    assert sites.kind_of(__file__) == kind == sites.PROGRAM
