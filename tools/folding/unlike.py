"""Programs whose ranks do not do the same: every kind must be found, and the ranks be played as they are.

python -m tools.folding.unlike [NAME ...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.folding.exact import compare
from tools.folding.forks import prepare
from windtunnel.ranks.alike import difference

RANKS = 8
BEFORE = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.randn(256, 256, device="cuda")
"""
AFTER = """
dist.all_reduce(torch.ones(8, device="cuda"))
torch.cuda.synchronize()
dist.destroy_process_group()
"""
PROGRAMS = {
    "last rank works more": "for _ in range(4 if rank == world - 1 else 1): x @ x",
    "first rank works more": "if rank == 0:\n    for _ in range(4): x @ x",
    "one in the middle": "if rank == 3: x @ x",
    "the middle one": "if rank == world // 2: x @ x",
    "lengths by fours": "torch.randn(64 * (1 + rank % 4), 256, device='cuda') @ x",
    "odd ranks": "if rank % 2: x @ x",
    "halves": "if rank // 4 == 1: x @ x",
    "second and third quarter": "if 2 <= rank < 6: x @ x",
    "sizes in a list": "sizes = [8, 8, 8, 8, 64, 8, 8, 8]\ntorch.randn(sizes[rank], 256, device='cuda') @ x",
    "sizes in a table": "extra = {5: 3}\nfor _ in range(extra.get(rank, 1)): x @ x",
    "a variable of the environment": "if int(os.environ['LOCAL_RANK']) in (2, 5): x @ x",
    "a constant with a name": "SPECIAL = 6\nif dist.get_rank() == SPECIAL: x @ x",
    "an argument of a function": "def work(r):\n    if r == 5: x @ x\nwork(rank)",
    "an attribute": (
        "class Part:\n    def __init__(self): self.rank = rank\n"
        "    def run(self):\n        if self.rank == 1: x @ x\nPart().run()"
    ),
    "a case": "match rank:\n    case 4: x @ x\n    case _: pass",
    "distance": "torch.randn(8 * (1 + abs(rank - 3)), 256, device='cuda') @ x",
    "another type": "y = (x.half() if rank == 2 else x.bfloat16()) * 2",
    "memory alone": "kept = torch.empty(1 << 20, device='cuda') if rank == 6 else None",
    "lengths by chance": (
        "import random\nrandom.seed(rank)\ntorch.randn(random.randint(1, 4000), 256, device='cuda') @ x"
    ),
    "layers dropped by chance": (
        "import random\nrandom.seed(1000 + rank)\nfor _ in range(8):\n    if random.random() > 0.2: x @ x"
    ),
    "counted in a store": (
        "store = dist.distributed_c10d._get_default_store()\n"
        "if store.add('arrived', 1) == world: store.set('all', '1')\nstore.wait(['all'])\nif rank == 3: x @ x"
    ),
    "uneven shards": "torch.randn(len(range(1001)[rank::world]), 256, device='cuda') @ x",
    "a group of two": (
        "g = dist.new_group([2, 3])\nif rank in (2, 3): dist.all_reduce(torch.ones(8, device='cuda'), group=g)"
    ),
    "one message": (
        "y = torch.ones(8, device='cuda')\n"
        "if rank == 2: dist.send(y, 5)\nelif rank == 5: dist.recv(y, 2)"
    ),
    "decided when it runs": "special = int(os.environ.get('SPECIAL', '3'))\nif rank == special: x @ x",
    "a wait": "if rank == 4: torch.cuda.synchronize()",
    "a copy": "if rank == 1: torch.ones(1 << 16).cuda()",
    "an optimizer in shards": (
        "from torch import nn\nfrom torch.distributed.optim import ZeroRedundancyOptimizer as Zero\n"
        "m = nn.Sequential(*[nn.Linear(64, 64) for _ in range(9)]).cuda()\n"
        "o = Zero(m.parameters(), torch.optim.Adam, lr=0.1)\n"
        "m(torch.randn(8, 64, device='cuda')).sum().backward()\no.step()"
    ),
    "unequal parts": (
        "n = [1 + (rank + i) % 3 for i in range(world)]\n"
        "dist.all_to_all_single(torch.empty(sum(n), 8, device='cuda'), torch.ones(sum(n), 8, device='cuda'), n, n)\n"
        "if rank == 1: x @ x"
    ),
    "objects": "found = [None] * world\ndist.all_gather_object(found, {'size': 8 * (1 + rank % 3)})\n"
    "torch.randn(found[rank]['size'], 256, device='cuda') @ x",
}  # fmt: skip


def judge(name: str, folder: Path, gpu: str = "V100") -> tuple[bool, str]:
    """Whether a program's ranks are found to differ, and are played as real ones run; what happened, in words."""
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(BEFORE + PROGRAMS[name] + AFTER, "utf-8")
    played, real, unlike = compare([str(path)], RANKS, gpu)
    for rank, first in enumerate(played.fold.first_of if not played.fold.is_whole else ()):
        note = difference(played.fold, (first, rank), (real.ranks[first], real.ranks[rank]))
        if note is not None:
            unlike.append(f"rank {first} does not stand for {rank}: {dict(note.detail)}")
    found = "ranks-differ" in played.codes
    words = f"{name}: {'found' if found else 'NOT FOUND'}, {played.fold.words()}" + "".join(
        f"\n    {one}" for one in unlike
    )
    return found and not unlike, words


def main() -> int:
    """Judge the programs that are named, or all."""
    prepare()
    wrong = 0
    folder = tempfile.mkdtemp(prefix="unlike-")  # ranks, which are forks, would remove a TemporaryDirectory
    for name in sys.argv[1:] or PROGRAMS:
        began = time.monotonic()
        right, words = judge(name, Path(folder))
        wrong += not right
        print(f"{'right' if right else 'WRONG'} {words} ({time.monotonic() - began:.1f} s)", flush=True)
    shutil.rmtree(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
