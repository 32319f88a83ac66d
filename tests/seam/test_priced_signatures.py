"""What the cost model is told: operations of grouped convolutions, layouts of products, launches that are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from windtunnel import emulate
from windtunnel.session import Session


def priced(session, name):
    """The signatures of an operator in a session's trace."""
    return [one for one in session.trace.signatures if one.name == name]


@pytest.mark.parametrize("groups", [1, 2, 32])
def test_each_gradient_of_a_convolution_takes_what_its_forward_pass_does(groups):
    def step(device):
        x = torch.ones(1, 32, 6, 6, device=device, requires_grad=True)
        weight = torch.ones(64, 32 // groups, 3, 3, device=device, requires_grad=True)
        functional.conv2d(x, weight, groups=groups).sum().backward()

    with emulate("V100", no_data=True) as session:
        step("cuda")
        (forward,), (backward,) = (priced(session, f"aten::convolution{end}") for end in ("", "_backward"))
    assert backward.flops == 2 * forward.flops == 4 * 64 * 16 * 9 * 32 // groups
    if groups == 1:  # PyTorch's counter leaves the groups out of the weight's gradient
        with FlopCounterMode(display=False) as counter:
            step("cpu")
        assert counter.get_total_flops() == forward.flops + backward.flops


def test_a_transposed_convolution_is_told_from_a_plain_one():
    with emulate("V100", no_data=True) as session:
        x, weight = torch.ones(1, 8, 6, 6, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda")
        functional.conv2d(x, weight)
        functional.conv_transpose2d(x, weight)
        plain, transposed = (dict(one.detail)["transposed"] for one in priced(session, "aten::convolution"))
    assert not plain
    assert transposed


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: a @ b, set()),
        (lambda a, b: a @ b.t().contiguous().t(), {"transposed_b"}),
        (lambda a, b: a.t().contiguous().t() @ b, {"transposed_a"}),
        (lambda a, b: functional.linear(a, b.t().contiguous()), {"transposed_b"}),
    ],
)
def test_a_product_says_how_its_operands_lie(make, expected):
    with emulate("A100", no_data=True) as session:
        make(torch.ones(24, 16, device="cuda"), torch.ones(16, 40, device="cuda"))
        details = [{name for name, _ in one.detail} for one in priced(session, "aten::mm")]
    assert details == [expected]


def test_a_batch_of_products_says_which_operand_it_shares():
    with emulate("A100", no_data=True) as session:
        a, weight = torch.ones(64, 32, 128, device="cuda"), torch.ones(128, 256, device="cuda")
        torch.bmm(a, weight.expand(64, 128, 256))
        torch.bmm(a, weight.repeat(64, 1, 1))
        shared, own = priced(session, "aten::bmm")
        lengths = [session.machine.devices[0].cost.kernel(one).duration_ns for one in (shared, own)]
    assert ("shared_b", 1) in shared.detail
    assert ("shared_b", 1) not in own.detail
    assert lengths[0] < lengths[1]


def test_products_of_one_shape_and_two_layouts_are_two():
    with emulate("A100", no_data=True) as session:
        a = torch.ones(32, 32, device="cuda")
        for b in (a, a.t(), a, a.t()):
            a @ b
        assert len(priced(session, "aten::mm")) == 2


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing_gives_its_input_back(device, p, train):
    with emulate("V100", no_data=True) as session:
        x = torch.ones(1000, device=device, requires_grad=True)
        rows, size = len(session.trace), torch.cuda.memory_allocated()
        assert functional.dropout(x, p, train) is x
        assert (len(session.trace), torch.cuda.memory_allocated()) == (rows, size)


