"""Tensors on devices: creation, copies, mixing, new_* and *_like (items 26 to 39, 64 to 68, 93 to 98)."""

import re

import pytest
import torch

import windtunnel
from windtunnel.trace.operation import Kind

ONES_0 = "tensor([[1., 1., 1.],\n        [1., 1., 1.]], device='cuda:0')"


# mission 26
def test_where_a_tensor_is(session):
    assert repr(torch.tensor([1, 2, 3]).device) == "device(type='cpu')"


# mission 28, 34, 41
@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ("cuda:0", "cuda:1", "cuda:0 and cuda:1!"),
        ("cuda:1", "cuda:0", "cuda:1 and cuda:0!"),
        ("cuda:0", "cpu", "cuda:0 and cpu!"),
        ("cpu", "cuda:1", "cuda:1 and cpu!"),
    ],
)
def test_operands_on_two_devices_are_refused(left, right, found, session):
    X, Y = torch.ones(2, 3, device=left), torch.ones(2, 3, device=right)
    with pytest.raises(RuntimeError) as error:
        X + Y
    first_line = str(error.value).split("\n")[0]
    assert first_line == f"Expected all tensors to be on the same device, but found at least two devices, {found}"


# mission 28
def test_products_across_devices_are_refused(session):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, 3, device="cuda:0") @ torch.ones(3, 2, device="cuda:1")


# mission 28
def test_scalars_on_the_cpu_mix_with_any_device(session):
    total = torch.ones(2, device="cuda:1") + torch.tensor(2.0)
    assert total.device == torch.device("cuda", 1)
    assert total.tolist() == [3.0, 3.0]


# mission 29, 30
def test_repr_shows_the_device_unless_it_is_the_cpu(session):
    assert repr(torch.ones(2, 3, device="cuda")) == ONES_0
    assert repr(torch.ones(2, 3, device="cuda:1")) == ONES_0.replace("cuda:0", "cuda:1")
    assert repr(torch.ones(2, 3)) == "tensor([[1., 1., 1.],\n        [1., 1., 1.]])"
    with torch.cuda.device(1):
        assert repr(torch.ones(2, 3, device="cuda")) == ONES_0.replace("cuda:0", "cuda:1")


# mission 31
def test_random_values_come_from_the_devices_own_generator(session):
    torch.cuda.manual_seed_all(7)
    host = torch.get_rng_state()
    first, second = torch.rand(2, 3, device="cuda:1"), torch.rand(2, 3, device="cuda:1")
    assert not torch.equal(first, second)
    assert ((first >= 0) & (first < 1)).all().item()
    torch.cuda.manual_seed_all(7)
    assert torch.equal(torch.rand(2, 3, device="cuda:1"), first)
    assert torch.equal(torch.get_rng_state(), host)


# mission 33
def test_exceeding_the_memory_is_pytorchs_error(session):
    with pytest.raises(torch.cuda.OutOfMemoryError) as error:
        torch.empty(20, 1024, 1024, 1024, dtype=torch.uint8, device="cuda:0")
    text = str(error.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.")
    assert re.search(r"of which 1[45]\.\d\d GiB is free", text)
    assert torch.cuda.memory_allocated(0) == 0
    assert torch.ones(3, device="cuda:0").sum().item() == 3


# mission 35, 36
def test_copy_to_the_second_gpu_then_add(session):
    X = torch.ones(2, 3, device="cuda:0")
    Y = torch.rand(2, 3, device="cuda:1")
    Z = X.cuda(1)
    assert (repr(X), repr(Z)) == (ONES_0, ONES_0.replace("cuda:0", "cuda:1"))
    assert (Y + Z).device == torch.device("cuda", 1)
    assert torch.equal(Y + Z, Y + 1)


# mission 37
def test_moving_to_where_a_tensor_is_copies_nothing(session, count):
    Z = torch.ones(2, 3, device="cuda:1")
    memory = torch.cuda.memory_stats(1)["allocation.all.allocated"]
    count(Kind.COPY)
    assert Z.cuda(1) is Z
    assert Z.to("cuda:1") is Z
    assert Z.to(torch.device("cuda", 1), non_blocking=True) is Z
    assert count(Kind.COPY) == 0
    assert torch.cuda.memory_stats(1)["allocation.all.allocated"] == memory
    assert Z.cuda(0) is not Z
    assert count(Kind.COPY) == 1


# mission 38, 39
def test_a_wanted_copy_always_takes_new_memory(session):
    Z = torch.ones(1024, device="cuda:1")
    before = torch.cuda.memory_allocated(1)
    clone, copy = Z.clone(), Z.to("cuda:1", copy=True)
    assert torch.cuda.memory_allocated(1) == before + 2 * Z.nbytes
    assert len({tensor.data_ptr() for tensor in (Z, clone, copy)}) == 3


# mission 64
def test_allocations_go_to_the_selected_gpu(session):
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    assert torch.ones(1, device="cuda").get_device() == 1
    assert torch.ones(1).cuda().get_device() == 1


# mission 65
def test_the_selected_gpu_is_restored_after_an_error(session):
    with torch.cuda.device(1):
        with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.cuda.device(0):
            torch.ones(1, device="cuda:9")
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


# mission 66
def test_results_stay_with_their_operands_whatever_gpu_is_selected(session):
    x, y = torch.tensor([1.0, 2.0], device="cuda:0"), torch.tensor([1.0, 2.0]).cuda()
    with torch.cuda.device(1):
        z = x + y
        assert z.device == torch.device("cuda", 0)
        assert z.exp().sum().device == torch.device("cuda", 0)
    assert z.tolist() == [2.0, 4.0]


# mission 67
def test_copies_are_the_exception_to_the_one_device_rule(session):
    target = torch.zeros(2, device="cuda:1")
    target.copy_(torch.tensor([1.0, 2.0], device="cuda:0"))
    assert (target.tolist(), target.get_device()) == ([1.0, 2.0], 1)
    assert torch.cuda.can_device_access_peer(0, 1)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        target + torch.ones(2, device="cuda:0")


# mission 68
def test_every_form_of_moving(session):
    cuda, cuda1 = torch.device("cuda"), torch.device("cuda:1")
    source = torch.tensor([1.0, 2.0])
    moved = [source.cuda(), source.to(device=cuda), source.to("cuda"), source.cuda(0), source.to(0)]
    assert [tensor.get_device() for tensor in moved] == [0] * 5
    moved = [source.cuda(cuda1), source.to(cuda1), source.to(torch.ones(1, device=cuda1)), source.cuda(device=1)]
    assert [tensor.get_device() for tensor in moved] == [1] * 4
    half = source.to(cuda1, torch.float16)
    assert (half.get_device(), half.dtype) == (1, torch.float16)


# mission 92, 93
def test_device_agnostic_creation_and_loading(session):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert torch.empty((8, 42), device=device).device == torch.device("cuda", 0)
    loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2)
    batches = [x.to(torch.device("cuda:0")) for x in loader]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert {batch.get_device() for batch in batches} == {0}


