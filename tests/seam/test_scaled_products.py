"""Products of 8-bit and 4-bit matrices with scales, and of groups: values by their definition, refusals, prices."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import windtunnel

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FOUR = torch.float4_e2m1fn_x2
TENSOR, ROW, BY_16, BY_32, BY_128, SQUARE = (
    F.ScalingType.TensorWise,
    F.ScalingType.RowWise,
    F.ScalingType.BlockWise1x16,
    F.ScalingType.BlockWise1x32,
    F.ScalingType.BlockWise1x128,
    F.ScalingType.BlockWise128x128,
)
SWIZZLE = F.SwizzleType.SWIZZLE_32_4_4
NUMBERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
NUMBERS += [-number for number in NUMBERS]


def to_blocked(scales: torch.Tensor) -> torch.Tensor:
    """Scales of shape (rows, blocks) as cuBLAS wants them: tiles of 128 rows and 4 blocks, padded with zeros, flat.

    In a tile, row r and block c stand at 16 (r mod 32) + 4 (r div 32) + c (cuBLAS's documentation, "1D Block Scaling
    Factors Layout"). PyTorch has such a function; importing it forbids the process to set its precision switches.
    """
    rows, blocks = scales.shape
    wide = math.ceil(blocks / 4)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(blocks), indexing="ij")
    tile = r // 128 * wide + c // 4
    found = torch.zeros(math.ceil(rows / 128) * wide * 512, dtype=scales.dtype)
    found[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales
    return found


class Drawn:
    """Random operands of m x k and k x n, on the host."""

    def __init__(self, seed: int, step: int = 16) -> None:
        draw = random.Random(seed)
        self.m = draw.choice((1, 5, 16, 33, 128, 130))
        self.n = 16 * draw.randint(1, 17)
        self.k = step * draw.randint(1, 320 // step)
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def eight(self, rows: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
        return self.normal(rows, self.k).to(dtype)

    def scales(self, *shape: int) -> torch.Tensor:
        return self.normal(*shape).abs() + 0.1

    def four(self, rows: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, self.k // 2), dtype=torch.uint8, generator=self.generator).view(FOUR)

    def of_blocks(self, rows: int, block: int, dtype: torch.dtype) -> torch.Tensor:
        blocks = -(-self.k // block)
        if dtype is E8M0:
            return torch.randint(120, 134, (rows, blocks), dtype=torch.uint8, generator=self.generator).view(E8M0)
        return self.scales(rows, blocks).to(dtype)


def numbers(packed: torch.Tensor) -> torch.Tensor:
    """[rows, k] in float64 of two numbers a byte, the lower half first."""
    found = packed.view(torch.uint8).tolist()
    return torch.tensor([[NUMBERS[half] for byte in row for half in (byte & 15, byte >> 4)] for row in found]).double()


def spread(scale: torch.Tensor, block: int, length: int) -> torch.Tensor:
    return scale.double().repeat_interleave(block, 1)[:, :length]


def close(found: torch.Tensor, wanted: torch.Tensor, k: int) -> None:
    """A sum in float32 of k products, rounded to the result's type."""
    unit = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11, E4M3: 2**-4}[found.dtype]
    most = wanted.abs().max().item()
    error = (found.cpu().double() - wanted).abs() - unit * wanted.abs()
    assert error.max().item() <= max(1, k) * 2**-24 * most * 8 + 2**-24


SEEDS = [
    pytest.param(seed, marks=[pytest.mark.long] if seed >= 8 else [])
    for seed in range(int(os.environ.get("PRODUCT_SEEDS", "25")))
]
"""`make products` draws 200."""


