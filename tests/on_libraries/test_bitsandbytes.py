"""bitsandbytes on emulated GPUs, beside the same library on the CPU and beside plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel
from windtunnel.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        import bitsandbytes  # noqa: F401  # under the emulation, as a program does

        yield session


def names(session: Session, since: int) -> list[str]:
    return [row.signature.name for row in session.trace.since(since)]


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_four_bits_are_those_of_the_cpu(session: Session, kind: str, nested: bool, dtype: torch.dtype) -> None:
    from bitsandbytes import functional as bnb

    weight = torch.randn(96, 64, dtype=dtype)
    wanted, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
    found, there = bnb.quantize_4bit(weight.cuda(), quant_type=kind, compress_statistics=nested)
    assert found.is_cuda
    assert found.cpu().equal(wanted)
    assert there.absmax.cpu().equal(state.absmax)
    assert bnb.dequantize_4bit(found, there).cpu().equal(bnb.dequantize_4bit(wanted, state))


def test_a_quantized_layer_takes_half_a_byte_a_weight(session: Session) -> None:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(4096, 4096, bias=False, quant_type="nf4", compress_statistics=False)
    before = torch.cuda.memory_allocated()
    layer.cuda()
    code = 512  # the sixteen numbers of the type, rounded up to the allocator's unit
    assert torch.cuda.memory_allocated() - before == 4096 * 4096 // 2 + 4096 * 4096 // 64 * 4 + code


@pytest.mark.parametrize(("rows", "fused"), [(1, True), (2048, False)])
def test_few_rows_are_one_kernel_and_many_a_dequantized_product(session: Session, rows: int, fused: bool) -> None:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(256, 512, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4").cuda()
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer(x)
    since = len(session.trace)
    out = layer(x)
    ran = [name for name in names(session, since) if "bitsandbytes" in name or "mm" in name or "linear" in name]
    assert (ran == ["bitsandbytes::gemm_4bit_kernel"]) == fused
    assert ("bitsandbytes::dequantize_4bit" in ran) != fused
    weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(torch.bfloat16)
    wanted = x.detach().cpu().requires_grad_()
    reference = F.linear(wanted, weight.cpu())
    torch.testing.assert_close(out.cpu(), reference)
    out.float().square().sum().backward()
    reference.float().square().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), wanted.grad, rtol=0.02, atol=0.5)


def test_eight_bit_layers(session: Session) -> None:
    import bitsandbytes as bnb

    plain = nn.Linear(128, 64).half()
    layer = bnb.nn.Linear8bitLt(128, 64, has_fp16_weights=False, threshold=6.0)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(8, 128).half()
    x[:, 3] = 20.0  # an outlier
    found = layer.cuda()(x.cuda())
    assert layer.weight.dtype is torch.int8
    torch.testing.assert_close(found.cpu().float(), plain(x).float(), rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    "name", ["AdamW8bit", "PagedAdamW8bit", "AdamW32bit", "PagedAdamW32bit", "Lion8bit", "SGD8bit"]
)
def test_optimizers_step_as_on_the_cpu(session: Session, name: str) -> None:
    import bitsandbytes as bnb

    gradients = [torch.randn(128, 64) for _ in range(3)]
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(128, 64).to(device))
        options = {"momentum": 0.9} if "SGD" in name else {}
        optimizer = getattr(bnb.optim, name.removeprefix("Paged") if device == "cpu" else name)
        optimizer = optimizer([weight], lr=1e-2, **options)
        for gradient in gradients:
            weight.grad = gradient.to(device)
            optimizer.step()
        found.append(weight.detach().cpu())
        if name == "AdamW8bit" and device == "cuda":
            assert optimizer.state[weight]["state1"].dtype is torch.uint8
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_an_8_bit_optimizer_is_one_kernel_a_tensor(session: Session) -> None:
    import bitsandbytes as bnb

    layers = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)).cuda()
    optimizer = bnb.optim.AdamW8bit(layers.parameters(), min_8bit_size=128)
    for _ in range(2):
        layers(torch.ones(4, 128, device="cuda")).sum().backward()
        since = len(session.trace)
        optimizer.step()
    assert names(session, since).count("bitsandbytes::optimizer_update_8bit_blockwise") == 4


def test_without_data_memory_is_the_same() -> None:
    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("RTX4090", no_data=no_data):
            import bitsandbytes as bnb

            layer = bnb.nn.Linear4bit(512, 512, compute_dtype=torch.bfloat16, quant_type="nf4").cuda()
            optimizer = bnb.optim.PagedAdamW8bit(layer.parameters())
            x = torch.ones(2048, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            layer(x).sum().backward()
            optimizer.step()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]
