"""Without data a program has the kernels, times and memory that it has with data, to the nanosecond and the byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tools.differential import nodata
from torch.nn import functional as F

import windtunnel

GPU = torch.device("cuda")


def causal_attention_by_math(query: int, key: int, dtype: torch.dtype) -> None:
    tensors = [torch.zeros(2, 4, length, 15, device=GPU, dtype=dtype) for length in (query, key, key)]
    F.scaled_dot_product_attention(*tensors, is_causal=True)


def masked_attention_by_math() -> None:
    query, mask = (
        torch.zeros(2, 4, 8, 16, device=GPU, dtype=torch.float64),
        torch.ones(8, 8, dtype=torch.bool, device=GPU),
    )
    F.scaled_dot_product_attention(query, query, query, mask)


def batch_norm(training: bool, dims: int, affine: bool, gradient: bool) -> None:
    layer = getattr(torch.nn, f"BatchNorm{dims}d")(4, affine=affine).cuda().train(training)
    out = layer(torch.zeros(2, 4, *[6] * dims, device=GPU, requires_grad=gradient))
    if gradient:
        out.sum().backward()


def mish() -> None:
    torch.nn.functional.mish(torch.zeros(64, device=GPU, requires_grad=True)).sum().backward()


def recurrent_dropout(kind: str, twice: bool) -> None:
    layer = getattr(torch.nn, kind)(8, 8, 2, dropout=0.5).cuda()
    for _ in range(1 + twice):
        layer(torch.zeros(3, 2, 8, device=GPU))[0].sum().backward()


PROGRAMS: dict[str, Callable[[], None]] = {
    "causal": lambda: causal_attention_by_math(8, 8, torch.float64),
    "causal, half": lambda: causal_attention_by_math(8, 8, torch.float16),
    "causal, longer keys": lambda: causal_attention_by_math(8, 10, torch.float32),
    "masked": masked_attention_by_math,
    "mish, whose gradient has a composite kernel too": mish,
    "LSTM with dropout": lambda: recurrent_dropout("LSTM", twice=False),
    "GRU with dropout, twice": lambda: recurrent_dropout("GRU", twice=True),
    "BatchNorm, evaluation": lambda: batch_norm(False, 2, affine=True, gradient=False),
    "BatchNorm, evaluation, backward": lambda: batch_norm(False, 1, affine=False, gradient=True),
    "BatchNorm, training": lambda: batch_norm(True, 3, affine=True, gradient=True),
}


def measured(program: Callable[[], None], no_data: bool) -> tuple[object, ...]:
    with windtunnel.emulate("A100", no_data=no_data) as session:
        program()
        torch.cuda.synchronize()
        statistics = torch.cuda.memory_stats()
    kernels = [(one.signature.name, one.signature.shapes, one.start_ns, one.end_ns) for one in session.trace]
    return kernels, {name: value for name, value in statistics.items() if name.startswith("alloc")}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_differs(program: Callable[[], None]) -> None:
    assert measured(program, no_data=True) == measured(program, no_data=False)


def test_the_math_makes_its_causal_mask_on_the_gpu() -> None:
    """Source: _scaled_dot_product_attention_math of aten/src/ATen/native/transformers/attention.cpp."""
    with windtunnel.emulate("A100") as session:
        causal_attention_by_math(8, 8, torch.float64)
    names = [one.signature.name for one in session.trace]
    assert {"aten::ones", "aten::tril", "aten::where"} <= set(names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_causal_attention_by_math_is_that_of_plain_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 8, 15, dtype=dtype), torch.randn(2, 4, 10, 15, dtype=dtype)
    expected = torch.ops.aten._scaled_dot_product_attention_math(query, key, key, None, 0.0, True)[0]
    with windtunnel.emulate("A100"), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = F.scaled_dot_product_attention(query.cuda(), key.cuda(), key.cuda(), is_causal=True).cpu()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_nothing_differs_in_a_random_training(seed: int) -> None:
    assert list(nodata.differences(seed)) == []


def test_a_difference_is_told() -> None:
    """The comparison sees a program that asks a value, which is another one without data."""
    with_data, without = (nodata.measured(1000, no_data=bare) for bare in (False, True))
    assert with_data == without
    changed = with_data[0][7]._replace(end_ns=with_data[0][7].end_ns + 1)
    assert "end_ns" in nodata.told(with_data[0][7], changed)