@pytest.mark.parametrize("seed", SEEDS)
def test_one_scale_a_tensor_and_one_a_row(seed: int) -> None:
    of = Drawn(seed)
    dtype = [torch.float32, torch.bfloat16, torch.float16][seed % 3]
    x, y = of.eight(of.m, E5M2 if seed % 4 == 3 else E4M3), of.eight(of.n)
    a, b = (of.scales(1), of.scales(1)) if seed % 2 else (of.scales(of.m, 1), of.scales(1, of.n))
    wanted = (x.double() @ y.double().t()) * a.double() * b.double()
    with windtunnel.emulate("H100"):
        found = torch._scaled_mm(x.cuda(), y.cuda().t(), a.cuda(), b.cuda(), out_dtype=dtype)
        recipe = TENSOR if seed % 2 else ROW
        named = F.scaled_mm(x.cuda(), y.cuda().t(), a.cuda(), recipe, b.cuda(), recipe, output_dtype=dtype)
        assert found.cpu().equal(named.cpu())
        close(found, wanted, of.k)


@pytest.mark.parametrize("seed", SEEDS)
def test_scales_of_blocks_of_128(seed: int) -> None:
    of = Drawn(seed)
    x, y = of.eight(of.m), of.eight(of.n)
    blocks, rows = -(-of.k // 128), -(-of.n // 128)
    a, b = of.scales(of.m, blocks), of.scales(rows, blocks) if seed % 2 else of.scales(of.n, blocks)
    whole = b.repeat_interleave(128, 0)[: of.n] if seed % 2 else b
    wanted = (x.double() * spread(a, 128, of.k)) @ (y.double() * spread(whole, 128, of.k)).t()
    with windtunnel.emulate("H100"):
        outer = a.cuda().t().contiguous().t()
        other = b.cuda().t() if seed % 2 else b.cuda().t().contiguous()
        found = torch._scaled_mm(x.cuda(), y.cuda().t(), outer, other, out_dtype=torch.bfloat16)
        close(found, wanted, of.k)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["MXFP8", "MXFP4", "NVFP4", "NVFP4 in two levels"])
