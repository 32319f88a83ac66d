"""Tensors that a program makes on the host stay there; those on a device stay on it, whatever Python does with them."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import windtunnel

Make = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with windtunnel.emulate("2xV100"):
        yield


MADE: dict[str, Make] = {
    "torch.Tensor": lambda x: torch.Tensor(3),
    "torch.FloatTensor": lambda x: torch.FloatTensor(3),
    "new": lambda x: x.new(3),
    "new_zeros": lambda x: x.new_zeros(3),
    "circular padding": lambda x: F.pad(x[None, None], (1, 1), mode="circular"),
    "one_hot": lambda x: F.one_hot(x.long()),
    "normal": lambda x: torch.normal(0.0, 1.0, (3,)),
    "where": lambda x: torch.where(x > 0, 1.0, 0.0),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_host_tensor_does_not_follow_a_device(make: Make) -> None:
    made = make(torch.ones(3))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        made + torch.ones(made.shape, device="cuda")
    assert made.is_cpu


def test_old_type_names_tell_host_from_device() -> None:
    here, there = torch.ones(1), torch.ones(1, device="cuda")
    assert [isinstance(x, torch.FloatTensor) for x in (here, there)] == [True, False]
    assert [isinstance(x, torch.cuda.FloatTensor) for x in (here, there)] == [False, True]
    assert (torch.FloatTensor.dtype, repr(torch.FloatTensor)) == (torch.float32, "<class 'torch.FloatTensor'>")
    assert there.type(torch.DoubleTensor).is_cpu


def test_a_subclass_of_tensor_is_made_of_values() -> None:
    class Mine(torch.Tensor):
        pass

    assert Mine([1, 2]).tolist() == [1, 2]


def test_a_module_goes_where_another_tensor_is() -> None:
    layer = nn.Linear(2, 2).to(torch.empty(1, device="cuda:1", dtype=torch.float16))
    assert (str(layer.weight.device), layer.weight.dtype) == ("cuda:1", torch.float16)


def test_saving_a_state_leaves_it_on_its_device() -> None:
    layer = nn.Linear(2, 2).cuda()
    torch.save(layer.state_dict(), io.BytesIO())
    gc.collect()
    assert layer.weight.is_cuda


def test_a_storage_in_a_garbage_cycle_keeps_its_device() -> None:
    x = torch.ones(2, device="cuda")
    held: dict[str, object] = {"storage": x.untyped_storage()}
    held["itself"] = held
    del held
    gc.collect()
    assert x.is_cuda
    assert torch.cuda.memory_allocated() == 512


def test_sparse_parts_come_together() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
    assert torch.sparse_coo_tensor(indices.cuda(), values, (2, 2), device="cuda").is_cuda
    assert str(torch.sparse_coo_tensor([[0, 1], [1, 0]], values.cuda(1), (2, 2)).device) == "cuda:1"
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        torch.sparse_coo_tensor(indices.cuda(), values, (2, 2))
    assert torch.sparse_csr_tensor([0, 1, 2], [0, 1], values, device="cuda").is_cuda


def test_sparse_gradients_are_set_to_zero_and_added_to() -> None:
    layer = nn.Embedding(4, 3, sparse=True).cuda()
    tokens = torch.tensor([1, 2], device="cuda")
    for _ in range(2):
        layer(tokens).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda
    assert not layer.weight.grad.to_dense().any()


def test_meta_storages_have_nothing_to_copy() -> None:
    storage = torch.empty(2, device="meta").untyped_storage()
    for use in (storage.cpu, storage.cuda, lambda: torch.UntypedStorage(8).copy_(storage)):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            use()
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        storage.pin_memory()


def test_data_in_a_context_of_another_device_lie_there() -> None:
    """transformers asks `torch.tensor([]).device` whether a model is made without data, and fills it later if so."""
    with torch.device("meta"):
        made = (torch.tensor([]), torch.as_tensor([1]), torch.asarray([1.0]), torch.tensor([1], device="cpu"))
    assert [tensor.device.type for tensor in made] == ["meta", "meta", "meta", "cpu"]
    torch.set_default_device("meta")
    try:
        assert torch.tensor([1.0]).is_meta
    finally:
        torch.set_default_device(None)
    assert torch.tensor([1.0]).device.type == "cpu"


def test_a_storage_comes_to_the_host_late_into_pinned_memory() -> None:
    x = torch.arange(4, dtype=torch.uint8, device="cuda")
    storage = x.untyped_storage()
    assert not storage.to(device="cpu").is_pinned()
    torch.cuda._sleep(10_000_000)
    late = storage.to(device="cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert late.is_pinned()
    assert list(late) == [0, 1, 2, 3]
