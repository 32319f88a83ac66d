"""Convolutions as implicit products: all three passes, groups, strides, layouts, and what Winograd takes."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import convolutions
from windtunnel.trace.operation import Signature

LAST = (("channels_last", 1),)


def model(name, cuda=(11, 8)):
    return CostModel(gpus.find(name), cuda)


A100, V100, RTX3090 = model("A100-SXM4-80GB"), model("V100-SXM2-16GB"), model("RTX3090")


def shapes(batch, inputs, outputs, size, kernel, stride=1, groups=1):
    after = size // stride
    return (batch, inputs, size, size), (outputs, inputs // groups, kernel, kernel), (batch, outputs, after, after)


def forward(*sizes, dtype="float16", detail=LAST, **options):
    x, weight, out = shapes(*sizes, **options)
    return Signature("aten::convolution", (x, weight, out), (dtype,) * 3, 2, detail=detail)


def backward(*sizes, wanted="xw", dtype="float16", detail=LAST, **options):
    x, weight, out = shapes(*sizes, **options)
    outputs = ((x,) if "x" in wanted else ()) + ((weight,) if "w" in wanted else ())
    given = (out, x, weight, *outputs)
    return Signature("aten::convolution_backward", given, (dtype,) * len(given), 3, detail=detail)


def ns(cost_model, signature):
    return cost_model.kernel(signature).duration_ns


@pytest.mark.parametrize("cost_model", [A100, V100, RTX3090])
def test_a_large_convolution_in_channels_last_comes_near_the_tensor_cores_peak(cost_model):
    reached = 2 * 256 * 28 * 28 * 256 * 256 * 9 / ns(cost_model, forward(256, 256, 256, 28, 3)) * 1e9
    assert 0.5 < reached / cost_model.gpu.peak_flops["fp16"] < 1.25


@pytest.mark.parametrize("key", ["A100-SXM4-40GB", "V100-SXM2-16GB", "RTX3090", "RTX4090", "T4"])
@pytest.mark.parametrize("passes", [forward, backward])
def test_no_convolution_multiplies_faster_than_a_large_product(key, passes):
    """Stable Diffusion's largest ones, which were 17 % above an A100's peak."""
    of = model(key, (12, 4))
    convolution = passes(32, 640, 640, 64, 3)
    square = (8192, 8192)
    product = of.kernel(Signature("aten::mm", (square, square, square), ("float16",) * 3, 2)).duration_ns
    operations = 2 * 32 * 64 * 64 * 640 * 640 * 9 * (2 if passes is backward else 1)
    assert operations / ns(of, convolution) <= 1.02 * 2 * 8192**3 / product


def test_the_backward_pass_is_the_gradient_of_the_data_and_that_of_the_weights():
    sizes = (128, 256, 256, 28, 3)
    data, weights = (ns(A100, backward(*sizes, wanted=wanted)) for wanted in ("x", "w"))
    assert ns(A100, backward(*sizes)) == pytest.approx(data + weights, rel=0.01)
    assert 0.6 * ns(A100, forward(*sizes)) < data < 1.3 * ns(A100, forward(*sizes))
    assert 0.6 * ns(A100, forward(*sizes)) < weights < 1.6 * ns(A100, forward(*sizes))


def test_a_stride_saves_what_it_skips_in_both_directions():
    whole, strided = (128, 256, 256, 28, 3), {"stride": 2}
    assert 3 < ns(A100, forward(*whole)) / ns(A100, forward(*whole, **strided)) < 4.5
    assert 2 < ns(A100, backward(*whole)) / ns(A100, backward(*whole, **strided)) < 4.5


def test_groups_divide_the_work():
    one, eight = (ns(A100, forward(128, 512, 512, 28, 3, groups=groups)) for groups in (1, 8))
    assert 3 < one / eight < 8.5


def test_an_odd_number_of_channels_costs_what_padding_costs():
    assert ns(A100, forward(128, 255, 255, 28, 3)) == ns(A100, forward(128, 256, 256, 28, 3))


def test_a_pointwise_convolution_is_bound_by_its_bytes():
    cost = A100.kernel(forward(256, 64, 256, 56, 1))
    size = 2 * 256 * 56 * 56 * (64 + 256)
    assert cost.bound == "memory"
    assert 1.0 < cost.duration_ns / (1e9 * size / A100.gpu.memory_bandwidth_bytes_per_s) < 2.0


@pytest.mark.parametrize("key", ["A100-SXM4-80GB", "V100-SXM2-16GB", "RTX3090"])
def test_channels_first_pays_for_two_conversions_a_product(key):
    """timm, RTX 3090, torch 1.12: ResNet-50 takes 620 ms a step with channels first and 420 with channels last."""
    cost_model, sizes = model(key), (512, 256, 64, 56, 1)
    converted = 2 * 2 * 512 * 56 * 56 * (256 + 64) / cost_model.gpu.memory_bandwidth_bytes_per_s * 1e9
    for one, products in ((forward, 1), (backward, 2)):
        more = ns(cost_model, one(*sizes, detail=())) - ns(cost_model, one(*sizes))
        assert products * converted < more < 1.7 * products * converted


def test_the_forward_pass_of_newer_libraries_converts_nothing():
    old, new = model("RTX3090", (11, 3)), model("RTX3090", (12, 4))
    pointwise = forward(512, 256, 64, 56, 1, detail=())
    assert ns(new, pointwise) < 0.6 * ns(old, pointwise)
    assert ns(new, forward(512, 256, 64, 56, 1)) <= ns(new, pointwise)


def test_a_transposed_convolution_is_the_others_gradient():
    x, _, out = shapes(64, 256, 128, 56, 2, stride=2)
    detail = (*LAST, ("transposed", 1))
    transposed = Signature("aten::convolution", (out, (128, 256, 2, 2), x), ("float16",) * 3, 2, detail=detail)
    assert ns(A100, transposed) == ns(A100, backward(64, 256, 128, 56, 2, stride=2, wanted="x"))


def test_in_fp32_only_small_square_kernels_of_stride_one_gain_from_winograd():
    def reached(kernel, stride):
        work = 2 * 128 * (28 // stride) ** 2 * 256 * 256 * kernel**2
        signature = forward(128, 256, 256, 28, kernel, stride=stride, dtype="float32", detail=())
        return work / ns(V100, signature) * 1e9 / V100.gpu.peak_flops["fp32"]

    assert reached(3, 1) > reached(3, 2)  # 76 % of NeuSight's 3x3 convolutions took Winograd's way on a V100
    assert reached(3, 1) > reached(5, 1)


def test_images_of_three_channels_are_padded_to_four():
    assert convolutions.padded(3, True) == 4
    assert convolutions.padded(12, True) == 16
    assert convolutions.padded(3, False) == 3


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 64),
    channels=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    size=st.sampled_from([7, 14, 28, 56]),
    kernel=st.sampled_from([1, 3, 5]),
    grown=st.sampled_from(["batch", "inputs", "outputs", "size"]),
    passes=st.sampled_from([forward, backward]),
)
def test_time_does_not_fall_when_a_convolution_grows(batch, channels, size, kernel, grown, passes):
    """Channels stay multiples of eight, so that the kernels are of one kind."""
    inputs, outputs = 8 * channels[0], 8 * channels[1]
    larger = {"batch": (2 * batch, inputs, outputs, size), "inputs": (batch, 2 * inputs, outputs, size)}
    larger |= {"outputs": (batch, inputs, 2 * outputs, size), "size": (batch, inputs, outputs, 2 * size)}
    small = ns(A100, passes(batch, inputs, outputs, size, kernel))
    assert ns(A100, passes(*larger[grown], kernel)) >= 0.999 * small


RTX4090 = model("RTX4090", (12, 8))


def biased(signature):
    x, weight, out = signature.shapes
    return signature._replace(shapes=(x, weight, (weight[0],), out), dtypes=("float16",) * 4, inputs=3)


def test_a_bias_is_read_and_written_by_a_kernel_of_its_own():
    """`output.add_(reshape_bias(...))` after cuDNN's kernel; its gradient is a sum."""
    plain = forward(256, 256, 256, 28, 3)
    tensor = 2 * 256 * 256 * 28 * 28
    added = ns(RTX4090, biased(plain)) - ns(RTX4090, plain)
    assert added == pytest.approx(2e9 * tensor / RTX4090.gpu.memory_bandwidth_bytes_per_s, rel=0.25)
    gradients = backward(256, 256, 256, 28, 3)
    summed = gradients._replace(shapes=(*gradients.shapes, (256,)), dtypes=("float16",) * 6)
    assert 0 < ns(RTX4090, summed) - ns(RTX4090, gradients) < added