def test_scales_of_small_blocks(seed: int, kind: str) -> None:
    of = Drawn(seed, step=32)
    fours, block, scale = "4" in kind, 16 if "NV" in kind else 32, E4M3 if "NV" in kind else E8M0
    x, y = (of.four(of.m), of.four(of.n)) if fours else (of.eight(of.m), of.eight(of.n))
    a, b = of.of_blocks(of.m, block, scale), of.of_blocks(of.n, block, scale)
    decoded = [(numbers(t) if fours else t.double()) * spread(s, block, of.k) for t, s in ((x, a), (y, b))]
    wanted = decoded[0] @ decoded[1].t()
    whole = [of.scales(1), of.scales(1)] if "two" in kind else []
    for one in whole:
        wanted = wanted * one.double()
    with windtunnel.emulate("B200"):
        sides = [[to_blocked(s.view(torch.uint8)).view(scale).cuda()] for s in (a, b)]
        recipes = [BY_16 if "NV" in kind else BY_32] + [TENSOR] * (len(whole) // 2)
        for side, one in zip(sides, whole, strict=False):
            side.append(one.cuda())
        swizzles = [SWIZZLE] * len(recipes)
        found = F.scaled_mm(
            x.cuda(),
            y.cuda().t(),
            sides[0],
            recipes,
            sides[1],
            recipes,
            swizzles,
            swizzles,
            output_dtype=torch.bfloat16,
        )
        if not whole:
            first = torch._scaled_mm(x.cuda(), y.cuda().t(), sides[0][0], sides[1][0], out_dtype=torch.bfloat16)
            assert first.cpu().equal(found.cpu())
        close(found, wanted, of.k)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_rows_and_of_the_sum(seed: int) -> None:
    of = Drawn(seed)
    draw = random.Random(seed)
    count, ends = 3, [*sorted(16 * draw.randint(0, of.k // 16) for _ in range(2)), of.k]
    x, y = of.eight(of.m * 16), of.eight(of.n)
    a, b = of.scales(count * of.m * 16), of.scales(count * of.n)
    parts = []
    for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = x.double()[:, start:end] @ y.double()[:, start:end].t()
        rows = a.view(count, -1)[place].double()[:, None]
        parts.append(part * rows * b.view(count, -1)[place].double())
    with windtunnel.emulate("H100"):
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        found = torch._scaled_grouped_mm(x.cuda(), y.cuda().t(), a.cuda(), b.cuda(), offs=offs)
        close(found, torch.stack(parts), of.k)


@pytest.mark.parametrize("seed", SEEDS)
def test_experts_with_scales_of_rows(seed: int) -> None:
    of = Drawn(seed)
    ends, rows = [of.m, of.m, of.m + 7], of.m + 7
    x, y = of.eight(rows), torch.stack([of.eight(of.n) for _ in range(3)])
    a, b = of.scales(rows), of.scales(3, of.n)
    owner = torch.tensor([next(i for i, end in enumerate(ends) if row < end) for row in range(rows)])
    wanted = torch.einsum("mk,mnk->mn", x.double(), y.double()[owner]) * a.double()[:, None] * b.double()[owner]
    with windtunnel.emulate("H100"):
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        found = torch._scaled_grouped_mm(x.cuda(), y.cuda().mT, a.cuda(), b.cuda(), offs=offs)
        close(found, wanted, of.k)
        plain = torch._grouped_mm(x.bfloat16().cuda(), y.bfloat16().cuda().mT, offs=offs)
        close(plain, torch.einsum("mk,mnk->mn", x.double(), y.double()[owner]), of.k)


def test_experts_with_scales_of_32() -> None:
    of = Drawn(7, step=64)
    ends = [40, 40, 300]
    x, y = of.eight(300), torch.stack([of.eight(of.n) for _ in range(3)])
    a, b = of.of_blocks(300, 32, E8M0), [of.of_blocks(of.n, 32, E8M0) for _ in range(3)]
    groups = list(zip([0, *ends], ends, strict=False))
    left = x.double() * spread(a, 32, of.k)
    wanted = torch.cat([left[s:e] @ (y[g].double() * spread(b[g], 32, of.k)).t() for g, (s, e) in enumerate(groups)])
    with windtunnel.emulate("B200"):
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        tiles = [to_blocked(a.view(torch.uint8)[s:e]) for s, e in groups if e > s]
        first = torch.cat(tiles).view(-1, 4 * math.ceil(of.k / 128)).view(E8M0).cuda()
        second = torch.stack([to_blocked(one.view(torch.uint8)) for one in b]).view(E8M0).cuda()
        found = torch._scaled_grouped_mm(x.cuda(), y.cuda().mT, first, second, offs=offs)
        close(found, wanted, of.k)


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_of_four_bits(seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tiles, group = draw.choice((2, 4, 8)), draw.choice((32, 64, 128, 256))
    rows, n, k = draw.randint(1, 20), 8 * draw.randint(1, 9), 256 * draw.randint(1, 3)
    weight = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=generator)
    x = torch.randn(rows, k, generator=generator).bfloat16()
    scale = torch.randn(k // group, n, 2, generator=generator).bfloat16()
    fitted = [part.double().repeat_interleave(group, 0).t() for part in scale.unbind(2)]
    decoded = ((weight.double() - 8) * fitted[0] + fitted[1]).bfloat16().double()
    with windtunnel.emulate("A100"):
        packed = torch._convert_weight_to_int4pack((weight[:, ::2] << 4 | weight[:, 1::2]).cuda(), tiles)
        assert packed.shape == (n // 8, k // (tiles * 16), 32, tiles // 2)
        found = torch._weight_int4pack_mm(x.cuda(), packed, group, scale.cuda())
        close(found, x.double() @ decoded.t(), k)


@pytest.mark.parametrize("seed", SEEDS)
def test_integers_of_eight_bits(seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    m, n, k = draw.randint(17, 130), 8 * draw.randint(1, 17), 8 * draw.randint(1, 40)
    x, y = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator) for shape in ((m, k), (k, n)))
    with windtunnel.emulate("A100"):
        found = torch._int_mm(x.cuda(), y.cuda()).cpu()
    assert found.equal((x.long() @ y.long()).int())


def kernel_ns(work: Callable[[], object]) -> float:
    """What a call takes on the device, by events, after a first one."""
    work()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    for _ in range(10):
        work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1e5


def eights(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, device="cuda").to(E4M3)


def mxfp8() -> torch.Tensor:
    scale = torch.ones(128 * 4, device="cuda").to(E8M0)
    return torch._scaled_mm(eights(128, 128), eights(128, 128).t(), scale, scale, out_dtype=torch.bfloat16)


def nvfp4() -> torch.Tensor:
    half_bytes = torch.zeros(128, 64, device="cuda", dtype=torch.uint8).view(FOUR)
    scale = eights(128, 8).flatten()
    return torch._scaled_mm(half_bytes, half_bytes.t(), scale, scale, out_dtype=torch.bfloat16)


def squares() -> torch.Tensor:
    rows, blocks = torch.ones(2, 256, device="cuda").t(), torch.ones(2, 2, device="cuda").t()
    return torch._scaled_mm(eights(256, 256), eights(256, 256).t(), rows, blocks, out_dtype=torch.bfloat16)


def by_tensor() -> torch.Tensor:
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(eights(32, 256), eights(48, 256).t(), one, one, out_dtype=torch.bfloat16)


def groups() -> torch.Tensor:
    ones, offs = torch.ones(64, device="cuda"), torch.tensor([32, 64], dtype=torch.int32, device="cuda")
    weights = torch.stack([eights(64, 64)] * 2).mT
    return torch._scaled_grouped_mm(eights(64, 64), weights, ones, torch.ones(2, 64, device="cuda"), offs=offs)


ARCHITECTURE = "only supported on CUDA devices with compute capability"


@pytest.mark.parametrize(
    ("gpu", "product", "words"),
    [
        ("A100", by_tensor, ARCHITECTURE),
        ("A100", groups, ARCHITECTURE),
        ("L40S", groups, ARCHITECTURE),
        ("V100", mxfp8, ARCHITECTURE),
        ("H100", mxfp8, "CUBLAS_STATUS_NOT_SUPPORTED"),
        ("H100", nvfp4, "CUBLAS_STATUS_NOT_SUPPORTED"),
        ("L40S", squares, "CUBLAS_STATUS_NOT_SUPPORTED"),
        ("B200", squares, "CUBLAS_STATUS_NOT_SUPPORTED"),
    ],
)
def test_a_gpu_without_it_refuses_it(gpu: str, product: Callable[[], torch.Tensor], words: str) -> None:
    with windtunnel.emulate(gpu), pytest.raises((RuntimeError, ValueError), match=words):
        product()


@pytest.mark.parametrize(
    ("gpu", "product"),
    [("L40S", by_tensor), ("H100", by_tensor), ("H100", squares), ("H100", groups), ("B200", mxfp8), ("B200", nvfp4)],
)
def test_without_data_it_has_the_same_shape(gpu: str, product: Callable[[], torch.Tensor]) -> None:
    with windtunnel.emulate(gpu):
        with_data = product()
        shape, strides = with_data.shape, with_data.stride()
    with windtunnel.emulate(gpu, no_data=True):
        found = product()
        assert (found.shape, found.stride(), found.dtype) == (shape, strides, torch.bfloat16)


@pytest.mark.parametrize("no_data", [False, True])
def test_an_address_that_is_no_multiple_of_16_is_refused(no_data: bool) -> None:
    # pytorch/pytorch#141749
    with windtunnel.emulate("H100", no_data=no_data):
        one = torch.ones((), device="cuda")
        shifted = eights(1, 64 * 32 + 1)[0, 1:].view(32, 64)
        with pytest.raises(RuntimeError, match=r"NOT_SUPPORTED when calling cublasLtMatmul with .* m 32 n"):
            torch._scaled_mm(eights(48, 64), shifted.t(), one, one, out_dtype=torch.bfloat16)


def test_scales_of_no_recipe_are_refused_as_cuda_does() -> None:
    with windtunnel.emulate("B200"):
        scale = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match=r"Invalid scaling configuration\.\n- For TensorWise"):
            torch._scaled_mm(eights(32, 256), eights(48, 256).t(), scale, scale, out_dtype=torch.bfloat16)
        recipe = [F.ScalingType.TensorWise]
        with pytest.raises(ValueError, match=r"Expected both inputs to be fp8 or fp4 types but got mat_a\.dtype=Float"):
            F.scaled_mm(torch.ones(32, 32, device="cuda"), eights(32, 32).t(), scale, recipe, scale, recipe)


def test_blackwell_takes_both_orders_and_hopper_one() -> None:
    with windtunnel.emulate("B200"):
        one = torch.ones((), device="cuda")
        out = torch._scaled_mm(eights(32, 64), eights(64, 48), one, one, out_dtype=torch.bfloat16)
        assert out.cpu().eq(64).all()
    with windtunnel.emulate("H100"), pytest.raises(RuntimeError, match="Only multiplication of row-major"):
        torch._scaled_mm(eights(32, 64), eights(64, 48), one.cuda(), one.cuda(), out_dtype=torch.bfloat16)


def test_an_8_bit_result_is_scaled_and_clamped() -> None:
    with windtunnel.emulate("H100"):
        one, two = torch.ones((), device="cuda"), torch.full((), 2.0, device="cuda")
        out = torch._scaled_mm(eights(32, 128), eights(32, 128).t(), one, one, scale_result=two, out_dtype=E4M3)
        assert out.cpu().float().eq(256).all()
        out = torch._scaled_mm(eights(32, 512), eights(32, 512).t(), one, one, scale_result=two, out_dtype=E4M3)
        assert out.cpu().float().eq(448).all()


def test_a_graph_repeats_it_with_new_values() -> None:
    with windtunnel.emulate("H100"):
        x, one = eights(32, 64), torch.ones((), device="cuda")
        torch._scaled_mm(x, eights(32, 64).t(), one, one, out_dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch._scaled_mm(x, eights(32, 64).t(), one, one, out_dtype=torch.bfloat16)
        x.copy_(torch.full((32, 64), 2.0, device="cuda").to(E4M3))
        graph.replay()
        assert out.cpu().eq(128).all()


def test_narrower_numbers_take_less_time() -> None:
    """The tensor cores' peaks, 2.25 to 4.5 to 9 PFLOPS on a B200, for products that they bound."""
    size = 8192
    with windtunnel.emulate("B200", no_data=True):
        one = torch.ones((), device="cuda")
        wide = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
        eight = torch.empty(size, size, device="cuda", dtype=E4M3)
        four = torch.empty(size, size // 2, device="cuda", dtype=FOUR)
        scale = torch.empty(size * size // 16, device="cuda", dtype=E4M3)
        times = [
            kernel_ns(lambda: wide @ wide),
            kernel_ns(lambda: torch._scaled_mm(eight, eight.t(), one, one, out_dtype=torch.bfloat16)),
            kernel_ns(lambda: torch._scaled_mm(four, four.t(), scale, scale, out_dtype=torch.bfloat16)),
        ]
    assert 1.5 < times[0] / times[1] < 2.2
    assert 1.3 < times[1] / times[2] < 2.2


def test_experts_cost_what_their_rows_do() -> None:
    """Not what all rows would with every expert."""
    with windtunnel.emulate("H100", no_data=True):
        x = torch.empty(4096, 2048, device="cuda", dtype=torch.bfloat16)
        offs = torch.empty(8, device="cuda", dtype=torch.int32)
        experts = torch.empty(8, 2048, 4096, device="cuda", dtype=torch.bfloat16)
        together = kernel_ns(lambda: torch._grouped_mm(x, experts, offs=offs))
        alone = kernel_ns(lambda: x @ experts[0])
    assert 0.8 < together / alone < 1.6


def test_packed_weights_are_read_in_four_bits() -> None:
    """A product with one row reads its weights once: a quarter of what bfloat16's takes."""
    with windtunnel.emulate("A100", no_data=True):
        x = torch.empty(1, 8192, device="cuda", dtype=torch.bfloat16)
        packed = torch.empty(1024, 64, 32, 4, device="cuda", dtype=torch.int32)
        scale = torch.empty(64, 8192, 2, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        assert kernel_ns(lambda: torch._weight_int4pack_mm(x, packed, 128, scale)) < 0.5 * kernel_ns(lambda: x @ weight)
