"""Devices: names, defaults, counting, falling back (items 10 to 25)."""

import pytest
import torch

import windtunnel

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", 0), torch.device("cuda", 1)]


# mission 10
def test_tensors_are_created_on_the_cpu_by_default(session):
    assert torch.tensor([1, 2, 3]).device == CPU
    assert torch.get_default_device() == CPU
    assert torch.nn.Linear(3, 1).weight.device == CPU


# mission 11, 12, 13
def test_device_reprs(session, functions_of):
    listing = functions_of("s0_gpus")
    cpu, gpu = listing["cpu"], listing["gpu"]
    assert repr((cpu(), gpu(), gpu(1))) == (
        "(device(type='cpu'), device(type='cuda', index=0), device(type='cuda', index=1))"
    )


# mission 14, 18
def test_device_without_index_is_another_name_for_the_same_place(session):
    bare = torch.device("cuda")
    assert repr(bare) == "device(type='cuda')"
    assert bare != torch.device("cuda:0")
    assert torch.ones(1, device=bare).device == GPUS[0]
    with torch.cuda.device(1):
        assert torch.ones(1, device=bare).device == GPUS[1]


# mission 15
def test_any_cpu_number_is_the_same_memory(session):
    total = torch.ones(2, device="cpu:5") + torch.ones(2)
    assert total.device.type == "cpu"
    assert total.tolist() == [2.0, 2.0]


# mission 16
def test_emulation_leaves_the_cpu_threads_alone():
    threads = torch.get_num_threads()
    with windtunnel.emulate("2xV100"):
        assert torch.get_num_threads() == threads


# mission 17, 32
def test_a_tensor_uses_the_memory_of_its_card_only(session):
    tensor = torch.ones(1024, 1024, device="cuda:0")
    assert torch.cuda.memory_allocated(0) == tensor.nbytes
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.memory_reserved(1) == 0


# mission 21, 25
@pytest.mark.parametrize(("spec", "visible", "count"), [("2xV100", None, 2), ("2xV100", "", 0), ("4xV100", "1,3", 2)])
def test_device_count_and_availability_agree(spec, visible, count, monkeypatch, functions_of):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with windtunnel.emulate(spec):
        assert torch.cuda.device_count() == count
        assert torch.cuda.is_available() is (count > 0)
        assert functions_of("s0_gpus")["num_gpus"]() == count


# mission 22, 23, 24
@pytest.mark.parametrize("listing", ["s0_gpus", "s4_gpus"])
def test_try_gpu_falls_back_to_the_cpu(listing, session, functions_of):
    functions = functions_of(listing)
    shown = functions["try_gpu"](), functions["try_gpu"](10), functions["try_all_gpus"]()
    assert shown == (GPUS[0], CPU, GPUS)


# mission 22, 23
def test_without_a_gpu_one_document_lists_the_cpu_and_the_other_nothing(monkeypatch, functions_of):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with windtunnel.emulate("2xV100"):
        assert functions_of("s0_gpus")["try_gpu"]() == CPU
        assert functions_of("s4_gpus")["try_all_gpus"]() == [CPU]
        assert functions_of("s0_gpus")["try_all_gpus"]() == []


def test_first_translation_names_no_device(session):
    """Erratum 6: `torch.cuda.device('cuda')` is a context manager, and "cuda 1" lacks its colon."""
    assert not isinstance(torch.cuda.device("cuda"), torch.device)
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda 1'"):
        torch.device("cuda 1")


@pytest.mark.parametrize("index", [2, 7])
def test_a_device_that_does_not_exist_is_refused(index, session):
    with pytest.raises(RuntimeError, match=r"CUDA error: invalid device ordinal"):
        torch.ones(1, device=f"cuda:{index}")
