"""Kernels that memory bounds: what they pass over, and what L2 spares them."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import streams
from windtunnel.cost.families.streams import generation_share
from windtunnel.trace.operation import Signature

V100, A100, T4, L4 = (CostModel(gpus.find(name)) for name in ("V100-PCIe-32GB", "A100-PCIe-40GB", "T4", "L4"))
IMAGES = (256, 64, 112, 112)


def norm(name, shape, inputs=1, dtype="float32", **detail):
    given = (shape,) * inputs + ((shape[-1],),) * 2
    signature = (*given, shape)
    return Signature(name, signature, (dtype,) * len(signature), len(given), detail=tuple(detail.items()))


def passes(cost_model, signature):
    """The time as passes over the first tensor at the bandwidth that additions reach."""
    gpu, shape = cost_model.gpu, signature.shapes[0]
    size = 4
    for side in shape:
        size *= side
    share, _ = generation_share(gpu.generation, gpu.key)
    return cost_model.kernel(signature).duration_ns * gpu.memory_bandwidth_bytes_per_s * share / size / 1e9


@pytest.mark.parametrize(
    ("gpu", "indices", "columns", "published_us"),
    [
        ("H100-SXM5-80GB", 1024, 4096, 241),
        ("H200-SXM-141GB", 8192, 1024, 276),  # sorted
        ("A100-SXM4-40GB", 2560, 8192, 1102),
    ],
)
def test_an_embeddings_gradient_takes_its_zeros_and_its_indices(gpu, indices, columns, published_us):
    """pytorch/pytorch#137237 and #49913, with BERT's vocabulary; `make hardware` with GPT-2's."""
    shapes = (indices, columns), (indices,), (50257 if indices > 3072 else 30522, columns)
    signature = Signature("aten::embedding_dense_backward", shapes, ("float32", "int64", "float32"), 2)
    taken_us = CostModel(gpus.find(gpu), (12, 4)).kernel(signature).duration_ns / 1000
    assert taken_us == pytest.approx(published_us, rel=0.1)


def test_more_indices_take_longer_and_sorted_ones_as_long_as_the_rows_that_they_name():
    def us(indices, columns=1024, rows=50257):
        shapes = (indices, columns), (indices,), (rows, columns)
        signature = Signature("aten::embedding_dense_backward", shapes, ("bfloat16", "int64", "bfloat16"), 2)
        return A100.kernel(signature).duration_ns / 1000

    assert us(512) < us(1024) < us(3072)
    assert us(3073) < us(3072)
    assert 1.5 * us(3073) < us(16384)
    assert us(16384, 64, 128) == pytest.approx(us(8192, 64, 128), rel=0.1)
    assert us(5000, 0) == pytest.approx(us(5000, 1, 1), rel=0.05)  # without columns nothing is added up
    assert us(1024, 32 * 4 * 108) > 2 * us(1024, 32 * 108)  # twice as many blocks as are at work


@pytest.mark.parametrize(("cost_model", "share"), [(V100, 0.88), (A100, 0.86), (T4, 0.73), (L4, 0.78)])
def test_additions_reach_what_neusight_timed(cost_model, share):
    signature = Signature("aten::add", ((8192, 8192),) * 3, ("float32",) * 3, 2)
    roofline = 3 * 4 * 8192**2 / cost_model.gpu.memory_bandwidth_bytes_per_s * 1e9
    assert roofline / cost_model.kernel(signature).duration_ns == pytest.approx(share, rel=0.02)


def test_a_layer_norm_reads_its_rows_twice_unless_l2_holds_those_in_flight():
    rows = norm("aten::native_layer_norm", (32768, 8192))
    assert passes(V100, rows) == pytest.approx(3, rel=0.1)
    assert passes(L4, rows) == pytest.approx(2, rel=0.03)


