"""Two steps of a Llama of 405 billion parameters in stock PyTorch: FSDP2, tensor parallelism 8, a pipeline of 16.

    windtunnel run --cluster 64x8xH100 benchmarks/llama_405b.py

512 ranks are four replicas. One forward one backward, sequence parallel, whole layers computed again, no rotary
embedding. `make bench-cluster` measures what it costs to play it.
"""

import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, HEADS, GROUPS, LAYERS, VOCABULARY, TOKENS = 16384, 53248, 128, 8, 126, 128256, 8192
TENSOR, STAGES, BATCHES, STEPS = 8, 16, 32, 2
linear = partial(nn.Linear, bias=False)


class Block(nn.Module):
    """One layer, computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = nn.Identity(), nn.Identity()
        self.query, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.key, self.value = (linear(WIDTH, WIDTH // HEADS * GROUPS) for _ in "kv")
        self.gate, self.up, self.down = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def layer(self, x: Tensor) -> Tensor:
        normed = self.attention(self.first(x))
        parts = (f(normed) for f in (self.query, self.key, self.value))
        heads = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.feed_forward(self.second(x))
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


def part_of(stage: int) -> nn.Sequential:
    """The layers of a stage, with the embedding before the first and the scores after the last."""
    parts: list[nn.Module] = [Block() for _ in range(LAYERS // STAGES + (stage < LAYERS % STAGES))]
    if stage == 0:
        parts.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if stage == STAGES - 1:
        parts += [nn.RMSNorm(WIDTH), linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*parts)


def plan_of(part: nn.Module) -> dict[str, object]:
    """How a part is divided among the ranks of a tensor-parallel group."""
    whole = partial(PrepareModuleInput, input_layouts=Shard(1), desired_input_layouts=Replicate())
    if not isinstance(part, Block):
        return {}
    columns = dict.fromkeys(("query", "key", "value", "gate", "up"), ColwiseParallel())
    rows = dict.fromkeys(("out", "down"), RowwiseParallel(output_layouts=Shard(1)))
    norms = {"first": SequenceParallel(), "second": SequenceParallel()}
    return {**norms, **columns, **rows, "attention": whole(), "feed_forward": whole()}


def loss_of(scores: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten())


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    replicas = dist.get_world_size() // TENSOR // STAGES
    mesh = init_device_mesh("cuda", (STAGES, replicas, TENSOR), mesh_dim_names=("stage", "replica", "tensor"))
    number = mesh["stage"].get_local_rank()
    is_first, is_last = number == 0, number == STAGES - 1
    with torch.device("meta"):
        part = part_of(number)
    if is_first:
        embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        parallelize_module(part, mesh["tensor"], {"0": embedding})
    if is_last:
        scores = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        names = [name for name, _ in part.named_children()]
        parallelize_module(part, mesh["tensor"], {names[-2]: SequenceParallel(), names[-1]: scores})
    for layer in part:
        parallelize_module(layer, mesh["tensor"], plan_of(layer))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in (*part, part):
        fully_shard(layer, mesh=mesh["replica"], mp_policy=policy, reshard_after_forward=False)
    part.to_empty(device=device)
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(part.parameters(), lr=8e-5, fused=True)
    stage = PipelineStage(part, number, STAGES, device, group=mesh["stage"].get_group())
    schedule = Schedule1F1B(stage, BATCHES, loss_fn=loss_of)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCHES, TOKENS + 1), device=device)
        given = (tokens[:, :-1],) if is_first else ()
        wanted = {"target": tokens[:, 1:], "losses": []} if is_last else {}
        schedule.step(*given, **wanted, return_outputs=False)  # else it keeps the scores of all micro-batches
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
