"""Threads of a program's own: a short, seeded part of `make test-threads`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from threads import checkpoints, restless, stress, together

import windtunnel
from windtunnel.session import Session
from windtunnel.trace.trace import Trace


@pytest.mark.parametrize("seed", [0, 1])
def test_threads_find_their_values_and_the_books_are_in_order(seed: int) -> None:
    stress(seed)


def test_asynchronous_checkpoints_under_four_threads_are_bit_equal(tmp_path: Path) -> None:
    assert checkpoints(tmp_path, 8) == 0


def trace_of_threads(devices: list[int], path: Path) -> bytes:
    """What is saved of threads that multiply matrices, each on its device."""

    def work(device: int) -> None:
        x = torch.ones(32, 32, device=f"cuda:{device}")
        for _ in range(10):
            x = x @ x / 32
        assert x.sum().item() == 1024

    with windtunnel.emulate("4xV100") as session:
        threads = [threading.Thread(target=work, args=(device,)) for device in devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    session.trace.save(path)
    return path.read_bytes()


def test_threads_with_devices_of_their_own_leave_the_same_trace_each_time(tmp_path: Path) -> None:
    first, *others = [trace_of_threads([0, 1, 2, 3], tmp_path / f"{number}.trace") for number in range(6)]
    assert all(other == first for other in others)


def test_threads_that_share_a_device_do_the_same_work_each_time(tmp_path: Path) -> None:
    found = []
    for number in range(4):
        path = tmp_path / f"{number}.trace"
        trace_of_threads([0, 0, 0, 0], path)
        found.append(sorted((record.lane.thread, record.signature.name) for record in Trace.load(path)))
    assert all(other == found[0] for other in found)


def test_a_recorded_tensor_dies_while_another_thread_has_the_machines_lock(session: Session) -> None:
    """A storage's death may happen in a verb of another thread; to wait for that one could be a deadlock."""
    kept = [torch.ones(8, device="cuda")]
    kept[0].record_stream(torch.cuda.Stream())
    held, dead = threading.Event(), threading.Event()

    def die() -> None:
        held.wait()
        kept.clear()
        dead.set()

    thread = threading.Thread(target=die)
    thread.start()
    with session.machine.turns.lock:
        held.set()
        assert dead.wait(10)
        assert len(session.machine.devices[0].frees) == 1
    thread.join()


def test_threads_that_meet_an_operator_at_once_get_one_object(session: Session) -> None:
    """PyTorch makes one for each of them, and C++ may keep the one that is then replaced and freed."""
    library = torch.library.Library("windtunnel_threads", "DEF")
    names = [f"operator{number}" for number in range(50)]
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")
    found: dict[str, list[object]] = {name: [] for name in names}
    ready = threading.Barrier(4)

    def meet(number: int) -> None:
        for name in names:
            ready.wait()
            found[name].append(getattr(torch.ops.windtunnel_threads, name).default)

    with restless():
        together(4, meet)
    library._destroy()
    assert [name for name in names if len({id(one) for one in found[name]}) > 1] == []


def test_backward_on_a_thread_runs_on_the_stream_of_that_threads_forward(session: Session) -> None:
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()

    def work(number: int) -> None:
        # Both threads' nodes have the same numbers: each thread counts from zero.
        with torch.cuda.stream(side if number else torch.cuda.default_stream()):
            y = (x.detach().clone().requires_grad_() * 2).sum()
        before = session.machine.devices[0].streams[1].epoch
        y.backward()
        after = session.machine.devices[0].streams[1].epoch
        grew[number] = after > before

    grew = [False, False]
    for number in (1, 0):
        together(1, lambda _, number=number: work(number))  # type: ignore[misc]
    assert grew == [False, True]