def test_an_rms_norm_has_less_to_compute_than_a_layer_norm_forward():
    for gpu in (V100, L4):
        found = {
            (backward, name): gpu.kernel(norm(f"aten::{name}{backward}", (32768, 1024))).duration_ns
            for backward in ("", "_backward")
            for name in ("_fused_rms_norm", "native_layer_norm")
        }
        assert 0.6 < found["", "_fused_rms_norm"] / found["", "native_layer_norm"] < 1.0
        assert found["_backward", "_fused_rms_norm"] == found["_backward", "native_layer_norm"]


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "measured_us"),
    [
        (1048576, 16, "float32", 1537),
        (802816, 96, "bfloat16", 886),
        (65536, 256, "float32", 116),
        (50432, 768, "bfloat16", 105),
    ],
)
def test_short_rows_of_a_layer_norm_wait_for_their_blocks(rows, columns, dtype, measured_us):
    """An H100's (make hardware), up to 34 times as long as their bytes take, before corrections."""
    h100 = CostModel(gpus.find("H100"), (13, 0))
    found = h100.priced(norm("aten::native_layer_norm", (rows, columns), dtype=dtype)).duration_ns / 1000
    assert found == pytest.approx(measured_us, rel=0.35)


def test_a_batch_norm_reads_its_images_twice_in_training_only():
    training = norm("aten::native_batch_norm", IMAGES, training=1)
    assert passes(L4, training) == pytest.approx(3, rel=0.03)
    assert passes(L4, norm("aten::native_batch_norm", IMAGES, training=0)) == pytest.approx(2, rel=0.03)


def test_its_backward_pass_reads_gradients_and_images_twice():
    assert 4.9 < passes(V100, norm("aten::native_batch_norm_backward", IMAGES, inputs=2)) < 6.2


@pytest.mark.parametrize(("columns", "reads"), [(8192, 2), (32768, 3)])
def test_softmax_reads_long_rows_again(columns, reads):
    rows = Signature("aten::_softmax", ((8192, columns),) * 2, ("float32",) * 2, 1)
    assert passes(V100, rows) == pytest.approx(reads + 1, rel=0.06)


def test_what_fits_in_a_quarter_of_l2_does_not_come_from_memory():
    def rate(cost_model, side):
        signature = Signature("aten::add", ((side, side),) * 3, ("float32",) * 3, 2)
        return 12 * side**2 / cost_model.kernel(signature).duration_ns * 1e9

    small = 1000  # 12 MB: in a 4090's L2 of 72 MB, not in a 3090's of 6
    rtx4090, rtx3090 = (CostModel(gpus.find(name)) for name in ("RTX4090", "RTX3090"))
    assert rate(rtx4090, small) > 1.5 * rtx4090.gpu.memory_bandwidth_bytes_per_s
    assert rate(rtx3090, small) < rtx3090.gpu.memory_bandwidth_bytes_per_s


def test_bands_grow_with_the_distance_from_the_timings():
    signature = Signature("aten::add", ((8192, 8192),) * 3, ("float32",) * 3, 2)
    own, borrowed = (CostModel(gpus.find(name)).kernel(signature).band for name in ("L4", "H100"))
    assert own < borrowed < 0.5


@pytest.mark.parametrize(("name", "copies"), [("aten::clone", 0), ("aten::native_layer_norm", 1)])
def test_an_operand_in_another_order_costs_more_and_norms_copy_it_first(name, copies):
    shape = (64, 4096, 1024)
    size = 4 * 64 * 4096 * 1024
    plain = norm(name, shape)
    share = streams.class_share("scattered", False)
    added = passes(L4, plain._replace(detail=(("scattered", size),))) - passes(L4, plain)
    assert added == pytest.approx(1 / share - 1 + 2 * copies, rel=0.02, abs=0.01)


@pytest.mark.parametrize("cost_model", [V100, A100, L4])
def test_a_few_long_rows_wait_for_the_blocks_that_have_them(cost_model):
    """Sixteen blocks of 4 million elements: an H200 took 13.9 ms for these (make hardware), an H100 8 to 10."""
    images = (16, 64, 256, 256)
    few = Signature("aten::native_layer_norm", (images, images[1:], images[1:], images), ("float32",) * 4, 3)
    assert 8e6 < cost_model.kernel(few).duration_ns < 14e6
    many = norm("aten::native_layer_norm", (16 * 64 * 256, 256))
    assert cost_model.kernel(many).duration_ns < cost_model.kernel(few).duration_ns / 2