SIZED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "zeros": lambda x, n: torch.zeros(n, device="cuda"),
    "new_zeros": lambda x, n: x.new_zeros(n),
    "arange": lambda x, n: torch.arange(n, device="cuda"),
    "repeat": lambda x, n: x.repeat(n),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n),
    "pad": lambda x, n: functional.pad(x, (0, n)),
    "interpolate": lambda x, n: functional.interpolate(x.view(1, 1, 4), size=n),
    "adaptive pooling": lambda x, n: functional.adaptive_avg_pool1d(x.view(1, 1, 4), n),
    "bincount": lambda x, n: torch.bincount(x.long(), minlength=n),
    "one_hot": lambda x, n: functional.one_hot(x.long(), n),
    "fft": lambda x, n: torch.fft.fft(x, n),
}
"""Calls whose results have sizes that their input tensors do not tell."""


@pytest.mark.parametrize("call", SIZED.values(), ids=SIZED)
def test_a_call_is_priced_by_its_own_result(
    session: Session, call: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    """Each of two calls costs what it costs in a program that makes no other."""
    x = torch.ones(4, device="cuda")

    def took(n: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call(x, n)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    took(20), took(4_000_000)  # the first ones load a kernel and ask for memory
    small, large = took(20), took(4_000_000)
    assert (small, large) == (took(20), took(4_000_000))
    assert large > 2 * small


@pytest.mark.parametrize(
    ("name", "run", "scattered"),
    [
        ("aten::clone", lambda x, t: t.contiguous(), True),
        ("aten::clone", lambda x, t: t.clone(), False),
        ("aten::clone", lambda x, t: x[:, :16].contiguous(), False),
        ("aten::add", lambda x, t: t + torch.zeros_like(t, memory_format=torch.contiguous_format), True),
        ("aten::add", lambda x, t: t + t, False),
        ("aten::add", lambda x, t: x + x, False),
        ("aten::mul", lambda x, t: t * x[0, 0], False),
        ("aten::copy_", lambda x, t: torch.empty(t.shape, device="cuda").copy_(t), True),
        ("aten::_to_copy", lambda x, t: t.half(), False),
        ("aten::native_layer_norm", lambda x, t: functional.layer_norm(t, (32,)), True),
        ("aten::_softmax", lambda x, t: t.softmax(-1), True),
        ("aten::cat", lambda x, t: torch.cat((t, x[:, :32, :32].expand(4, 32, 32)), 1), True),
        ("aten::cat", lambda x, t: torch.cat((x, x[:, :, :16]), -1), False),
        ("aten::constant_pad_nd", lambda x, t: functional.pad(t, (0, 3)), True),
        ("aten::constant_pad_nd", lambda x, t: functional.pad(x, (0, 3)), False),
    ],
)
def test_an_operand_in_another_order_is_told(name, run, scattered):
    """Of operands of the result's size alone: where its elements that lie side by side do not in the operand."""
    with emulate("V100", no_data=True) as session:
        x = torch.ones(4, 32, 100, device="cuda")
        run(x[:, :, :32] if name == "aten::mul" else x, x.transpose(1, 2))
        details = [dict(one.detail) for one in priced(session, name)]
    assert [detail.get("scattered", 0) for detail in details] == [4 * 4 * 32 * 100 if scattered else 0]


def test_the_same_shapes_in_another_order_have_a_price_of_their_own():
    with emulate("V100", no_data=True) as session:
        x = torch.ones(64, 64, device="cuda")
        for operand in (x, x.t(), x, x.t()):
            x + operand
        assert [dict(one.detail) for one in priced(session, "aten::add")] == [{}, {"scattered": 4 * 64 * 64}]


@pytest.mark.parametrize(
    ("name", "run", "strided"),
    [
        ("aten::clone", lambda x: x.view(64, 4, 16).transpose(0, 1).contiguous(), 3),
        ("aten::clone", lambda x: x[:, :32].contiguous(), 2),
        ("aten::clone", lambda x: x.clone(), 0),
        ("aten::add", lambda x: x[:, :32] + x[:, 32:], 2),
        (
            "aten::add",
            lambda x: x.view(8, 8, 64)[..., :32] + x.view(8, 8, 64)[..., 32:],
            2,
        ),  # as PyTorch coalesces them
        ("aten::add", lambda x: x.view(8, 8, 64) + x[:1, :1].expand(64, 64).view(8, 8, 64), 1),
        ("aten::add", lambda x: x + x, 0),
    ],
)
def test_an_operand_with_strides_of_its_own_is_told(name, run, strided):
    with emulate("V100", no_data=True) as session:
        run(torch.ones(64, 64, device="cuda"))
        details = [dict(one.detail) for one in priced(session, name)]
    assert details == [{"strided": strided} if strided else {}]


def test_an_expanded_gradient_is_neither_out_of_order_nor_read_from_memory():
    """What a sum hands back is one number, which every thread finds in the same place."""
    with emulate("V100", no_data=True) as session:
        x = torch.ones(64, 128, device="cuda", requires_grad=True)
        (x * 2.0 + x.detach() * x).sum().backward()
        x.mean(-1).sum().backward()
        x.mean(-1).square().sum().backward()
        products = priced(session, "aten::mul")
        forward, backward = (one for one in products if one.shapes == ((64, 128),) * 3)
        quotients = [one for one in priced(session, "aten::div") if one.shapes[0] == (64, 128)]
    assert backward.detail == (("strided", 1),)
    assert forward.read_bytes - backward.read_bytes == 4 * 64 * 128 - 4
    assert [one.read_bytes for one in quotients] == [4, 4 * 64]


def test_an_operand_given_twice_is_read_once():
    with emulate("V100", no_data=True) as session:
        x, y = (torch.ones(64, 64, device="cuda") for _ in range(2))
        turned = x.t()
        for _ in range(2):
            x * x, x * y, turned * turned, turned * y
        found = [row.signature.read_bytes for row in session.trace if row.signature.name == "aten::mul"]
    assert found == [16384, 32768] * 4


def test_a_part_that_is_concatenated_twice_is_read_twice():
    with emulate("V100", no_data=True) as session:
        x = torch.ones(64, 64, device="cuda")[:, :32]
        torch.cat((x, x))
        (found,) = priced(session, "aten::cat")
    assert found.read_bytes == 2 * 4 * 64 * 32


def test_an_expanded_index_is_read_once_for_each_row_that_it_gathers():
    """pytorch/pytorch#151612: 36 us for 4096 rows of 5120 in bfloat16 on a Hopper GPU; an index each takes more."""
    with emulate("H100", no_data=True, cuda_version="12.8") as session:
        x = torch.empty(4096, 5120, device="cuda", dtype=torch.bfloat16)
        rows = torch.empty(4096, 1, device="cuda", dtype=torch.int64)
        for index in (rows.expand(4096, 5120), rows.expand(4096, 5120).contiguous()):
            x.gather(0, index)
        torch.cuda.synchronize()
        expanded, each = (row for row in session.trace if row.signature.name == "aten::gather")
    assert each.signature.read_bytes - expanded.signature.read_bytes == 8 * 4096 * 5119
    assert expanded.end_ns - expanded.start_ns < 55_000 < each.end_ns - each.start_ns


def test_what_a_slice_hands_back_lies_in_zeros_that_are_written_first():
    with emulate("V100", no_data=True) as session:
        x = torch.ones(64, 128, device="cuda", requires_grad=True)
        x[:, :32].sum().backward()
        (found,) = priced(session, "aten::slice_backward")
    assert (found.read_bytes, found.written_bytes) == (4 * 64 * 32, 4 * 64 * (128 + 32))


def test_images_with_channels_last_have_a_price_of_their_own():
    with emulate("V100", no_data=True) as session:
        norm = torch.nn.BatchNorm2d(8, device="cuda")
        x = torch.ones(2, 8, 16, 16, device="cuda")
        for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
            functional.max_pool2d(norm(x.to(memory_format=layout)), 2)
        for name in ("aten::native_batch_norm", "aten::max_pool2d_with_indices"):
            assert [dict(one.detail).get("channels_last", 0) for one in priced(session, name)] == [0, 1]
