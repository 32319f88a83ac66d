"""Communication hooks of DistributedDataParallel and futures of collectives: NCCL's streams, no false finding.

One process is a group of one rank: values are those without a group, and streams are those of any group.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import windtunnel
from helpers.findings import errors
from windtunnel.session import Session

HOOKS = {
    "all-reduce": lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    "half": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "of C++": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
}


@pytest.fixture
def group() -> Iterator[Session]:
    """One rank of NCCL."""
    with windtunnel.emulate("V100") as session:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        yield session
        dist.destroy_process_group()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
    inputs = torch.linspace(-1, 1, 32, device="cuda").view(4, 8)
    for _ in range(3):
        model(inputs).square().sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()


@pytest.fixture
def plain(group: Session) -> Tensor:
    """The weights after training without a group."""
    model = network()
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.01))


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("static", [False, True])
def test_a_hook_leaves_weights_alone_and_nothing_to_find(group: Session, plain: Tensor, name: str, static: bool):
    model = DistributedDataParallel(network(), device_ids=[0], static_graph=static, bucket_cap_mb=0.0001)
    HOOKS[name](model)
    weights = trained(model, torch.optim.SGD(model.parameters(), lr=0.01))
    assert torch.allclose(weights, plain, atol=1e-3)
    assert errors(group) == []


def test_optimizers_that_step_in_backward_wait_for_the_gradients(group: Session, plain: Tensor):
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = network()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.01})
    assert torch.allclose(trained(DistributedDataParallel(model, device_ids=[0])), plain, atol=1e-6)
    assert errors(group) == []


def test_a_callback_runs_on_a_stream_of_its_own_and_the_future_is_waited_for(group: Session):
    x = torch.ones(1 << 20, device="cuda")
    streams = []

    def triple(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        streams.append(torch.cuda.current_stream())
        return done.value()[0].mul_(3)

    future = dist.all_reduce(x, async_op=True).get_future().then(triple)
    assert torch.equal(future.wait().cpu(), torch.full((1 << 20,), 3.0))
    assert streams[0] != torch.cuda.current_stream() == torch.cuda.default_stream()
    assert errors(group) == []


def test_a_future_that_nobody_waits_for_is_found(group: Session):
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0].mul_(3))
    x.sum()
    assert "unsynchronized-access" in errors(group)


def test_all_futures_of_a_list_are_waited_for(group: Session):
    tensors = [torch.ones(1 << 20, device="cuda") for _ in range(2)]
    torch.futures.wait_all([dist.all_reduce(x, async_op=True).get_future() for x in tensors])
    assert sum(tensors).sum().item() == 2 << 20
    assert errors(group) == []


def test_an_error_in_a_callback_is_the_futures(group: Session):
    future = dist.all_reduce(torch.ones(2, device="cuda"), async_op=True).get_future().then(lambda done: 1 // 0)
    with pytest.raises(RuntimeError, match="Got the following error when running the callback: ZeroDivisionError"):
        future.wait()


def test_memory_of_a_collective_that_nobody_waits_for_goes_to_nobody_else(group: Session):
    """ProcessGroupNCCL keeps the tensors of a work that is dropped until it is done (its TensorShelf)."""
    dist.all_reduce(torch.ones(1 << 24, device="cuda"), async_op=True)
    torch.zeros(1 << 24, device="cuda")
    assert errors(group) == []
    torch.cuda.synchronize()
    dist.barrier()
    assert torch.cuda.memory_allocated() < 1 << 20