@pytest.mark.parametrize(("cuda", "waits_us"), [((12, 4), 1076.0), ((12, 8), 34.0)])
def test_a_likelihood_over_rows_waits_for_the_one_block_that_goes_through_them(cuda, waits_us):
    """32 threads before PyTorch 2.8, up to 1024 since (pytorch#149779); a loss for each row has a thread for each."""
    cost = CostModel(gpus.find("A100-SXM4-80GB"), cuda)

    def us(loss, columns=1024):
        shapes = (32768, columns), (32768,), loss, ()
        row = Signature("aten::nll_loss_forward", shapes, ("float32", "int64", "float32", "float32"), 2)
        return cost.kernel(row).duration_ns / 1000.0

    assert us((32768,)) < 10.0
    assert us(()) == pytest.approx(waits_us, abs=8.0)
    assert us((), 65536) == us(())


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "published_us"),
    [(8192, 1536, "float32", 308), (6144, 1536, "float32", 237), (8192, 1024, "float32", 212)],
)
def test_the_backward_pass_of_newer_layer_norms_is_bound_by_its_elements(rows, columns, dtype, published_us):
    """pytorch/pytorch#87445: forward and backward on an A100."""
    a100 = CostModel(gpus.find("A100-SXM4-40GB"), (12, 4))
    x, weight = (rows, columns), (columns,)
    forward = norm("aten::native_layer_norm", x, dtype=dtype)
    shapes = (x, x, (rows, 1), (rows, 1), weight, weight, x, weight, weight)
    backward = Signature("aten::native_layer_norm_backward", shapes, (dtype,) * 9, 6)
    found = sum(a100.kernel(one).duration_ns for one in (forward, backward)) / 1000
    assert found == pytest.approx(published_us, rel=0.5)


def softmax(rows, columns):
    return Signature("aten::_log_softmax", ((rows, columns),) * 2, ("float32",) * 2, 1)


def moments(batch, channels):
    groups = ("N", str(batch)), ("C", str(channels)), ("HxW", "512"), ("group", str(channels // 4))
    shapes = (batch, channels, 512), (channels,), (channels,), (batch, channels, 512)
    return Signature("aten::native_group_norm", shapes, ("float32",) * 4, 3, detail=groups)


def looked_up(words, columns):
    shapes, size = ((words, columns), (16384,), (16384, columns)), 4 * 16384 * columns
    return Signature("aten::embedding", shapes, ("float32", "int64", "float32"), 2, 0, size + 8 * 16384, size)


@pytest.mark.parametrize(
    ("gpu", "cuda", "signature", "published_us"),
    [
        ("A100-SXM4-80GB", (12, 1), norm("aten::native_layer_norm", (4096, 4096)), 122),
        ("A100-PCIe-80GB", (12, 4), norm("aten::native_layer_norm", (4096, 16384)), 508),
        ("H100-NVL", (12, 4), norm("aten::native_layer_norm", (4096, 8192)), 141),
        ("A100-SXM4-80GB", (12, 1), softmax(16384, 16384), 1952 - 563),  # without the likelihoods' block
        ("A100-SXM4-80GB", (12, 1), softmax(16384, 65536), 10615 - 563),
        ("H100-NVL", (12, 4), softmax(16384, 32768), 2489 - 550),
        ("B200", (12, 8), moments(128, 256), 135),
        ("B200", (12, 8), moments(128, 1024), 499),
        ("A100-SXM4-80GB", (12, 1), looked_up(32768, 4096), 860),
        ("A100-SXM4-80GB", (12, 1), looked_up(131072, 768), 170),
    ],
)
def test_kernels_take_as_long_as_a_library_printed(gpu, cuda, signature, published_us):
    """linkedin/Liger-Kernel, benchmark/data: what its kernels are compared with, L2 cleared before each call."""
    found = CostModel(gpus.find(gpu), cuda).kernel(signature).duration_ns / 1000
    assert found == pytest.approx(published_us, rel=0.16)


def test_an_embedding_is_bound_by_memory_since_pytorch_2_8():
    before, since = (CostModel(gpus.find("A100-SXM4-80GB"), cuda).kernel(looked_up(131072, 4096)) for cuda in
                     ((12, 6), (12, 8)))  # fmt: skip
    assert before.duration_ns > 2 * since.duration_ns


def test_a_gradient_that_is_expanded_is_written_out_for_a_norm():
    rows = norm("aten::native_layer_norm_backward", (8192, 4096), inputs=2)
    assert passes(V100, rows._replace(detail=(("strided", 1),))) - passes(V100, rows) == pytest.approx(2, rel=0.1)
