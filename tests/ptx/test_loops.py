"""Loops that do not end, and kernels that the user interrupts."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.ptx.cuda import launch, np

SOURCE = """
KERNEL together(int *x) {
  int k = 1;
  for (;;) {
    asm volatile("add.s32 %0, %0, 2;" : "+r"(k));
    if (k == 0) break;
  }
  x[0] = k;
}
KERNEL apart(int *x) {
  int i = threadIdx_x, k = 0;
  while (k >= 0) {
    if ((k + i) % 3 == 0) { k = (k + 1) % 7; continue; }
    asm volatile("add.s32 %0, %0, 2;" : "+r"(k));
    k %= 7;
  }
  x[i] = k;
}
KERNEL long_but_ends(int *x, int n) {
  int k = 0;
  for (int j = 0; j < n; j++) asm volatile("add.s32 %0, %0, 1;" : "+r"(k));
  x[threadIdx_x] = k;
}
"""


@pytest.mark.parametrize("kernel", ["together", "apart"])
@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_loop_without_an_end_is_ended_and_named(kernel: str, checks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.ptx.launch.MOST_INSTRUCTIONS", 1 << 25)
    found = launch(SOURCE, [np.zeros(32, np.int32)], kernel=kernel, checks=checks)
    assert found.trap == "cudaErrorLaunchTimeout"
    assert [fault.kind for fault in found.faults] == ["endless-loop"]
    first = SOURCE.splitlines().index(next(line for line in SOURCE.splitlines() if kernel in line)) + 1
    assert first < found.faults[0].line < first + 7


def test_a_long_loop_ends() -> None:
    x = np.zeros(32, np.int32)
    found = launch(SOURCE, [x, 3_000_000], kernel="long_but_ends")
    assert found.trap is None
    assert not found.faults
    assert (x == 3_000_000).all()


def test_a_kernel_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.ptx.launch.MOST_INSTRUCTIONS", 1 << 60)  # no machine ends it before
    timer = threading.Timer(2.0, signal.raise_signal, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(SOURCE, [np.zeros(32, np.int32)], kernel="together", checks="none")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