# mission 94
def test_visible_devices_are_renumbered(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with windtunnel.emulate("V100,A100,H100"):
        assert torch.cuda.device_count() == 2
        assert "H100" in torch.cuda.get_device_name(0)
        assert "V100" in torch.cuda.get_device_name(1)
        assert torch.ones(1, device="cuda:1").get_device() == 1


# mission 94
def test_visible_devices_change_nothing_after_the_first_use(monkeypatch):
    with windtunnel.emulate("2xV100"):
        torch.ones(1, device="cuda")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert torch.cuda.device_count() == 2


# mission 95
def test_new_tensors_keep_type_and_device(session):
    x_cpu, x_gpu = torch.empty(2), torch.empty(2, device="cuda")
    x_cpu_long = torch.empty(2, dtype=torch.int64)
    rows = "[[0.3000, 0.3000],\n        [0.3000, 0.3000],\n        [0.3000, 0.3000]]"
    assert repr(x_cpu.new_full([3, 2], fill_value=0.3)) == f"tensor({rows})"
    y_gpu = x_gpu.new_full([3, 2], fill_value=-5)
    assert repr(y_gpu) == f"tensor({rows.replace('0.3000', '-5.')}, device='cuda:0')"
    y_cpu_long = x_cpu_long.new_tensor([[1, 2, 3]])
    assert (repr(y_cpu_long), y_cpu_long.dtype) == ("tensor([[1, 2, 3]])", torch.int64)
    with torch.cuda.device(1):
        assert x_gpu.new_ones(2).get_device() == 0
        assert x_cpu.new_zeros(2).device == torch.device("cpu")


# mission 96
def test_factories_follow_the_selected_gpu_and_their_arguments(session):
    with torch.cuda.device(1):
        for factory in (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn):
            assert factory(2, device="cuda").get_device() == 1
            assert factory(2, device="cuda:0").get_device() == 0
            assert factory(2).device == torch.device("cpu")
    with torch.device("cuda:1"):
        assert torch.arange(3).get_device() == 1


# mission 97
def test_a_module_that_uses_new_tensors_works_on_every_device(session):
    class Recurrent(torch.nn.Module):
        def forward(self, x):
            return x + x.new_ones(x.shape[-1])

    for device in ("cpu", "cuda:0", "cuda:1"):
        out = Recurrent()(torch.zeros(2, 3, dtype=torch.float64, device=device))
        assert (str(out.device), out.dtype, out.sum().item()) == (device, torch.float64, 6)


# mission 98
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1"])
def test_like_functions_keep_device_and_type(device, session):
    x = torch.empty(2, 3, dtype=torch.float16, device=device)
    for y in (torch.ones_like(x), torch.zeros_like(x), torch.empty_like(x), torch.full_like(x, 2)):
        assert (str(y.device), y.dtype, y.shape) == (device, torch.float16, x.shape)
    assert torch.zeros_like(x, device="cpu").device == torch.device("cpu")
