"""MPT as llm-foundry trains it, by PyTorch's FullyShardedDataParallel: a program for a cluster.

Learned positions, biases, normalization in the low precision, fused attention, flash_attn's loss (the default
`fused_crossentropy`), AdamW, clipped gradients, whole blocks computed again with --recompute. Rank 0 prints the
milliseconds of a step of --accumulate micro-batches.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from torch import Tensor, nn
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.utils.checkpoint import checkpoint

WORDS = 50368
MOST_BATCHES = 2
"""Further micro-batches of a step take as long as the second one."""


class MptLayer(nn.Module):
    """Normalization first, attention over what came before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class MptModel(nn.Module):
    """Token numbers (N, S) to scores (N, S, 50368) by the embedding's own weights."""

    def __init__(self, sizes: tuple[int, int, int], length: int, recompute: bool) -> None:
        super().__init__()
        layers, width, heads = sizes
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(MptLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.linear(self.norm(x), self.words.weight)


def allocate(module: nn.Module) -> None:
    """Give a module's own weights memory, and values."""
    module.to_empty(device="cuda", recurse=False)
    for parameter in module.parameters(recurse=False):
        nn.init.normal_(parameter, std=0.02)


def sharded(
    sizes: tuple[int, int, int], length: int, recompute: bool, strategy: str, pure: bool
) -> FullyShardedDataParallel:
    """The model, a block of whose weights is gathered at a time."""
    with torch.device("meta"):
        net = MptModel(sizes, length, recompute)
    half = torch.bfloat16
    return FullyShardedDataParallel(
        net,
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(half, half if pure else torch.float32, half),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, MptLayer),
        param_init_fn=allocate,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
        use_orig_params=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--layers", "--width", "--heads"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--strategy", default="FULL_SHARD")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--pure", action="store_true", help="reduce gradients in 16 bits")
    given = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    net = sharded((given.layers, given.width, given.heads), given.length, given.recompute, given.strategy, given.pure)
    optimizer = torch.optim.AdamW(net.parameters())
    tokens = torch.zeros(given.batch, given.length, dtype=torch.long, device="cuda")
    batches, loss = min(given.accumulate, MOST_BATCHES), CrossEntropyLoss()
    mark = partial(torch.cuda.Event, enable_timing=True)
    for _ in range(2):
        marks = [mark() for _ in range(batches + 2)]
        for number in range(batches):
            marks[number].record()
            loss(net(tokens).view(-1, WORDS), tokens.view(-1)).backward()
        marks[batches].record()
        net.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        marks[-1].record()
        torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in pairwise(marks)]
    if dist.get_rank() == 0:
        print(f"step of {sum(times) + (given.accumulate - batches) * times[batches - 1]:.6f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
