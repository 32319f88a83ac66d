"""Signals in the middle of operators, seeded: a handler that raises, or that uses the GPU itself, breaks nothing.

    python tests/seam/signals.py [--signals N] [--seed S]

A signal comes at a drawn call or return of a function of ours, wherever it is, in one of `WORK`; its handler raises or
works on the GPU. What CUDA does: the handler runs between operators; an exception reaches the program; memory comes
back; and what is computed afterwards is right. `make test-signals` runs it at length, `test_signals.py` a short part.
"""

from __future__ import annotations

import argparse
import gc
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import windtunnel
from windtunnel.seam.sites import OURS


class Stopped(BaseException):
    """What a handler raises."""


WATCH = """
def watch(frame, event, argument):
    mine = frame.f_code.co_filename.startswith(ours)
    count[0] -= mine
    if mine and count[0] == 0:
        raise_signal(SIGUSR1)
"""


def signalled_after(calls: int, work: Callable[[], object]) -> tuple[int, bool]:
    """Run `work`, with a signal at our `calls`-th call or return: how many were left, and whether it raised.

    The watching function passes for one of ours, so that the signal comes in the middle of whatever is running.
    """
    names: dict[str, Any] = {"count": [calls], "raise_signal": signal.raise_signal, "SIGUSR1": signal.SIGUSR1}
    names |= {"ours": OURS, "__name__": "windtunnel.machine.watch"}
    exec(compile(WATCH, f"{OURS}machine/watch.py", "exec"), names)
    raised = False
    gc.disable()  # a collection in the middle would bring the signal into the end of some other object
    try:
        try:
            sys.setprofile(names["watch"])
            work()
        finally:
            sys.setprofile(None)
    except Stopped:
        raised = True
    finally:
        gc.enable()
    return names["count"][0], raised


@contextmanager
def handled(by: Callable[[], None]) -> Iterator[list[str]]:
    """SIGUSR1 calls `by`; the files whose frames its handler was given."""
    files: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        files.append(frame.f_code.co_filename if frame is not None else "")
        by()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield files
    finally:
        signal.signal(signal.SIGUSR1, before)


def stop() -> None:
    raise Stopped


def use() -> None:
    """A handler's own work on the GPU."""
    assert float((torch.ones(300, device="cuda") * 2).sum()) == 600


# What is interrupted: each gives what it computed, on the host.


def elementwise() -> torch.Tensor:
    x = torch.ones(1000, device="cuda")
    y = x * 2 + 1
    del x
    return y.add_(1).sum().cpu()


def training() -> torch.Tensor:
    layer = torch.nn.Linear(8, 8, device="cuda")
    torch.nn.init.constant_(layer.weight, 0.1)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(4, 8, device="cuda")).square().mean().backward()
    optimizer.step()
    return layer.weight.detach().cpu()


def allocations() -> torch.Tensor:
    kept = [torch.zeros(size, device="cuda") for size in (100, 5000, 300_000, 7)]
    kept.pop(1)
    kept.pop(0)
    return torch.cat([kept[0][:10], kept[1]]).cpu()


def copies() -> torch.Tensor:
    host = torch.ones(100).pin_memory()
    with torch.cuda.stream(torch.cuda.Stream()):
        there = host.to("cuda", non_blocking=True)
        there.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    return there.cpu()


