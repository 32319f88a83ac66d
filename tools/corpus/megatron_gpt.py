"""GPT as Megatron-DeepSpeed trains it: tensor and data parallelism, and one forward one backward.

Weights in FP16 with FP32 copies, gradients reduced at the end of a step in one piece, attention by batched products,
whole blocks computed again with --recompute. vTrain's model of a layer lays activations out as Megatron-LM 3.0 does, of
which three habits are here: the gradient of a column-parallel product's input is reduced beside the product for its
weight (tensor_parallel/layers.py), dropout and the addition after it are one kernel (`bias_dropout_add_fused_train`),
and each rank sends the next stage its own part (p2p_communication.py). Its softmax applies scale and causal mask as it
reads, and reads no more than the mask leaves (fused_kernels/scaled_upper_triang_masked_softmax.h). Rank 0 prints the
milliseconds of a step of --accumulate micro-batches, until all have ended.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.checkpoint import checkpoint

import windtunnel

WORDS = 51200
DROPPED = 0.1
HALF = torch.float16


@windtunnel.kernel("megatron::dropout_add", like="aten::native_dropout", define=True)
def dropout_add(x: Tensor, residual: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Dropout and the addition after it, with what was kept."""
    kept, mask = torch.native_dropout(x, share, True)
    return residual + kept, mask


@windtunnel.kernel(
    "megatron::masked_softmax", like="aten::silu", define=True, bytes=lambda scores: 3 * scores.nbytes // 2
)
def masked_softmax(scores: Tensor) -> Tensor:
    """Of each row up to the diagonal; what is above it is written as zeros, and never read.

    A warp keeps a row in its registers, whatever its length: memory bounds it, as an element-wise kernel.
    """
    above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return torch.softmax(scores.masked_fill(above, -torch.inf), -1)


@windtunnel.kernel(
    "megatron::softmax_gradient",
    like="aten::silu_backward",
    define=True,
    bytes=lambda grad, mixed: 2 * grad.nbytes,
)
def masked_softmax_gradient(grad: Tensor, mixed: Tensor) -> Tensor:
    """Its gradient: half of both is read, all of it written."""
    return torch._softmax_backward_data(grad, mixed, -1, grad.dtype)


class MaskedSoftmax(torch.autograd.Function):
    """Megatron's `ScaledUpperTriangMaskedSoftmax`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        mixed = torch.ops.megatron.masked_softmax(scores)
        ctx.save_for_backward(mixed)
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.ops.megatron.softmax_gradient(grads[0], *ctx.saved_tensors)


class DropoutAdd(torch.autograd.Function):
    """What PyTorch's own compiler of scripts makes of Megatron's `bias_dropout_add`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor) -> Tensor:
        out, mask = torch.ops.megatron.dropout_add(x, residual, DROPPED)
        ctx.save_for_backward(mask)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grads[0], mask, 1.0 / (1.0 - DROPPED)), grads[0]


class ColumnProduct(torch.autograd.Function):
    """A product with a rank's columns: its input's gradients are summed while that of the weight is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        summed = grads[0].matmul(weight)
        work = dist.all_reduce(summed, group=ctx.group, async_op=True)
        rows = grads[0].flatten(0, -2)
        of_weight, of_bias = rows.t().matmul(x.flatten(0, -2)), rows.sum(0)
        assert work is not None
        work.wait()
        return summed, of_weight, of_bias, None


class Reduce(torch.autograd.Function):
    """The sum over a tensor-parallel group: the gradient goes to each of its ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        summed = x.contiguous()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Leave(torch.autograd.Function):
    """A rank's part of what all ranks of a tensor-parallel group have: between stages each sends its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.chunk(group.size())[group.rank()]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gathered(grads[0], ctx.group), None


class Arrive(torch.autograd.Function):
    """The whole of what a stage got in parts."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return gathered(part, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].flatten().chunk(ctx.group.size())[ctx.group.rank()], None


