"""Operations counted from shapes, against the formulas written out."""

from __future__ import annotations

import pytest

from windtunnel.cost import flops
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature


def count(name, shapes, inputs, **detail):
    signature = Signature(name, shapes, ("float32",) * len(shapes), inputs, detail=tuple(detail.items()))
    return flops.count(signature, bare(name), classify(name).name)


@pytest.mark.parametrize(
    ("name", "shapes", "inputs", "expected"),
    [
        ("aten::mm", ((3, 4), (4, 5), (3, 5)), 2, 2 * 3 * 4 * 5),
        ("aten::addmm", ((5,), (3, 4), (4, 5), (3, 5)), 3, 2 * 3 * 4 * 5),
        ("aten::linear", ((2, 3, 4), (5, 4), (5,), (2, 3, 5)), 3, 2 * 6 * 4 * 5),
        ("aten::mv", ((3, 4), (4,), (3,)), 2, 2 * 3 * 4),
        ("aten::dot", ((7,), (7,), ()), 2, 2 * 7),
        ("aten::addmv", ((3,), (3, 4), (4,), (3,)), 3, 2 * 3 * 4),
        ("aten::bmm", ((6, 3, 4), (6, 4, 5), (6, 3, 5)), 2, 2 * 6 * 3 * 4 * 5),
        ("aten::baddbmm", ((6, 3, 5), (6, 3, 4), (6, 4, 5), (6, 3, 5)), 3, 2 * 6 * 3 * 4 * 5),
        ("aten::convolution", ((2, 3, 8, 8), (6, 3, 3, 3), (2, 6, 6, 6)), 2, 2 * (2 * 6 * 36) * 27),
        ("aten::convolution", ((2, 4, 8), (6, 2, 3), (2, 6, 6)), 2, 2 * (2 * 6 * 6) * 6),
        (
            "aten::convolution_backward",
            ((2, 6, 6, 6), (2, 3, 8, 8), (6, 3, 3, 3), (2, 3, 8, 8), (6, 3, 3, 3), (6,)),
            3,
            2 * 2 * (2 * 6 * 36) * 27,
        ),
        ("aten::convolution_backward", ((2, 6, 6, 6), (2, 3, 8, 8), (6, 3, 3, 3), (6, 3, 3, 3)), 3, 2 * 432 * 27),
        (
            "aten::_scaled_dot_product_flash_attention",
            ((2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 12, 16), (2, 4, 10, 16)),
            3,
            2 * 8 * 10 * 12 * 32,
        ),
        ("aten::add.Tensor", ((3, 4), (3, 4), (3, 4)), 2, 0),
    ],
)
def test_count(name, shapes, inputs, expected):
    assert count(name, shapes, inputs) == expected


def test_backward_attention_is_five_products_of_two():
    q = (2, 4, 10, 16)
    forward = count("aten::_scaled_dot_product_efficient_attention", (q, q, q, q), 3)
    backward = count("aten::_scaled_dot_product_efficient_attention_backward", (q, q, q, q, q, q, q, q), 5)
    assert backward == 2.5 * forward
    assert count("aten::_scaled_dot_product_efficient_attention", (q, q, q, q), 3, causal=1) * 2 == forward


def test_a_transposed_convolution_counts_its_input():
    shapes = ((2, 6, 6, 6), (6, 3, 3, 3), (2, 3, 8, 8))
    assert count("aten::convolution", shapes, 2, transposed=1) == 2 * (2 * 6 * 36) * 27


def test_a_truth_value_that_a_trace_holds_as_a_word_is_read_as_one():
    shapes = ((2, 3, 8, 8), (6, 3, 3, 3), (2, 6, 6, 6))
    plain = count("aten::convolution", shapes, 2)
    assert count("aten::convolution", shapes, 2, transposed="False") == plain
    assert count("aten::convolution", shapes, 2, transposed="True") != plain


def test_groups_leave_their_share_of_the_backward_pass():
    x, weight = (1, 64, 4, 4), (64, 2, 3, 3)
    assert count("aten::convolution_backward", (x, x, weight, x, weight), 3) == 2 * 2 * 64 * 16 * 2 * 9


def test_lstm_counts_its_weights_once_a_step():
    shapes = ((5, 2, 8), (32, 8), (32, 8), (32,), (32,))
    assert count("aten::_cudnn_rnn", shapes, 5) == 2 * 10 * (32 * 8 * 2)


def test_the_seams_count_is_taken():
    assert flops.count(Signature("aten::mm", ((2, 2),), ("float32",), 1, 17), "mm", "matmul") == 17


def test_unknown_forms_count_nothing():
    assert count("aten::mm", ((3,),), 1) == 0
    assert count("aten::convolution", ((3, 4),), 1) == 0
    assert count("aten::linalg_svd", ((3,),), 1) == 0


def test_bytes_from_the_shapes():
    signature = Signature("aten::add", ((4, 4), (4,), (4, 4)), ("float32", "torch.float16", "bool"), 2)
    assert flops.bytes_moved(signature) == 64 + 8 + 16
    assert flops.bytes_moved(signature._replace(read_bytes=5, written_bytes=6)) == 11
