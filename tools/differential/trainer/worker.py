"""One of the processes of ddp and fsdp: works through the configurations and writes what all ranks found."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from tools.differential.trainer.compare import Verdict, documented_refusals, judge
from tools.differential.trainer.space import draw


def main() -> None:
    seed, *names = sys.argv[1:]
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    judged = dist.new_group(backend="gloo")
    refusals = documented_refusals()
    for name in names:
        strategy, number = name.split("/")
        verdict = judge(draw(strategy, int(number), int(seed)), refusals, rank)
        found: list[Verdict] = [verdict] * dist.get_world_size()
        dist.all_gather_object(found, verdict, group=judged)
        if rank == 0:
            print(json.dumps(joined(found)), flush=True)


def joined(found: list[Verdict]) -> Verdict:
    """The verdict of all ranks: the worst of any, or the first one's."""
    for rank, verdict in enumerate(found):
        if verdict.kind == "differs":
            return Verdict("differs", [f"rank {rank}: {line}" for line in verdict.lines])
    if len({verdict.kind for verdict in found}) > 1:
        return Verdict("differs", [f"rank {rank}: {verdict}" for rank, verdict in enumerate(found)])
    return found[0]


if __name__ == "__main__":
    main()
