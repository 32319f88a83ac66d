"""Threads of a program's own on emulated GPUs, seeded: what they copy, wait for, allocate and save is what they wrote.

    python tests/seam/threads.py [--seeds N] [--checkpoints N] [--threads N]

`make test-threads` runs it at length: 40 seeds, then 500 asynchronous checkpoints under four threads, compared bit by
bit. `test_threads.py` runs a short part.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

import windtunnel
from windtunnel.session import Session
from windtunnel.trace.operation import Kind
from windtunnel.train import read_checkpoint
from windtunnel.train.checkpoints import Checkpoints

SWITCH_SECONDS = 1e-6
"""How long a thread keeps Python's lock: short, so that threads meet everywhere."""
SUBMITTED = (Kind.KERNEL, Kind.COPY)


@contextmanager
def restless() -> Iterator[None]:
    """Threads change as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(count - 1)` on threads at once; raises the first error of any."""
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def wander(number: int, seed: int, steps: int, own_stream: bool) -> None:
    """One thread's program: kernels, copies both ways, waits, allocations and frees; every value is compared."""
    draw = random.Random(f"{seed}/{number}")
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    kept: list[tuple[torch.Tensor, float]] = []
    with torch.cuda.stream(stream):
        for step in range(steps):
            value = float(number * 1000 + step)
            size = draw.choice((8, 100, 5000, 70_000))
            source = torch.full((size,), value, pin_memory=True)
            on_device = source.to("cuda", non_blocking=True)
            on_device.add_(1)
            kept.append((on_device, value + 1))
            tensor, expected = draw.choice(kept)
            arrived = torch.full(tensor.shape, -1.0, pin_memory=True)
            arrived.copy_(tensor, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            tensor.add_(1)  # after the copy, which has the values from before
            kept = [(t, e + 1 if t is tensor else e) for t, e in kept]
            if draw.random() < 0.3:
                del kept[draw.randrange(len(kept))]
            draw.choice((done.synchronize, stream.synchronize, torch.cuda.synchronize))()
            if not torch.equal(arrived, torch.full_like(arrived, expected)):
                raise AssertionError(f"thread {number}, step {step}: {arrived.unique().tolist()}, not {expected}")
        for tensor, expected in kept:
            if not bool((tensor.cpu() == expected).all()):
                raise AssertionError(f"thread {number}: {tensor.cpu().unique().tolist()} is left, not {expected}")


def consistent(session: Session) -> None:
    """The machine's books after threads: each stream's epochs are its rows, all memory came back, nothing raced."""
    device = session.machine.devices[0]
    submitted = sum(row[0] in SUBMITTED for row in session.trace.rows)
    assert submitted == sum(stream.epoch for stream in device.streams)
    assert torch.cuda.memory_allocated() == 0
    assert not session.trace.hazards


def stress(seed: int, threads: int = 4, steps: int = 12) -> None:
    """`wander` on several threads, each on a stream of its own (odd seeds) or all on the default one."""
    with windtunnel.emulate("1xV100") as session, restless():
        torch.zeros(1, device="cuda")
        together(threads, lambda number: wander(number, seed, steps, bool(seed % 2)))
        consistent(session)


def checkpoints(folder: Path, count: int, threads: int = 4) -> int:
    """Save `count` states asynchronously from threads that go on changing them; returns how many are not bit-equal."""
    wrong = [0] * threads

    def work(number: int) -> None:
        saver = Checkpoints(folder / str(number), keep=1)
        generator = torch.Generator().manual_seed(number)
        state = {f"{i}": torch.randn(40 + 7 * i, generator=generator).cuda() for i in range(5)}
        for step in range(count // threads):
            saver.save({"model": state, "step": step}, step, False, {})
            expected = {name: tensor.cpu() for name, tensor in state.items()}
            for tensor in state.values():
                tensor.mul_(1.5).sub_(0.1)
            saver.wait()
            (written,) = (folder / str(number)).glob("step-*")
            found = read_checkpoint(written)["model"]
            wrong[number] += any(not torch.equal(found[name], tensor) for name, tensor in expected.items())
        saver.close()

    with windtunnel.emulate("1xV100"), restless():
        together(threads, work)
    return sum(wrong)


def main() -> None:
    """Run at length and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--checkpoints", type=int, default=500)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    for seed in range(options.seeds):
        stress(seed, options.threads, 40)
    print(f"{options.seeds} seeds of {options.threads} threads: every value as written, every book in order")
    with tempfile.TemporaryDirectory() as folder:
        wrong = checkpoints(Path(folder), options.checkpoints, options.threads)
    print(f"{options.checkpoints} asynchronous checkpoints under {options.threads} threads: {wrong} differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