@pytest.mark.parametrize("channels", [8, 16, 32])
def test_groups_of_a_few_channels_have_kernels_of_their_own_in_channels_last(channels):
    odd = channels + 8 if channels > 8 else 12
    fast, slow = (ns(RTX4090, forward(256, 480, 480, 28, 3, groups=480 // width)) for width in (channels, odd))
    assert 2 * fast < slow


@pytest.mark.parametrize(("outputs", "kernel"), [(16, 3), (32, 3), (8, 7)])
def test_few_output_channels_are_bound_by_their_bytes(outputs, kernel):
    """dla46_c's and efficientvit's first layers; a tile of a product would be all but empty."""
    time_ns = ns(RTX4090, forward(1024, 16, outputs, 112, kernel))
    bytes_ns = 2e9 * 1024 * 112 * 112 * (16 + outputs) / RTX4090.gpu.memory_bandwidth_bytes_per_s
    assert bytes_ns < time_ns < 2.5 * bytes_ns


def test_channels_that_are_no_multiples_of_eight_are_padded_in_copies():
    """cuDNN's auto-padding for channels last; images of three channels have kernels of their own."""
    odd, even = (ns(RTX4090, forward(256, channels, 64, 56, 1)) for channels in (60, 64))
    tensor_ns = 2e9 * 256 * 60 * 56 * 56 / RTX4090.gpu.memory_bandwidth_bytes_per_s
    assert odd - even > tensor_ns
    assert convolutions.padded_elements(convolutions.Sizes(1, 3, 100, 64, 100, 1, 1, 2, False)) == 0


def test_cudnn_converts_the_layout_where_that_is_faster():
    """Narrow groups: the kernels that they have for channels last are worth two copies."""
    sizes = (256, 256, 256, 56, 3)
    first, last = (ns(RTX4090, forward(*sizes, groups=32, detail=detail)) for detail in ((), LAST))
    tensors_ns = 2e9 * 4 * 256 * 256 * 56 * 56 / RTX4090.gpu.memory_bandwidth_bytes_per_s
    assert last < first < last + 1.3 * tensors_ns


def tf32(images, weight, results, transposed=False, **detail):
    """A convolution in TF32 as PyTorch's default has it, in channels first where the detail does not say."""
    detail = {"tf32": 1, "transposed": int(transposed), **detail}
    tensors = (images, weight, results)
    size = 4 * sum(map(prod, tensors))
    return Signature("aten::convolution", tensors, ("float32",) * 3, 2, 0, size, size, tuple(detail.items()))


@pytest.mark.parametrize(
    ("images", "weight", "results", "first_us", "last_us"),
    [
        ((16, 64, 256, 256), (128, 64, 3, 3), (16, 128, 256, 256), 961, 446),
        ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56), 143, 73),
        ((16, 64, 128, 256), (128, 64, 3, 7), (16, 128, 126, 250), 662, 444),
        ((16, 64, 512, 512), (128, 64, 1, 1), (16, 128, 512, 512), 847, 871),
    ],
)
def test_tf32_in_channels_first_pays_for_conversions_of_both_tensors(images, weight, results, first_us, last_us):
    """An H200's times; 1x1 kernels take channels first as they are."""
    h200 = model("H200", (13, 0))
    first = h200.priced(tf32(images, weight, results)).duration_ns / 1000
    last = h200.priced(tf32(images, weight, results, channels_last=1)).duration_ns / 1000
    assert first == pytest.approx(first_us, rel=0.25)
    assert last == pytest.approx(last_us, rel=0.25)


@pytest.mark.parametrize(
    ("name", "published_us"),
    [("A100", 2240), ("A10G", 6190), ("L4", 11300), ("L40S", 4200), ("B200", 577)],
)
def test_a_strided_transposed_convolution_leaves_out_what_strides_skip_even_dilated(name, published_us):
    """KernelBench level1/81: all elements would take two to three times as long on half of these GPUs."""
    detail = {"stride": "[5, 5]", "padding": "[1, 1]", "dilation": "[2, 2]", "groups": "1"}
    call = tf32((16, 32, 64, 128), (32, 64, 3, 3), (16, 64, 318, 638), transposed=True, **detail)
    assert model(name, (12, 8)).kernel(call).duration_ns / 1000 == pytest.approx(published_us, rel=0.4)


def test_without_tensor_cores_a_transposed_convolution_is_slower_than_a_gradient():
    """KernelBench level1/65 on a T4."""
    call = tf32((16, 32, 128, 128), (32, 64, 3, 5), (16, 64, 130, 132), transposed=True)
    assert model("T4", (12, 4)).kernel(call).duration_ns / 1e6 == pytest.approx(12.9, rel=0.25)


def test_kinds_that_no_timed_network_has_say_so_by_their_band():
    plane = forward(8, 64, 64, 32, 3)
    deep = Signature(
        "aten::convolution", ((8, 64, 8, 32, 32), (64, 64, 3, 3, 3), (8, 64, 8, 32, 32)), ("float16",) * 3, 2
    )
    transposed = Signature(plane.name, plane.shapes, plane.dtypes, 2, detail=(*LAST, ("transposed", 1)))
    card = model("A100-SXM4-40GB", (12, 4))  # which no program scales
    assert card.kernel(plane).band < 0.2 < card.kernel(transposed).band
    assert card.kernel(deep).band > 2 * card.kernel(transposed).band


@pytest.mark.parametrize("passes", [forward, backward])
@pytest.mark.parametrize("kernel", [1, 3])
def test_fp32_in_channels_last_is_converted_where_kernels_take_channels_first_alone(passes, kernel):
    """ResNet-50's training on a V100: 413 ms with channels last, 342 with channels first."""
    first, last = (passes(128, 256, 256, 14, kernel, dtype="float32", detail=detail) for detail in ((), LAST))
    converted = 2 * 2 * 4 * 128 * 256 * 14 * 14 / V100.gpu.memory_bandwidth_bytes_per_s * 1e9
    assert ns(V100, last) - ns(V100, first) == pytest.approx(converted * (1 if passes is forward else 2), rel=0.4)
    assert ns(A100, last) == ns(A100, first)
