"""What it costs that ranks compare their calls and keep a record of them: ratios of processor time, with and without.

    python -m benchmarks.bench_ranks [--rounds N] [--record]

Two ranks train with DistributedDataParallel, in blocks of steps that are measured in turn: with everything by which
`windtunnel run` finds what goes wrong between ranks, and without any of it, where ranks only agree on when a collective
begins. Both are in one process, so what the machine does meanwhile counts for both. The last program is nothing but
collectives of eight numbers: the most that it can be.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from benchmarks.bench_overhead import Block, stock_clock
from tools.docs import figures
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import windtunnel
from windtunnel.ranks.calls import Operation
from windtunnel.seam.torch.distributed.described import Described
from windtunnel.seam.torch.distributed.groups import Group, Groups

RANKS = 2
NOTHING = Described(Operation("collective"), 0, 0, 0)


def trained(model: nn.Module, shape: tuple[int, ...], classes: int, rank: int) -> Callable[[], None]:
    """One training step of DistributedDataParallel."""
    net = DistributedDataParallel(model.cuda(), device_ids=[rank])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.randn(*shape, device="cuda"), torch.randint(0, classes, (shape[0],), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def mlp(rank: int) -> Callable[[], None]:
    """784-256-128-10, batch 128."""
    layers = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    return trained(layers, (128, 784), 10, rank)


def encoder(rank: int) -> Callable[[], None]:
    """Two layers of a Transformer's encoder of width 128, batch 8 of 64 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    pooled = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 128, 10))
    return trained(pooled, (8, 64, 128), 10, rank)


def residual(rank: int) -> Callable[[], None]:
    """Four residual blocks of 64 to 128 channels, batch 8, 32x32."""
    blocks = [Block(a, b, s) for a, b, s in ((3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1))]
    return trained(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
                   (8, 3, 32, 32), 10, rank)  # fmt: skip


def collectives(rank: int) -> Callable[[], None]:
    """One all-reduce of eight numbers."""
    value = torch.ones(8, device="cuda")
    return lambda: dist.all_reduce(value) and None


PROGRAMS: dict[str, tuple[Callable[[int], Callable[[], None]], int]] = {
    "MLP, batch 128": (mlp, 10),
    "Transformer encoder, batch 8": (encoder, 3),
    "residual network, batch 8": (residual, 1),
    "all_reduce of 8 numbers": (collectives, 50),
}


@contextmanager
def undiagnosed(groups: Groups) -> Iterator[None]:
    """Ranks exchange when they are ready, and nothing else; there is no record, and no thread that reads others."""

    @contextmanager
    def meeting(self: Groups, group: Group, call: Described, ready_ns: int, site: int) -> Iterator[int]:
        yield max(group.meet((ready_ns,)))[0]

    def release() -> None:  # one way exchanges more numbers than the other
        for group in groups.by_name.values():
            group.release()

    with mock.patch.object(Groups, "meeting", meeting), mock.patch.object(groups, "descriptions") as descriptions:
        descriptions.collective = lambda *args, **kwargs: NOTHING
        release()
        yield
    release()


def timed(step: Callable[[], None], times: int) -> float:
    """Seconds of processor time a step, of all threads of this process, the mean of `times`."""
    dist.barrier()
    began = stock_clock()
    for _ in range(times):
        step()
    return (stock_clock() - began) / times


def be(rank: int, rounds: int) -> None:
    """Be a rank: measure every program, and print what each block took."""
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {}
    with windtunnel.emulate(f"{RANKS}xV100"):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        groups = next(one for one in gc.get_objects() if isinstance(one, Groups))
        store = dist.distributed_c10d._get_default_store()
        for name, (make, times) in PROGRAMS.items():
            step = make(rank)
            timed(step, 5)
            for number in range(rounds):
                pair = {}
                for on in (True, False) if number % 2 else (False, True):
                    if on:
                        groups.watch.begin(rank, dist.PrefixStore(f"{name} {number}", store))
                        for group in groups.by_name.values():
                            groups.watch.joined(group.name, "default_pg", group.ranks)
                        pair[on] = timed(step, times)
                    else:
                        groups.watch.close()
                        with undiagnosed(groups):
                            pair[on] = timed(step, times)
                found.setdefault(name, []).append((pair[False], pair[True]))
        dist.destroy_process_group()
    print(json.dumps(found))


def main() -> None:
    """Start the ranks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="interleaved pairs of blocks a program (60)")
    parser.add_argument("--record", action="store_true", help="write docs/figures/ranks.json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank is not None:
        be(chosen.rank, chosen.rounds)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench_ranks", "--rank", str(rank), "--rounds", str(chosen.rounds)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank has failed")
    print(
        f"torch {torch.__version__}, {RANKS} ranks, {chosen.rounds} interleaved pairs of blocks, medians of both ranks"
    )
    print(f"{'program':32} {'without':>10} {'with':>10} {'ratio':>7} {'quartiles':>14}")
    rows = {}
    told = [json.loads(output.splitlines()[-1]) for output in outputs]
    for key, name in zip(("mlp", "encoder", "residual", "nothing"), PROGRAMS, strict=True):
        pairs = [pair for one in told for pair in one[name]]
        low, middle, high = statistics.quantiles((on / off for off, on in pairs), n=4)
        off, on = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
        print(f"{name:32} {off:8.0f}us {on:8.0f}us {middle:6.3f}x {low:6.3f}-{high:<6.3f}")
        rows[key] = {
            "without": float(f"{off / 1e3:.3g}"),
            "with": float(f"{on / 1e3:.3g}"),
            "ratio": round(middle, 3),
            "spread": [round(low, 3), round(high, 3)],
        }
    if chosen.record:
        figures.record("ranks", rows)


if __name__ == "__main__":
    main()
