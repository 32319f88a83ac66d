"""Operators that take operators, and Triton kernels of the program's own, in compiled graphs: values and kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_compiled_cost import launched
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.session import Session

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def add_twice(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """out = x + 2 y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask) + 2 * tl.load(y_ptr + at, mask), mask)


@triton.jit
def beyond(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """A copy without a mask."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


def not_modelled(session: Session) -> list[str]:
    return [finding.message for finding in session.findings() if finding.code == "not-modelled"]


def test_a_branch_is_taken_by_its_value(session: Session) -> None:
    @torch.compile(fullgraph=True)
    def choose(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(y.sum() > 0, lambda x: x + 1, lambda x: x @ x, (x,))

        first = torch.cond(x.sum() > 0, lambda x: inner(x) * 2, lambda x: x.cos(), (x,))
        return first, torch.cond(y.sum() > 1, lambda x: x * 3, lambda x: x * 5, (first,))

    def wanted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = ((x + 1 if y.sum() > 0 else x @ x) * 2) if x.sum() > 0 else x.cos()
        return first, first * (3 if y.sum() > 1 else 5)

    ones = torch.ones(3, 3, device="cuda")
    for a in (1, -1):
        for b in (1, -1):
            torch.testing.assert_close(choose(a * ones, b * ones), wanted(a * ones, b * ones))
    before = len(session.trace)
    choose(ones, ones)
    assert not any("mm" in name for name in launched(session, before))
    before = len(session.trace)
    choose(ones, -ones)
    assert any("mm" in name for name in launched(session, before))
    assert not_modelled(session) == []


def test_a_branch_has_gradients(session: Session) -> None:
    @torch.compile
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,)).sum()

    for sign, wanted in ((1, 2 * torch.ones(3).cos()), (-1, torch.ones(3).sin())):
        x = (sign * torch.ones(3, device="cuda")).requires_grad_()
        choose(x).backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), wanted)


@pytest.mark.parametrize("turns", [0, 3, 5])
def test_a_loop_launches_its_body_as_often_as_it_runs(session: Session, turns: int) -> None:
    @torch.compile
    def power(x: Tensor, n: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64, device="cuda"), torch.eye(4, device="cuda")
        _, out = while_loop(lambda i, z: i < n, lambda i, z: (i + 1, z @ x), start)
        return out

    x, n = torch.randn(4, 4, device="cuda"), torch.tensor(turns, device="cuda")
    torch.testing.assert_close(power(x, n), torch.linalg.matrix_power(x, turns), rtol=1e-4, atol=1e-4)
    before = len(session.trace)
    power(x, n)
    assert sum("mm" in name for name in launched(session, before)) == turns


def test_scans_with_a_carry_and_maps_run_operator_by_operator(session: Session) -> None:
    x = torch.rand(8, 16, device="cuda")
    sums = torch.compile(lambda x: scan(lambda total, row: (total + row, total * row), x[0] * 0, x), fullgraph=True)
    total, rows = sums(x)
    torch.testing.assert_close(total, x.sum(0))
    torch.testing.assert_close(rows, (x.cumsum(0) - x) * x)
    scaled = torch.compile(lambda x: map_rows(lambda row, first: row * first, x, x[0].clone()), fullgraph=True)
    torch.testing.assert_close(scaled(x), x * x[0])
    assert [finding.code for finding in session.findings()].count("not-modelled") == 2


def test_a_scan_is_a_kernel_of_inductors(session: Session) -> None:
    product = torch.compile(lambda x: associative_scan(lambda a, b: a * b, x, 0), fullgraph=True)
    x = torch.randn(6, 3, device="cuda")
    torch.testing.assert_close(product(x), x.cumprod(0))
    before = len(session.trace)
    product(x)
    assert [name.startswith("triton_") for name in launched(session, before)] == [True]


def flops(session: Session, since: int) -> list[int]:
    signatures = [record.signature for record in list(session.trace)[since:]]
    return [signature.flops for signature in signatures if "flex" in signature.name and signature.flops]


def test_flex_attention_is_one_kernel_whose_mask_leaves_work_out(session: Session) -> None:
    attention = torch.compile(flex_attention)
    q, k, v = (torch.randn(1, 2, 1024, 16, device="cuda", requires_grad=True) for _ in range(3))
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 1024, 1024, device="cuda")

    def step(mask: object) -> list[Tensor]:
        out = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (j - i) * 0.1, block_mask=mask)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))]

    done: list[list[int]] = []
    for mask in (None, causal):
        step(mask)
        before = len(session.trace)
        found = step(mask)
        done.append(flops(session, before))
        places = torch.arange(1024, device="cuda")
        scores = (q @ k.mT) * 0.25 + 0.1 * (places - places[:, None])
        if mask is not None:
            scores = scores.masked_fill(places > places[:, None], float("-inf"))
        out = scores.softmax(-1) @ v
        wanted = [out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))]
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    full, masked = done
    assert full[0] == 2 * 2 * 2 * 1024 * 1024 * 16
    assert len(full) == len(masked) == 2
    assert masked[0] / full[0] == pytest.approx(36 / 64)  # blocks on and below the diagonal
    assert not_modelled(session) == []


def test_a_gradient_of_a_bias_in_flex_attention(session: Session) -> None:
    def attention(q: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])

    q, bias = torch.randn(1, 2, 128, 16, device="cuda"), torch.randn(2, 128, 128, device="cuda", requires_grad=True)
    (found,) = torch.autograd.grad(torch.compile(attention)(q, bias).square().sum(), bias)
    (wanted,) = torch.autograd.grad((((q @ q.mT) * 0.25 + bias).softmax(-1) @ q).square().sum(), bias)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_a_checkpointed_region_repeats_its_dropout(session: Session) -> None:
    drop = torch.compile(
        lambda x: checkpoint(lambda x: torch.nn.functional.dropout(x * 2, 0.5).exp(), x, use_reentrant=False)
    )
    x = torch.ones(1000, device="cuda", requires_grad=True)
    out = drop(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    kept = out.detach() != 1
    assert 300 < int(kept.sum()) < 700
    torch.testing.assert_close(gradient, torch.where(kept, 4 * out.detach(), 0))
    assert not_modelled(session) == []


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("fallback", [False, True], ids=["generators", "states"])
def test_attention_repeats_its_dropout_in_the_backward_pass(session: Session, fallback: bool, mode: str) -> None:
    """The result is linear in the values, so that its product with a gradient is theirs with their gradient."""

    def attention(q: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, q, v, dropout_p=0.4)

    def run(q: Tensor, v: Tensor) -> Tensor:
        return checkpoint(attention, q, v, use_reentrant=False)

    q, v, weight = torch.randn(3, 2, 2, 16, 8, device="cuda").unbind()
    v.requires_grad_()
    with torch._inductor.config.patch(fallback_random=fallback):
        compiled = torch.compile(run, fullgraph=True, mode=mode)
        results = []
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            results.append(compiled(q, v))
            (gradient,) = torch.autograd.grad(results[-1], v, weight)
            torch.testing.assert_close((results[-1] * weight).sum(), (v * gradient).sum(), rtol=1e-4, atol=1e-4)
            if fallback:
                torch.manual_seed(seed)
                torch.testing.assert_close(results[-1], attention(q, v))
    assert not torch.equal(results[0], results[1])
    assert not_modelled(session) == []


def test_without_data_attention_repeats_its_dropout() -> None:
    def run(q: Tensor) -> Tensor:
        return checkpoint(lambda q: scaled_dot_product_attention(q, q, q, dropout_p=0.4), q, use_reentrant=False)

    seen = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data) as session:
            compiled = torch.compile(run, fullgraph=True)
            q = torch.randn(2, 2, 16, 8, device="cuda", requires_grad=True)
            for _ in range(2):
                before = len(session.trace)
                compiled(q).sum().backward()
            seen.append(launched(session, before))
    assert seen[0] == seen[1]
    assert any("attention" in name for name in seen[0])


def test_a_region_that_repeats(session: Session) -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)]).cuda()

    @torch.compiler.nested_compile_region
    def block(layer: torch.nn.Module, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(layer(x))

    def model(x: Tensor) -> Tensor:
        for layer in layers:
            x = block(layer, x)
        return x

    x = torch.randn(2, 4, device="cuda")
    wanted = torch.autograd.grad(model(x).sum(), list(layers.parameters()))
    found = torch.autograd.grad(torch.compile(model)(x).sum(), list(layers.parameters()))
    torch.testing.assert_close(found, wanted)


def test_sizes_and_numbers_that_values_decide(session: Session) -> None:
    def positive(x: Tensor) -> tuple[Tensor, ...]:
        found = x[x > 0]
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        return x.nonzero(), found * 2, torch.arange(count, device="cuda")

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = torch.compile(positive, fullgraph=True)
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, device="cuda")
            for one, other in zip(compiled(x), positive(x), strict=True):
                assert torch.equal(one, other)


def added(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_twice[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out


def in_place(x: Tensor, y: Tensor) -> Tensor:
    add_twice[(triton.cdiv(x.numel(), 16),)](x, y, y, x.numel(), BLOCK=16)
    return y


@pytest.mark.parametrize("kernel", [added, in_place])
def test_a_kernel_of_ones_own_is_one_kernel_between_inductors(
    session: Session, kernel: Callable[[Tensor, Tensor], Tensor]
) -> None:
    compiled = torch.compile(lambda x, y: kernel(x.sin(), y).cos(), fullgraph=True)
    x, y = torch.randn(2, 50, device="cuda").unbind()
    compiled(x, y.clone())
    before = len(session.trace)
    given = y.clone()
    torch.testing.assert_close(compiled(x, given), (x.sin() + 2 * y).cos())
    torch.testing.assert_close(given, x.sin() + 2 * y if kernel is in_place else y)
    names = launched(session, before)
    assert names.count("triton::add_twice") == 1
    assert not_modelled(session) == []


def test_an_autotuned_kernel(session: Session) -> None:
    tuned = triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 64)], key=["n"])(add_twice)

    @torch.compile(fullgraph=True)
    def run(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out + 1

    x, y = torch.randn(2, 50, device="cuda").unbind()
    torch.testing.assert_close(run(x, y), x + 2 * y + 1)


def test_an_operator_of_ones_own_is_the_kernels_that_it_launches(session: Session) -> None:
    @torch.library.custom_op("windtunnel_tests::added", mutates_args=())
    def operator(x: Tensor, y: Tensor) -> Tensor:
        return added(x, y)

    operator.register_fake(lambda x, y: torch.empty_like(x))
    compiled = torch.compile(lambda x, y: operator(x, y) * 2)
    x, y = torch.randn(2, 50, device="cuda").unbind()
    compiled(x, y)
    before = len(session.trace)
    torch.testing.assert_close(compiled(x, y), 2 * (x + 2 * y))
    assert launched(session, before)[0] == "triton::add_twice"


def test_the_sanitizer_looks_into_compiled_graphs(session: Session) -> None:
    @torch.compile
    def copied(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        beyond[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
        return out

    copied(torch.ones(50, device="cuda"))
    found = [finding for finding in session.findings() if finding.code == "triton-out-of-bounds"]
    assert "beyond" in found[0].message


def test_without_data_a_loop_is_refused_and_a_branch_assumed() -> None:
    with windtunnel.emulate("A100", no_data=True, assume=1) as session:
        choose = torch.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + 1, (x,)))
        x = torch.ones(4, 4, device="cuda")
        choose(x)
        before = len(session.trace)
        assert choose(x).shape == (4, 4)
        assert any("mm" in name for name in launched(session, before))
        run = torch.compile(lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,)))
        with pytest.raises(UnsupportedError, match=r"how often torch.while_loop runs depends on values"):
            run(x)
