"""C++ functions that go another way on CUDA: kernels and waits as there, values as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import flex_attention

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.trace.operation import Kind


def names(run, since=0):
    """The kernels and waits of a run, from a row on."""
    return [row.signature.name for row in list(run.trace)[since:] if row.kind in (Kind.KERNEL, Kind.SYNCHRONIZE)]


@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
def test_half_precision_becomes_float_inside_the_kernel(function):
    values = torch.randn(4, 8).half()
    plain = values.float().requires_grad_()
    function(plain, -1).square().sum().backward()
    with windtunnel.emulate("V100") as run:
        x = values.cuda().requires_grad_()
        since = len(list(run.trace))
        out = function(x, -1, dtype=torch.float32)
        kernel = f"aten::_{function.__name__}"
        assert names(run, since) == [kernel]
        assert out.dtype == torch.float32
        torch.testing.assert_close(out.cpu(), function(values.float(), -1))
        since = len(list(run.trace))
        out.square().sum().backward()
        assert "aten::_to_copy" not in names(run, since)
        assert x.grad.dtype == torch.float16
        torch.testing.assert_close(x.grad.cpu(), plain.grad.half(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
def test_softmax_without_data_and_in_inference_mode(function):
    with windtunnel.emulate("V100", no_data=True):
        assert function(torch.ones(4, 8, device="cuda").half(), -1, dtype=torch.float32).dtype == torch.float32
    with windtunnel.emulate("V100"), torch.inference_mode():
        out = function(torch.ones(4, 8, device="cuda").half(), -1, dtype=torch.float32)
        torch.testing.assert_close(out.cpu(), function(torch.ones(4, 8), -1))


def test_softmax_in_a_replay():
    with windtunnel.emulate("V100"):
        x = torch.randn(4, 8, device="cuda").half()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = functional.softmax(x, -1, dtype=torch.float32)
        x.copy_(torch.arange(32).view(4, 8))
        graph.replay()
        torch.testing.assert_close(out.cpu(), functional.softmax(torch.arange(32.0).view(4, 8), -1))


def test_one_hot_waits_only_to_find_the_number_of_classes():
    with windtunnel.emulate("V100") as run:
        x = torch.tensor([2, 0], device="cuda")
        since = len(list(run.trace))
        out = functional.one_hot(x, 4)
        assert names(run, since) == ["aten::zeros", "aten::scatter_"]
        since = len(list(run.trace))
        assert functional.one_hot(x).shape == (2, 3)
        assert names(run, since) == ["aten::max", "aten::_local_scalar_dense", "aten::zeros", "aten::scatter_"]
        assert out.device == torch.device("cuda", 0)
        assert out.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
        with pytest.raises(RuntimeError, match="num_classes should be positive"):
            functional.one_hot(x, 0)
        assert functional.one_hot(x.cpu(), 3).device == torch.device("cpu")


def test_a_class_out_of_range_is_a_device_side_assert():
    with windtunnel.emulate("V100"):
        functional.one_hot(torch.tensor([2, 0], device="cuda"), 2)
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            torch.cuda.synchronize()


@pytest.mark.parametrize("reduce", [torch.max, torch.min, torch.median])
def test_the_gradient_of_an_extreme_value_does_not_wait(reduce):
    with windtunnel.emulate("V100") as run:
        x = torch.tensor([1.0, 3.0, 2.0], device="cuda", requires_grad=True)
        out = reduce(x)
        since = len(list(run.trace))
        out.backward()
        assert "aten::_local_scalar_dense" not in names(run, since)
        assert x.grad.tolist() == [float(value == out) for value in x]


def waits(run, since):
    """What made the host wait."""
    return [row.signature.name for row in list(run.trace)[since:] if row.kind == Kind.SYNCHRONIZE]


def test_linear_algebra_looks_whether_it_succeeded_and_its_ex_forms_do_not():
    with windtunnel.emulate("V100") as run:
        x = torch.eye(4, device="cuda")
        since = len(list(run.trace))
        torch.linalg.inv_ex(x), torch.linalg.cholesky_ex(x), torch.linalg.solve_ex(x, x)
        assert waits(run, since) == []
        torch.linalg.inv(x), torch.linalg.cholesky(x), torch.linalg.solve(x, x)
        assert waits(run, since) == ["aten::_linalg_check_errors"] * 3
        since = len(list(run.trace))
        torch.linalg.matrix_exp(x)
        assert waits(run, since) == ["aten::linalg_matrix_exp"]
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            torch.linalg.inv(torch.zeros(2, 2, device="cuda"))


def test_a_fill_value_on_the_device_is_read_by_the_host():
    with windtunnel.emulate("V100") as run:
        x, mask = torch.ones(4, device="cuda"), torch.tensor([True, False, True, False], device="cuda")
        value = torch.tensor(7.0, device="cuda")
        since = len(list(run.trace))
        x.masked_fill(mask, 2.0)
        x.masked_fill(mask, torch.tensor(2.0))
        assert waits(run, since) == []
        out = x.masked_fill(mask, value)
        assert waits(run, since) == ["aten::masked_fill"]
        assert out.tolist() == [7, 1, 7, 1]


def test_masks_and_repeats_are_counted_by_the_host():
    with windtunnel.emulate("V100") as run:
        x = torch.zeros(4, device="cuda")
        mask, value = torch.tensor([True, False, True, False], device="cuda"), torch.tensor(2.0, device="cuda")
        repeats, places = torch.tensor([1, 2, 0, 1], device="cuda"), torch.tensor([0, 1], device="cuda")
        since = len(list(run.trace))
        x[mask] = 1.0
        x[places] = value
        torch.repeat_interleave(x, repeats, output_size=4)
        torch.repeat_interleave(x, 2)
        torch.where(mask, value, x)
        assert waits(run, since) == []
        x[mask] = value
        x[mask] = torch.ones(2, device="cuda")
        assert waits(run, since) == ["aten::index_put_"] * 2
        since = len(list(run.trace))
        assert torch.repeat_interleave(x, repeats).tolist() == [1, 2, 2, 0]
        assert waits(run, since)[0] == "aten::repeat_interleave"


@pytest.mark.parametrize(
    "use",
    [
        lambda x, index: x[index],
        lambda x, index: x.__setitem__(index, torch.ones((), device="cuda")),
        lambda x, index: x.index_put_((index,), torch.ones(2, device="cuda"), accumulate=True),
    ],
)
def test_indices_on_the_host_are_brought_over_and_waited_for(use):
    with windtunnel.emulate("V100") as run:
        x, index = torch.arange(4.0, device="cuda"), torch.tensor([2, 0])
        known = index.cuda()
        since = len(list(run.trace))
        use(x, known)
        assert "cudaMemcpy (blocking)" not in names(run, since)
        use(x, index)
        assert names(run, since).count("cudaMemcpy (blocking)") == 1
        assert x[index].tolist() == x.cpu()[index].tolist()


def test_group_norm_gives_contiguous_tensors():
    values = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    with windtunnel.emulate("V100"):
        x = values.cuda().requires_grad_()
        out = functional.group_norm(x, 2)
        assert out.is_contiguous()
        out.square().sum().backward()
        torch.testing.assert_close(out.detach().cpu(), functional.group_norm(values, 2))


def test_repeat_interleave_without_data_asks_for_the_size():
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(3, device="cuda")
        with pytest.raises(UnsupportedError, match="decides a shape by values"):
            torch.repeat_interleave(x, x.long())
        assert torch.repeat_interleave(x, x.long(), output_size=3).shape == (3,)


def test_heads_in_groups_repeat_without_data(monkeypatch):
    """`repeat_interleave` by a number, of which flex attention's own operator hands on the whole call."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with windtunnel.emulate("H100", no_data=True):
        query = torch.ones(1, 4, 128, 16, device="cuda", requires_grad=True)
        key = torch.ones(1, 2, 128, 16, device="cuda")
        flex_attention.flex_attention(query, key, key, enable_gqa=True).sum().backward()
        assert query.grad.shape == query.shape
