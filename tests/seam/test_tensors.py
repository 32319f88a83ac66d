"""Creation, moves and errors: where tensors live, and what PyTorch says of mixtures."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from windtunnel.errors import UnsupportedError
from windtunnel.session import Session

CUDA0, CUDA1 = torch.device("cuda", 0), torch.device("cuda", 1)
FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, device=d),
    "empty": lambda d: torch.empty(2, 3, device=d),
    "full": lambda d: torch.full((2,), 7.0, device=d),
    "arange": lambda d: torch.arange(5, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "rand": lambda d: torch.rand(3, device=d),
    "randint": lambda d: torch.randint(0, 9, (3,), device=d),
    "randperm": lambda d: torch.randperm(9, device=d),
    "tensor": lambda d: torch.tensor([[1, 2]], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.ones(3), device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "hann_window": lambda d: torch.hann_window(4, device=d),
    "sparse_coo_tensor": lambda d: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(3.0, device=d),
    "new_zeros": lambda d: torch.ones(2, device=d).new_zeros(3),
    "new_tensor": lambda d: torch.ones(2, device=d).new_tensor([1, 2]),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, device=d)),
    "rand_like": lambda d: torch.rand_like(torch.ones(2, device=d)),
    "where": lambda d: torch.where(torch.ones(2, device=d) > 0, 1.0, 0.0),
    "one_hot": lambda d: nn.functional.one_hot(torch.tensor([0, 2], device=d)),
    "fft": lambda d: torch.fft.fft(torch.ones(4, device=d)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_place_and_agree_with_the_cpu(session: Session, name: str) -> None:
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(3)
    there = FACTORIES[name](CUDA1)
    torch.manual_seed(3)
    here = FACTORIES[name](torch.device("cpu"))
    assert there.device == CUDA1
    assert there.is_cuda
    assert there.dtype == here.dtype
    if name != "empty":
        assert torch.equal(there.cpu().to_dense(), here.to_dense())


def test_a_cpu_tensor_stays_one(session: Session) -> None:
    for made in (torch.zeros(2), torch.tensor([1.0]), torch.from_numpy(np.ones(2)), torch.ones(2).new_zeros(2)):
        assert made.device.type == "cpu"
        assert made.is_cpu
        assert not made.is_cuda
        assert made.get_device() == -1


def test_forms_of_to(session: Session) -> None:
    x = torch.arange(6.0).view(2, 3)
    for moved in (
        x.to("cuda:1"), x.to(CUDA1), x.to(device=CUDA1), x.to(1), x.cuda(1), x.cuda("cuda:1"),
        x.to(CUDA1, torch.float32),
        x.to(CUDA1, non_blocking=True), x.to(torch.ones(1, device=CUDA1)), x.to(CUDA1, torch.float32, False, True),
    ):  # fmt: skip
        assert moved.device == CUDA1
        assert torch.equal(moved.cpu(), x)
    half = x.to(CUDA0, torch.float16)
    assert (half.device, half.dtype) == (CUDA0, torch.float16)
    assert x.type("torch.cuda.FloatTensor").device == CUDA0
    assert x.cuda().type() == "torch.cuda.FloatTensor"
    assert half.type("torch.FloatTensor").is_cpu
    assert x.to("meta").is_meta


def test_what_is_there_is_not_copied(session: Session) -> None:
    z = torch.ones(3, device=CUDA1)
    before = torch.cuda.memory_allocated(1)
    assert z.cuda(1) is z
    assert z.to(CUDA1) is z
    assert z.to("cuda:1") is z
    assert torch.cuda.memory_allocated(1) == before
    assert z.to(CUDA1, copy=True) is not z
    x = torch.ones(2)
    assert x.cpu() is x


def test_copy_between_devices(session: Session) -> None:
    x = torch.arange(4.0, device=CUDA0)
    y = torch.zeros(4, device=CUDA1)
    y.copy_(x)
    assert torch.equal(y.cpu(), x.cpu())
    assert y.device == CUDA1
    host = torch.zeros(4)
    assert torch.equal(host.copy_(y), x.cpu())


def test_repr_shows_the_device(session: Session) -> None:
    assert repr(torch.ones(2, 3, device=CUDA0)) == "tensor([[1., 1., 1.],\n        [1., 1., 1.]], device='cuda:0')"
    assert "device='cuda:1'" in repr(nn.Parameter(torch.ones(1, device=CUDA1)))
    assert repr(torch.ones(1)) == "tensor([1.])"


def test_numpy_is_refused_as_on_cuda(session: Session) -> None:
    x = torch.ones(2, device=CUDA0)
    text = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    with pytest.raises(TypeError) as error:
        x.numpy()
    assert str(error.value) == text
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(x)
    assert x.cpu().numpy().sum() == 2.0
    assert x.numpy(force=True).sum() == 2.0
    assert x.tolist() == [1.0, 1.0]


def test_two_devices_in_one_operator(session: Session) -> None:
    x, y, host = torch.ones(3, device=CUDA0), torch.ones(3, device=CUDA1), torch.ones(3)
    text = "Expected all tensors to be on the same device, but found at least two devices, "
    with pytest.raises(RuntimeError) as error:
        x + y
    assert str(error.value) == text + "cuda:0 and cuda:1!"
    with pytest.raises(RuntimeError) as error:
        host + x
    assert str(error.value) == text + "cuda:0 and cpu!"
    with pytest.raises(RuntimeError, match=r"wrapper_CUDA_addmm"):
        nn.Linear(3, 3).to(CUDA0)(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, y])
    with pytest.raises(RuntimeError, match="same device"):
        x.add_(y)


def test_texts_of_their_own(session: Session) -> None:
    conv, image = nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2)
    with pytest.raises(RuntimeError) as error:
        conv.to(CUDA0)(image)
    assert str(error.value) == (
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same "
        "or input should be a MKLDNN tensor and weight is a dense tensor"
    )
    with pytest.raises(
        RuntimeError, match=r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\)"
    ):
        conv.cpu()(image.to(CUDA0))
    with pytest.raises(RuntimeError, match=r"on the same device as the indexed tensor \(cpu\)"):
        torch.arange(4.0)[torch.tensor([1], device=CUDA0)]


def test_an_old_type_takes_only_tensors_of_its_own(session: Session) -> None:
    """pytorch#36045; the text is that which PyTorch has for another dtype on the CPU."""
    x = torch.ones(3, device="cuda")
    same = torch.cuda.FloatTensor(x)
    assert same.data_ptr() == x.data_ptr()
    with pytest.raises(TypeError) as host:
        torch.FloatTensor(torch.ones(3, dtype=torch.long))
    expected = str(host.value)
    with pytest.raises(TypeError) as mixed:
        torch.cuda.FloatTensor(x.long())
    assert str(mixed.value) == expected.replace("cpu", "cuda", 1).replace("cpu", "cuda:0")
    with pytest.raises(TypeError, match=r"^expected TensorOptions\(dtype=float, device=cuda, .* device=cpu, "):
        torch.cuda.FloatTensor(torch.ones(3))
    with pytest.raises(TypeError, match=r"^expected TensorOptions\(dtype=float, device=cpu, .* device=cuda:0, "):
        torch.FloatTensor(x)
    assert torch.FloatTensor(torch.ones(3)).tolist() == [1, 1, 1]