def gathered(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = part.new_empty(group.size() * part.numel())
    dist.all_gather_into_tensor(whole, part.contiguous(), group)
    return whole


class GptLayer(nn.Module):
    """A tensor-parallel rank's part of a layer."""

    def __init__(self, width: int, heads: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        ranks = group.size() if group else 1
        self.group, self.heads, self.width = group, heads // ranks, width // heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width // ranks), nn.Linear(width // ranks, width)
        self.up, self.down = nn.Linear(width, 4 * width // ranks), nn.Linear(4 * width // ranks, width)

    def column(self, x: Tensor, part: nn.Linear) -> Tensor:
        return ColumnProduct.apply(x, part.weight, part.bias, self.group) if self.group else part(x)

    def leave(self, x: Tensor) -> Tensor:
        return Reduce.apply(x, self.group) if self.group else x

    def attention(self, x: Tensor) -> Tensor:
        """Products, softmax and dropout, as before fused attention."""
        parts = self.column(x, self.qkv).unflatten(-1, (self.heads, 3 * self.width)).transpose(1, 2)
        q, k, v = (part.flatten(0, 1) for part in parts.chunk(3, -1))
        room = torch.empty((), dtype=x.dtype, device=x.device).expand(q.shape[0], q.shape[1], k.shape[1])
        scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0.0, alpha=self.width**-0.5)
        mixed = torch.bmm(F.dropout(MaskedSoftmax.apply(scores), DROPPED), v)
        return self.out(mixed.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = DropoutAdd.apply(self.leave(self.attention(self.norm_1(x))), x)
        return DropoutAdd.apply(self.leave(self.down(F.gelu(self.column(self.norm_2(x), self.up)))), x)


class Scores(nn.Module):
    """The last normalization, and a rank's part of the scores."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, WORDS // ranks, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.norm(x))


class Part(nn.Module):
    """A stage's layers, with the embedding before the first and the scores after the last."""

    def __init__(self, given: argparse.Namespace, stage: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        ranks = given.tensor
        self.words = nn.Embedding(WORDS // ranks, given.width) if stage == 0 else None
        count = given.layers // given.stages + (stage < given.layers % given.stages)
        self.blocks = nn.ModuleList(GptLayer(given.width, given.heads, group) for _ in range(count))
        self.scores = Scores(given.width, ranks) if stage == given.stages - 1 else None
        self.group, self.recompute, self.shape = group, given.recompute, (given.batch, given.length, given.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            x = self.words(x)
            x = Reduce.apply(x, self.group) if self.group else x
        elif self.group:
            x = Arrive.apply(x, self.group).view(self.shape)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        if self.scores is not None:
            return self.scores(x)
        return Leave.apply(x.flatten(), self.group) if self.group else x


def loss_of(scores: Tensor, tokens: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Cross-entropy of scores whose words are divided among a group: three numbers a token are reduced."""
    found = scores.float()
    if group is None:
        return F.cross_entropy(found.flatten(0, 1), tokens.flatten())
    most = found.detach().amax(-1)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    mine = Reduce.apply(found.gather(-1, (tokens % found.shape[-1]).unsqueeze(-1)).squeeze(-1), group)
    total = Reduce.apply((found - most.unsqueeze(-1)).exp().sum(-1), group)
    return (total.log() + most - mine).mean()


class Mixed:
    """Adam on FP32 copies of weights in FP16, after one reduction of all gradients."""

    def __init__(self, part: nn.Module, group: dist.ProcessGroup) -> None:
        self.weights, self.group = list(part.parameters()), group
        self.copies = [weight.detach().float() for weight in self.weights]
        self.adam = torch.optim.AdamW(self.copies, lr=1e-4, fused=True)

    def step(self) -> None:
        grads = [weight.grad for weight in self.weights if weight.grad is not None]
        if self.group.size() > 1:
            flat = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(flat, group=self.group)
            flat /= self.group.size()
            for grad, found in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(found.view_as(grad))
        for copy, grad in zip(self.copies, grads, strict=True):
            copy.grad = grad.float()
        nn.utils.clip_grad_norm_(self.copies, 1.0)
        self.adam.step()
        self.adam.zero_grad()
        torch._foreach_copy_([weight.detach() for weight in self.weights], self.copies)
        for weight in self.weights:
            weight.grad = None


class Trainer:
    """One rank of a training."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl")
        replicas = dist.get_world_size() // given.tensor // given.stages
        mesh = init_device_mesh(
            "cuda", (given.stages, replicas, given.tensor), mesh_dim_names=("stage", "replica", "tensor")
        )
        self.number = mesh["stage"].get_local_rank()
        self.stages = mesh["stage"].get_group()
        self.group = mesh["tensor"].get_group() if given.tensor > 1 else None
        with torch.device("meta"):
            part = Part(given, self.number, self.group).to(HALF)
        self.part = part.to_empty(device=self.device)
        for parameter in self.part.parameters():
            nn.init.normal_(parameter, std=0.02)
        self.optimizer = Mixed(self.part, mesh["replica"].get_group())
        self.loss = partial(loss_of, group=self.group)
        self.schedules: dict[int, Schedule1F1B] = {}

    def batches(self, count: int) -> None:
        """The forward and backward passes of so many micro-batches."""
        given = self.given
        tokens = torch.zeros(count * given.batch, given.length, dtype=torch.long, device=self.device)
        if given.stages == 1:
            for some in tokens.split(given.batch):
                self.loss(self.part(some % (WORDS // given.tensor)), some).backward()
            return
        if count not in self.schedules:
            stage = PipelineStage(self.part, self.number, given.stages, self.device, group=self.stages)
            self.schedules[count] = Schedule1F1B(stage, count, loss_fn=self.loss)
        first, last = self.number == 0, self.number == given.stages - 1
        wanted: dict[str, Any] = {"target": tokens, "losses": []} if last else {}
        self.schedules[count].step(*((tokens % (WORDS // given.tensor),) if first else ()), **wanted)

    def step(self, count: int) -> float:
        """The milliseconds of the second of two steps of so many micro-batches, until all ranks have ended."""
        for _ in range(2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            begin.record()
            self.batches(count)
            self.optimizer.step()
            dist.barrier()
            end.record()
            torch.cuda.synchronize()
        return begin.elapsed_time(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "layers", "heads", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, usual in (("length", 2048), ("accumulate", 1), ("tensor", 1), ("stages", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--recompute", action="store_true")
    given = parser.parse_args()
    trainer = Trainer(given)
    some = min(given.accumulate, given.stages + 1)
    more = min(given.accumulate, 2 * given.stages + 2)
    found = trainer.step(more)
    if given.accumulate > more:
        found += (found - trainer.step(some)) / (more - some) * (given.accumulate - more)
    if dist.get_rank() == 0:
        print(f"step of {found:.6f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