def streams() -> torch.Tensor:
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.arange(500.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.cumsum(0)
        done.record()
    done.wait()
    x.record_stream(side)
    return (y + x).cpu()


def graph() -> torch.Tensor:
    x = torch.ones(64, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x * 3 + 1
    x.fill_(2)
    captured.replay()
    return y.cpu()


def convolution() -> torch.Tensor:
    x = torch.ones(2, 3, 8, 8, device="cuda", requires_grad=True)
    weight = torch.full((4, 3, 3, 3), 0.1, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        y = torch.nn.functional.conv2d(x, weight, padding=1).relu()
    torch.nn.functional.batch_norm(y.float(), None, None, training=True).square().sum().backward()
    return y.detach().float().cpu()


def indices() -> torch.Tensor:
    x = torch.tensor([3, 1, 2, 3, 1], device="cuda")
    values, counts = x.unique(return_counts=True)
    found = x[x > 1].sort().values
    return torch.cat([values, counts, found, x.nonzero().flatten()]).cpu()


def recomputed() -> torch.Tensor:
    x = torch.ones(16, 16, device="cuda", requires_grad=True)
    checkpoint(lambda t: (t @ t).tanh(), x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    return x.grad.cpu()


def scaled() -> torch.Tensor:
    x = torch.nn.Parameter(torch.ones(32, device="cuda"))
    optimizer, scaler = torch.optim.SGD([x], lr=0.1), torch.amp.GradScaler("cuda", init_scale=2.0)
    scaler.scale((x * x).sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([x], 1.0)
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.empty_cache()
    return x.detach().cpu()


Work = Callable[[], torch.Tensor]
WORK: tuple[Work, ...] = (
    elementwise, training, allocations, copies, streams, graph, convolution, indices, recomputed, scaled
)  # fmt: skip


def whole_books(base: int) -> list[str]:
    """What is wrong with the memory after a signal: nothing is lost, and nothing overlaps."""
    gc.collect()
    torch.cuda.synchronize()
    wrong = [] if torch.cuda.memory_allocated() == base else [f"{torch.cuda.memory_allocated() - base} bytes lost"]
    kept = [torch.empty(5000, device="cuda") for _ in range(50)]
    places = sorted(tensor.data_ptr() for tensor in kept)
    return wrong + ["blocks overlap"] * any(later - former < 20_000 for former, later in pairwise(places))


def one_signal(work: Work, calls: int, by: Callable[[], None], expected: torch.Tensor) -> list[str]:
    """What goes wrong where a signal comes at that call: nothing should."""
    work()  # with the workspaces of its libraries
    base, wrong = torch.cuda.memory_allocated(), list[str]()
    with handled(by) as files:
        left, raised = signalled_after(calls, work)
    if left <= 0 and (len(files) != 1 or raised != (by is stop)):
        wrong.append(f"the handler ran {len(files)} times, raised: {raised}")
    wrong += [f"the handler was given a frame of ours, {file}" for file in files if file.startswith(OURS)]
    wrong += whole_books(base)
    return wrong if torch.equal(work(), expected) else [*wrong, "another result afterwards"]


def series(signals: int, seed: int) -> tuple[Counter[str], list[str]]:
    """So many signals: how many came in each work, and all that went wrong."""
    dice, came, wrong = random.Random(seed), Counter[str](), list[str]()
    calls, expected = dict[str, int](), dict[str, torch.Tensor]()
    for work in WORK:
        expected[work.__name__] = work()
        calls[work.__name__] = sys.maxsize - signalled_after(sys.maxsize, work)[0]
    for number in range(signals):
        work, by = dice.choice(WORK), dice.choice((stop, stop, use))
        by = stop if work is graph else by  # to wait for the GPU amid a capture is an error on CUDA, too
        name = work.__name__
        came[name] += 1
        at = dice.randrange(1, calls[name])
        try:
            found = one_signal(work, at, by, expected[name])
        except Exception as error:  # noqa: BLE001  (whatever an operator raises that nobody asked for)
            found = [f"{type(error).__name__}: {error}"]
        wrong += [f"signal {number}, {name} at call {at}, {by.__name__}: {one}" for one in found]
    return came, wrong


def main() -> None:
    """Run at length and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with windtunnel.emulate("2xV100"):
        came, wrong = series(options.signals, options.seed)
    print("\n".join(wrong))
    print(f"{sum(came.values())} signals in {len(came)} kinds of work (seed {options.seed}), {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
