"""Normalizing half precision is as exact as CUDA's kernels, which compute it in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from windtunnel.session import Session, emulate
from windtunnel.trace.operation import Kind


def results(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, gradients and running statistics of one training step."""
    x = x.detach().requires_grad_()
    out = layer(x)
    weights = torch.arange(out.numel(), device=x.device).reshape(out.shape).remainder(3)
    (out * weights.to(x.dtype)).sum().backward()
    running = [t for name, t in layer.named_buffers() if t.is_floating_point()]
    return [t.detach().float().cpu() for t in (out, x.grad, *(p.grad for p in layer.parameters()), *running)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (4, 3, 5, 5)), (nn.InstanceNorm1d, (4, 3, 9))])
def test_half_parameters_cost_few_roundings(kind, shape: tuple[int, ...], dtype, session: Session) -> None:
    layer, wide = (kind(3, affine=True, track_running_stats=True).cuda() for _ in range(2))
    layer = layer.to(dtype)
    x = torch.randint(1, 10, shape).to(dtype).cuda()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand_like(parameter))
    wide.load_state_dict(layer.state_dict())
    for found, expected in zip(results(layer, x), results(wide, x.float()), strict=True):
        torch.testing.assert_close(
            found, expected.to(dtype).float(), rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
        )


def test_a_replay_is_as_exact(session: Session) -> None:
    layer, x = nn.BatchNorm1d(4).half().cuda(), torch.rand(8, 4, device="cuda").half()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    graph.replay()
    expected = nn.BatchNorm1d(4).cuda()(x.float())
    torch.testing.assert_close(out.float(), expected.half().float(), rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_statistics_may_stay_in_float32(training: bool, session: Session) -> None:
    """As sharding with mixed precision leaves them: it casts parameters, and no buffers."""
    layer, wide = (nn.BatchNorm1d(4).cuda().train(training) for _ in range(2))
    for parameter in layer.parameters():
        parameter.data = parameter.data.bfloat16()
    x = torch.randint(1, 10, (8, 4)).bfloat16().cuda()
    found, expected = results(layer, x), results(wide, x.float())
    assert layer.weight.grad is not None
    assert (layer.weight.grad.dtype, layer.running_mean.dtype) == (torch.bfloat16, torch.float32)
    for one, other in zip(found[:-2], expected[:-2], strict=True):
        torch.testing.assert_close(one, other.bfloat16().float(), rtol=0.03, atol=0.03)
    for one, other in zip(found[-2:], expected[-2:], strict=True):
        assert torch.equal(one, other)


def test_images_want_statistics_of_their_own_type_backward(session: Session) -> None:
    layer = nn.BatchNorm2d(3).cuda()
    for parameter in layer.parameters():
        parameter.data = parameter.data.bfloat16()
    x = torch.ones(2, 3, 4, 4, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = layer(x)
    with pytest.raises(RuntimeError, match="Expected running_mean to have type BFloat16 but got Float"):
        out.sum().backward()
    layer(x.to(memory_format=torch.channels_last)).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_summed_over_many_rows_are_rounded_once(dtype: torch.dtype, session: Session) -> None:
    rows, width = 1151, 64
    torch.manual_seed(0)
    x, grad = torch.randn(rows, width), torch.randn(rows, width)
    weight, table, at = torch.rand(width), torch.rand(3, width), torch.randint(0, 3, (rows,))

    def gradients(device: str, dtype: torch.dtype, rounded: torch.dtype) -> list[torch.Tensor]:
        leaves = [one.to(rounded).to(device, dtype).requires_grad_() for one in (x, weight, weight, table)]
        image, scale, shift, rows_of = leaves
        given = grad.to(rounded).to(device, dtype)
        nn.functional.layer_norm(image, (width,), scale, shift).backward(given)
        nn.functional.embedding(at.to(device), rows_of).backward(given)
        return [one.grad for one in leaves[1:] if one.grad is not None]

    found = [one.cpu() for one in gradients("cuda", dtype, dtype)]
    assert len(found) == 3
    for ours, exact in zip(found, gradients("cpu", torch.float64, dtype), strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)


def test_layer_norms_have_statistics_in_float32_and_parameters_of_the_inputs_type(session: Session) -> None:
    x, weight = torch.randn(4, 8, device="cuda").half(), torch.ones(8, device="cuda")
    out, mean, deviation = torch.native_layer_norm(x, (8,), weight.half(), None, 1e-5)
    assert (out.dtype, mean.dtype, deviation.dtype) == (torch.float16, torch.float32, torch.float32)
    with pytest.raises(RuntimeError, match=r"^expected scalar type Half but found Float$"):
        nn.functional.layer_norm(x, (8,), weight)
    assert nn.functional.layer_norm(x.cpu(), (8,), weight.cpu()).dtype is torch.float16


RMS_SHAPES = [((6, 8), (8,)), ((2, 3, 4, 5), (4, 5)), ((8,), (8,))]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="PyTorch before 2.9 has none")
class TestRmsNorm:
    """`rms_norm` is one kernel forward and one backward, with the values of the CPU's several."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("weighted", [True, False])
    @pytest.mark.parametrize(("shape", "normalized"), RMS_SHAPES)
    def test_values(self, shape, normalized, weighted: bool, dtype, session: Session) -> None:
        generator = torch.Generator().manual_seed(0)
        x, grad = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        weight = torch.rand(normalized, generator=generator).to(dtype) + 0.5
        found, expected = [], []
        for results, device, kind in ((found, "cuda", dtype), (expected, "cpu", torch.float64)):
            here = x.to(device, kind).requires_grad_()
            scale = weight.to(device, kind).requires_grad_() if weighted else None
            out = F.rms_norm(here, normalized, scale, 1e-5)
            assert device == "cpu" or type(out.grad_fn).__name__ == "FusedRmsNormBackward0"
            out.backward(grad.to(device, kind))
            results += [out, here.grad, *([] if scale is None else [scale.grad])]
        for one, other in zip(found, expected, strict=True):
            assert (one.dtype, one.device.type) == (dtype, "cuda")
            eps = max(torch.finfo(dtype).eps, 1e-15)
            torch.testing.assert_close(one.cpu(), other.to(dtype), rtol=4 * eps, atol=8 * eps)

    def test_one_kernel_each(self, session: Session) -> None:
        norm, x = nn.RMSNorm(64).cuda(), torch.randn(32, 64, device="cuda", requires_grad=True)
        start = len(session.trace)
        out = norm(x)
        assert kernels_since(session, start) == ["aten::_fused_rms_norm"]
        grad = torch.ones_like(out)
        start = len(session.trace)
        torch.autograd.grad(out, (x, norm.weight), grad)
        assert kernels_since(session, start) == ["aten::_fused_rms_norm_backward"]
        with torch.inference_mode():
            start = len(session.trace)
            norm(x)
            assert kernels_since(session, start) == ["aten::_fused_rms_norm"]

    def test_keeps_a_number_a_row(self, session: Session) -> None:
        norm, x = nn.RMSNorm(1024).cuda().half(), torch.randn(512, 1024, device="cuda").half().requires_grad_()
        before = torch.cuda.memory_allocated()
        out = norm(x)
        assert torch.cuda.memory_allocated() - before == out.nbytes + 4 * 512

    def test_a_weight_of_another_type_takes_it_apart(self, session: Session) -> None:
        x = torch.randn(4, 8, device="cuda").half()
        start = len(session.trace)
        out = F.rms_norm(x, (8,), torch.ones(8, device="cuda"))
        assert out.dtype is torch.float16
        assert len(kernels_since(session, start)) > 4

    def test_all_lie_on_one_device(self, session: Session) -> None:
        x = torch.ones(4, 8)
        with pytest.raises(RuntimeError, match=r"got weight is on cpu.*wrapper_CUDA___fused_rms_norm"):
            F.rms_norm(x.cuda(), (8,), x[0])
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            F.rms_norm(x, (8,), x[0].cuda())

    def test_a_second_gradient(self, session: Session) -> None:
        found = []
        for device in ("cuda", "cpu"):
            x = torch.linspace(-1, 1, 12, device=device, dtype=torch.float64).view(3, 4).requires_grad_()
            (first,) = torch.autograd.grad(F.rms_norm(x, (4,)).pow(2).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.pow(2).sum(), x)[0].cpu())
        torch.testing.assert_close(*found)

    def test_transforms(self, session: Session) -> None:
        found = []
        for device in ("cuda", "cpu"):
            x = torch.linspace(-1, 1, 12, device=device).view(3, 4)
            cubes = lambda row: F.rms_norm(row, (4,)).pow(3).sum()  # noqa: E731
            found.append([torch.func.grad(cubes)(x).cpu(), torch.vmap(torch.func.grad(cubes))(x).cpu()])
        torch.testing.assert_close(*found)

    def test_on_the_cpu_and_afterwards(self, session: Session) -> None:
        x = torch.randn(3, 4, requires_grad=True)
        assert type(F.rms_norm(x, (4,)).grad_fn).__name__ != "FusedRmsNormBackward0"

    def test_replay(self, session: Session) -> None:
        norm, x = nn.RMSNorm(8).cuda(), torch.ones(4, 8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = norm(x)
        x.copy_(torch.arange(32.0).view(4, 8) + 1)
        graph.replay()
        torch.testing.assert_close(out, norm(x), rtol=0, atol=0)

    def test_without_data(self) -> None:
        with emulate("A100", no_data=True):
            norm, x = nn.RMSNorm(8).cuda(), torch.randn(4, 8, device="cuda", requires_grad=True)
            out = norm(x)
            assert type(out.grad_fn).__name__ == "FusedRmsNormBackward0"
            out.sum().backward()
            assert (x.grad.shape, x.grad.device.type) == ((4, 8), "cuda")


def kernels_since(session: Session, start: int) -> list[str]:
    return [record.signature.name for record in list(session.trace)[start:] if record.kind == Kind.KERNEL]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_batch_norm_saves_its_statistics_in_float32(dtype: torch.dtype, session: Session) -> None:
    """native/cuda/Normalization.cu: `save_mean` is of the accumulation type, as PyTorch's meta kernel has it."""
    x = torch.rand(2, 3, 4, 4, device="cuda").to(dtype)
    weight, bias, mean, var = (torch.ones(3, device="cuda", dtype=dtype) for _ in range(4))
    aten = torch.ops.aten
    found = [
        aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5),
        aten._native_batch_norm_legit(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5),
        aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5),
        aten._batch_norm_with_update(x, weight, bias, mean.clone(), var.clone(), 0.1, 1e-5)[:3],
    ]
    for one in found:
        assert [t.dtype for t in one] == [dtype, torch.float32, torch.float32]
        torch.testing.assert_close(one, found[0])
