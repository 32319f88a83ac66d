"""The profiler, the GPU trace and the memory history: any two at once, switched on and off in any order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.cuda import _gpu_trace
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from windtunnel.session import Session

pytestmark = pytest.mark.usefixtures("session")


class Profiling:
    """A window of `torch.profiler`."""

    def on(self) -> None:
        """Begin it."""
        self.window = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True)
        self.window.__enter__()

    def off(self) -> None:
        """End it."""
        self.window.__exit__(None, None, None)

    def heard(self) -> tuple[int, int]:
        """Allocations and frees on the device."""
        kineto: Any = self.window.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [e.nbytes() for e in kineto.events() if e.name() == "[memory]" and e.device_type() == DeviceType.CUDA]
        return sum(size > 0 for size in sizes), sum(size < 0 for size in sizes)


class Tracing:
    """Callbacks of the GPU trace; PyTorch cannot switch it off, only a listener can stop listening."""

    def on(self) -> None:
        """Listen."""
        self.counts = [0, 0]
        self.listeners = [self._counting(0), self._counting(1)]
        _gpu_trace.register_callback_for_memory_allocation(self.listeners[0])
        _gpu_trace.register_callback_for_memory_deallocation(self.listeners[1])
        torch._C._activate_gpu_trace()

    def _counting(self, which: int) -> Callable[[int], None]:
        def count(address: int) -> None:
            self.counts[which] += 1

        return count

    def off(self) -> None:
        """Stop listening."""
        _gpu_trace.MemoryAllocationCallbacks.callback_list.remove(self.listeners[0])
        _gpu_trace.MemoryDeallocationCallbacks.callback_list.remove(self.listeners[1])

    def heard(self) -> tuple[int, int]:
        """Allocations and frees on the device."""
        return self.counts[0], self.counts[1]


class Remembering:
    """The allocator's history."""

    def on(self) -> None:
        """Begin it."""
        torch.cuda.memory._record_memory_history(clear_history=True)

    def off(self) -> None:
        """Keep what was heard, and end it."""
        self.actions = [action["action"] for action in torch.cuda.memory._snapshot()["device_traces"][0]]
        torch.cuda.memory._record_memory_history(enabled=None)

    def heard(self) -> tuple[int, int]:
        """Allocations and frees on the device."""
        return self.actions.count("alloc"), self.actions.count("free_requested")


KINDS = (Profiling, Tracing, Remembering)


def step() -> None:
    """One allocation, one kernel, one free."""
    x = torch.empty(256, device="cuda")
    x.fill_(1.0)


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "overlapping"])
@pytest.mark.parametrize(("first", "second"), list(permutations(KINDS, 2)), ids=lambda kind: kind.__name__)
def test_each_hears_what_happens_while_it_is_on(first: type[Any], second: type[Any], nested: bool) -> None:
    step()
    one, two = first(), second()
    one.on()
    step()
    two.on()
    step()
    (two if nested else one).off()
    step()
    (one if nested else two).off()
    step()
    assert one.heard() == ((3, 3) if nested else (2, 2))
    assert two.heard() == ((1, 1) if nested else (2, 2))


def test_all_three_at_once_hear_the_same() -> None:
    watching = [kind() for kind in KINDS]
    for one in watching:
        one.on()
    step()
    for one in watching:
        one.off()
    assert [one.heard() for one in watching] == [(1, 1)] * 3


def test_what_lived_before_the_trace_began_is_told_of_when_it_ends() -> None:
    x = torch.empty(256, device="cuda")
    trace = Tracing()
    trace.on()
    del x
    trace.off()
    assert trace.heard() == (0, 1)
    assert torch.cuda.memory_allocated() == 0


def entered() -> list[str]:
    """The dispatch modes that are on, by their classes."""
    return [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]


def test_nothing_is_round_the_verbs_when_nobody_watches(session: Session) -> None:
    step()
    before, modes = vars(session.machine).keys() - set(), entered()
    for kind in KINDS:
        one = kind()
        one.on()
        one.off()
    assert vars(session.machine).keys() == before
    assert entered() == modes


def test_a_window_in_another_leaves_nothing_either(session: Session) -> None:
    before, modes = vars(session.machine).keys() - set(), entered()
    outer, inner = Profiling(), Profiling()
    outer.on()
    inner.on()
    step()
    inner.off()
    outer.off()
    assert inner.heard() == (1, 1)
    assert vars(session.machine).keys() == before
    assert entered() == modes