def test_old_tensor_types(session: Session) -> None:
    x = torch.cuda.FloatTensor([1.0, 2.0])
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert isinstance(x.long(), torch.cuda.LongTensor)
    assert torch.cuda.HalfTensor(2, 3).shape == (2, 3)
    assert torch.ones(2).type(torch.cuda.DoubleTensor).dtype is torch.float64
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    try:
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(2).is_cpu


def test_nvtx_ranges_nest(session: Session) -> None:
    assert torch.cuda.nvtx.range_push("outer") == 0
    assert torch.cuda.nvtx.range_push("inner") == 1
    assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.nvtx.range_pop() == 0


def test_host_scalars_mix(session: Session) -> None:
    x = torch.ones(3, device=CUDA0)
    assert torch.equal((x + torch.tensor(2.0)).cpu(), torch.full((3,), 3.0))
    assert (torch.tensor(2.0) * x).device == CUDA0
    assert torch.where(x > 0, x, torch.tensor(0.0)).device == CUDA0


def test_indices_may_lie_on_the_host(session: Session) -> None:
    x = torch.arange(5.0, device=CUDA0)
    assert torch.equal(x[torch.tensor([1, 3])].cpu(), torch.tensor([1.0, 3.0]))
    x[torch.tensor([0])] = 9.0
    assert x[0].item() == 9.0
    with pytest.raises(RuntimeError):
        torch.arange(5.0)[torch.tensor([1], device=CUDA0)]


def test_pinned_memory(session: Session) -> None:
    x = torch.arange(4.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.equal(pinned, x)
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned[1:].is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()


def test_storages(session: Session) -> None:
    x = torch.arange(4.0, device=CUDA1)
    storage = x.untyped_storage()
    assert storage.device == CUDA1
    assert storage.is_cuda
    assert storage.cpu().device.type == "cpu"
    assert storage.nbytes() == 16
    assert x.data_ptr() == storage.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4
    assert x.data_ptr() != torch.arange(4.0, device=CUDA1).data_ptr()
    storage.resize_(1 << 20)
    assert torch.cuda.memory_allocated(1) == (1 << 20)


def test_views_share_and_results_follow(session: Session) -> None:
    x = torch.zeros(4, 4, device=CUDA1)
    row = x[1]
    row.fill_(3)
    assert x.sum().item() == 12
    for made in (x.t(), x.view(-1), x[0, 0], x.expand(2, 4, 4), x.detach(), x.data, x.T.contiguous(), x.float().half()):
        assert made.device == CUDA1


def test_copies_of_objects_stay(session: Session) -> None:
    model = nn.Linear(3, 3).to(CUDA1)
    twin = copy.deepcopy(model)
    assert twin.weight.device == CUDA1
    assert torch.equal(twin.weight.cpu(), model.weight.cpu())
    tensor = pickle.loads(pickle.dumps(torch.arange(3, device=CUDA1)))
    assert tensor.device == CUDA1
    assert tensor.tolist() == [0, 1, 2]


def test_dlpack_keeps_the_device(session: Session) -> None:
    x = torch.arange(3.0, device=CUDA1)
    assert x.__dlpack_device__()[1] == 1
    assert int(x.__dlpack_device__()[0]) == 2
    with torch.cuda.device(1):
        y = torch.from_dlpack(x)
    assert y.device == CUDA1
    y.add_(1)
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_array_interface_is_cudas(session: Session) -> None:
    x = torch.ones(2, 3, device=CUDA0)
    found = x.__cuda_array_interface__
    assert found["shape"] == (2, 3)
    assert found["data"] == (x.data_ptr(), False)
    with pytest.raises(AttributeError):
        torch.ones(2).__cuda_array_interface__  # noqa: B018


def test_a_slice_of_a_storage_is_refused_on_a_gpu_alone(session: Session) -> None:
    with pytest.raises(UnsupportedError, match="slice the tensor instead"):
        torch.zeros(8, device="cuda").untyped_storage()[8:16]
    assert torch.tensor([1.0, 2.0]).untyped_storage()[4:8].nbytes() == 4
