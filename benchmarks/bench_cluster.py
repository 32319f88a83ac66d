"""What it costs to play a cluster: two steps of an 8-billion-parameter Llama under FSDP2, on 8 to 4,096 GPUs.

The last case is `llama_405b.py`, whose 16 stages are as many processes.

    python -m benchmarks.bench_cluster            # make bench-cluster; --record writes the figures

Processor time is that of the whole command, imports included; the size is that of its largest process.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.docs import figures

PROGRAM = '''
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, HEADS, GROUPS, LAYERS, VOCABULARY, TOKENS = 4096, 14336, 32, 8, 32, 131072, 8192


class Block(nn.Module):
    """One layer of Llama 3.1 8B, without its rotary embedding."""

    def __init__(self):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.key, self.value = (linear(WIDTH, WIDTH // HEADS * GROUPS) for _ in "kv")
        self.gate, self.up, self.down = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def forward(self, x):
        normed = self.first(x)
        parts = (f(normed) for f in (self.query, self.key, self.value))
        heads = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.second(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    parts = [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(LAYERS)), nn.RMSNorm(WIDTH)]
    net = nn.Sequential(*parts, nn.Linear(WIDTH, VOCABULARY, bias=False))
for part in (*net, net):
    fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
net.to_empty(device="cuda")
for parameter in net.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
for _ in range(2):
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS + 1), device="cuda")
    x = net[0](tokens[:, :-1])
    for block in net[1:-2]:
        x = checkpoint(block, x, use_reentrant=False)
    F.cross_entropy(net[-1](net[-2](x)).flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
'''


SIZES = "4096, 14336, 32, 8, 32, 131072, 8192"
DIVIDING = "4096, 16384, 32, 32, 32, 131072, 8192"
"""Each dimension that FSDP2 divides is a multiple of 4,096: else the last ranks have less to do than the first."""
LARGE = str(Path(__file__).with_name("llama_405b.py"))


class Case(NamedTuple):
    """A cluster, further options, and the program."""

    cluster: str
    options: tuple[str, ...] = ()
    program: str = "train.py"

    @property
    def title(self) -> str:
        words = f"405B, TP 8, PP 16, on {self.cluster}" if self.program == LARGE else self.cluster
        return words + (f", `{' '.join(self.options)}`" if self.options else "")


CASES = {
    "node": Case("1x8xH100"),
    "nodes": Case("8x8xH100"),
    "many": Case("64x8xH100"),
    "most": Case("512x8xH100", program="dividing.py"),
    "unchecked": Case("64x8xH100", ("--check-fold", "0")),
    "pipeline": Case("64x8xH100", ("--check-fold", "0"), LARGE),
}


def measure(case: Case, folder: str) -> dict[str, str | int | float]:
    """The row of a case."""
    command = [sys.executable, "-m", "windtunnel", "run", "--cluster", case.cluster, *case.options, case.program]
    with open(Path(folder, "report"), "w+", encoding="utf-8") as report:
        started = subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=report)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        report.seek(0)
        played = re.findall(r"ranks by (\d+) process", report.read())  # the last attempt's comes last
    if started.returncode or not played:
        sys.exit(f"{' '.join(command)} ended with {started.returncode}")
    seconds = round(used.ru_utime + used.ru_stime, 1)
    return {"cluster": case.title, "processes": int(played[-1]), "seconds": seconds, "size": used.ru_maxrss >> 10}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="one of them")
    parser.add_argument("--record", action="store_true", help="write docs/figures/clusters.json")
    options, rows = parser.parse_args(), {}
    with tempfile.TemporaryDirectory(prefix="windtunnel-cluster-") as folder:
        Path(folder, "train.py").write_text(PROGRAM, encoding="utf-8")
        Path(folder, "dividing.py").write_text(PROGRAM.replace(SIZES, DIVIDING), encoding="utf-8")
        for name, case in CASES.items():
            if options.only in (None, name):
                rows[name] = measure(case, folder)
                print(*(f"{key} {value}" for key, value in rows[name].items()), sep=", ", flush=True)
    if options.record:
        figures.record("clusters", rows)


if __name__ == "__main__":
    main()
