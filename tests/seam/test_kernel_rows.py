"""Rows of the kernel tables, each against a number worked out by hand from the source that the row names.

A row is asked with tensors on the meta device; "recorded" numbers are those of public memory snapshots (see
tests/conformance/memory/README.md). tests/architecture/test_kernel_tables.py finds rows that no test holds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from windtunnel import gpus
from windtunnel.gpus.gpu import Gpu
from windtunnel.seam.torch import kernels
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.scratch.need import Demand, Need
from windtunnel.seam.torch.tags import VERSION

A100 = gpus.parse("A100")[0]
GPU_128 = dataclasses.replace(gpus.parse("RTX4090")[0], sm_count=128, max_threads_per_sm=1536)
GPU_48 = dataclasses.replace(GPU_128, sm_count=48)
rows = pytest.mark.rows
ROWS = kernels.deviations().rows


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of which only the shape matters."""
    return torch.empty(shape, dtype=dtype, device="meta")


def need(operator: str, *args: Any, out: Any = (), gpu: Gpu = A100, **kwargs: Any) -> Need:
    """What the operator's row says; `operator` is aten's name, with an overload where it is not the default."""
    name, _, overload = operator.partition(".")
    plan = Plan(getattr(getattr(torch.ops.aten, name), overload or "default"))
    call = Call(plan, plan.func, args, kwargs)
    call.out = out
    return ROWS[name].need(Demand(call, gpu))


# ---------------------------------------------------------------------------------------------- reductions


@rows("sum")
def test_a_sum_over_rows_is_staged() -> None:
    """The gradient of RMSNorm's weight: recorded, Wedsonlin/assignment2-systems."""
    assert need("sum.dim_IntList", meta(4, 256, 1024), [0, 1], out=meta(1024), gpu=GPU_128).sizes == (8388608, 32)


@rows("any")
def test_whether_any_is_true() -> None:
    """Recorded, JasperSolt/EoR_NN: 144 bytes and a semaphore."""
    truths = meta(1966080, dtype=torch.bool)
    assert need("any", truths, out=meta(dtype=torch.bool), gpu=GPU_48).sizes == (144, 4)


@rows("argmax")
def test_a_place_is_staged_with_its_value() -> None:
    """The 144 partial results that a mean takes there (recorded), of 16 bytes each."""
    assert need("argmax", meta(1966080), out=meta(dtype=torch.long), gpu=GPU_48).sizes == (144 * 16, 4)


@rows("var")
def test_a_variance_is_staged_as_four_numbers() -> None:
    """Three blocks of 512 threads a multiprocessor, 48 of them: 144 partial results of 16 bytes."""
    assert need("var.correction", meta(1966080), None, out=meta(), gpu=GPU_48).sizes == (144 * 16, 4)


@rows("logsumexp")
def test_a_logarithm_of_sums_keeps_maxima_and_exponentials() -> None:
    """32 inputs a thread are too few to split a row over blocks, so its sum is not staged."""
    assert need("logsumexp", meta(1024, 1000), [1], out=meta(1024)).sizes == (4096, 4096000)


@rows("_foreach_norm")
def test_partial_norms_are_kept_by_tensor_and_chunk() -> None:
    """Two tensors, four chunks of 65536 elements in the longer, four bytes each."""
    assert need("_foreach_norm.Scalar", [meta(200_000), meta(10)], 2, out=[meta(), meta()]).sizes == (32,)


# ---------------------------------------------------------------------------------------------- indices


@rows("embedding_dense_backward")
def test_an_embeddings_gradient_sorts_its_indices() -> None:
    """Six lists of 4096 longs, two counts, and a row of 64 floats an index; up to 3072 indices need nothing."""
    for count, sizes in ((3072, ()), (4096, (*(32768,) * 6, 8, 8, 1048576))):
        indices = meta(count, dtype=torch.long)
        assert need("embedding_dense_backward", meta(count, 64), indices, 1000, -1, False).sizes == sizes


@rows("index_put")
def test_accumulating_sorts_the_linear_index() -> None:
    """Recorded, Wedsonlin/assignment2-systems: five lists of 4096 longs and 72191 bytes, for a table of 10000 rows."""
    table, indices = meta(10000, 64), [meta(4096, dtype=torch.long)]
    assert need("index_put", table, indices, meta(4096, 64), True, gpu=GPU_128).sizes == (*(32768,) * 5, 72191)
    assert need("index_put", table, indices, meta(4096, 64), False).sizes == ()


@rows("index")
def test_a_mask_becomes_places() -> None:
    """500 of 1000 rows: a list of 500 longs."""
    assert need("index.Tensor", meta(1000, 8), [meta(1000, dtype=torch.bool)], out=meta(500, 8)).sizes == (4000,)


@rows("masked_scatter")
def test_a_masked_scatter_sums_its_mask_up() -> None:
    """100000 longs; 112 tiles of 896 elements and 32 descriptors more, 16 bytes each, and 255."""
    mask = meta(100_000, dtype=torch.bool)
    assert need("masked_scatter", meta(100_000), mask, meta(5), out=meta(100_000)).sizes == (800_000, 144 * 16 + 255)


@rows("nonzero")
def test_nonzero_counts_and_selects() -> None:
    """Recorded, Constructor-Sun/code_location: 32555 truths on 108 multiprocessors."""
    assert need("nonzero", meta(32555, dtype=torch.bool), out=meta(5, 1, dtype=torch.long)).sizes == (4, 17663)


# ---------------------------------------------------------------------------------------------- sorting and sampling


@rows("sort")
def test_sorts_by_length_and_number_of_rows() -> None:
    """Short rows in place; one row by CUB; few by row and place; many each by a block. Tiles of 3072 pairs on A100."""
    assert need("sort", meta(16, 1000)).sizes == (8000,)
    one = 4 * 256 * 8 + 326 * 1024 + 4_000_000 + 8_000_000 + 256 + 255
    assert need("sort", meta(1_000_000)).sizes == (8_000_000, one)
    few = 4 * 256 * 8 + 53 * 1024 + 640_000 + 1_280_000 + 256 + 255
    assert need("sort", meta(16, 10_000)).sizes == (1_280_000, 1_280_000, 640_000, few)
    assert need("sort", meta(200, 5000)).sizes == (8_000_000, 12_000_000 + 255)
    assert need("sort", meta(10_000, 16), 0).sizes[:3] == (640_000, 640_000, 1_280_000)
    assert need("sort", meta(1_000_000, dtype=torch.float16)).unsure == 108 * 20 * 128 * 8


@rows("topk")
def test_topk_of_a_long_row_takes_several_blocks() -> None:
    """Recorded, Constructor-Sun/code_location: 5 of 32555 floats; shorter rows are one block's.

    From PyTorch 2.10 on a histogram stands where semaphores were.
    """
    told = 4 * 256 if VERSION >= (2, 10) else 4
    assert need("topk", meta(32555), 5).sizes == (4, told, 8, 8, 16384, 128, 128, 1279)
    assert need("topk", meta(19_999), 5).sizes == ()
    assert need("topk", meta(1000, 800), 5).sizes != ()


@rows("median")
def test_the_median_of_everything_sorts_a_copy() -> None:
    assert need("median", meta(10, 100)).sizes == (4000, 8000, 8000)
    assert need("median.dim", meta(10, 100), 1).sizes == ()
    assert need("kthvalue", meta(10, 100), 3).sizes == ()


@rows("mode")
def test_a_long_mode_widens_the_bound() -> None:
    """Thrust's buffers: as much as values and places."""
    assert need("mode", meta(3000)) == Need(unsure=3000 * 12)
    assert need("mode", meta(2000)) == Need()


@rows("_unique2")
def test_unique_sorts_a_copy_with_its_places() -> None:
    """800000 bytes sorted, two lists of places, 27 tiles of 3840 pairs; less the inverse and ten values returned."""
    out = (meta(10, dtype=torch.long), meta(100_000, dtype=torch.long), meta(0, dtype=torch.long))
    pairs = 8 * 256 * 8 + 27 * 1024 + 1_600_000 + 256 + 255
    found = need("_unique2", meta(100_000, dtype=torch.long), True, True, out=out)
    assert found.sizes == (800_000 + 1_600_000 + pairs - 800_080,)


@rows("unique_dim")
def test_unique_rows_widen_the_bound() -> None:
    assert need("unique_dim", meta(100, 4), 0).unsure == 1600 + 6400


@rows("cumsum")
def test_a_prefix_sum_of_one_row_is_cubs() -> None:
    """3 longs: recorded, Constructor-Sun/code_location. A million floats: 521 tiles of 1920, 32 more, 8 bytes each."""
    few = meta(3, dtype=torch.long)
    assert need("cumsum", few, 0, out=few).sizes == (1023,)
    assert need("cumsum", meta(1_000_000), 0, out=meta(1_000_000)).sizes == (4608 + 255,)
    assert need("cumsum", meta(1000, 1000), 1, out=meta(1000, 1000)).sizes == ()


@rows("multinomial")
def test_draws_keep_what_they_are_drawn_from() -> None:
    """One draw: exponential samples. Without replacement: the largest too. With: a copy, normalized and summed up."""
    weights = meta(64, 1000)
    assert need("multinomial", weights, 1).sizes == (256_000,)
    assert need("multinomial", weights, 10).sizes == (256_000, 64 * 10 * 4)
    assert need("multinomial", weights, 10, True).sizes == (256_000,) * 3


@rows("randperm")
def test_a_permutation_is_a_sort_of_random_keys() -> None:
    """Keys of 23 bits for 1000 numbers, sorted by one block; of 36 bits for 100000: five passes, 27 tiles of 3840."""
    assert need("randperm", 1000, out=meta(1000, dtype=torch.long)).sizes == (8000, 4000, 4000, 1)
    pairs = 5 * 256 * 8 + 27 * 1024 + 1_600_000 + 256 + 255
    assert need("randperm", 100_000, out=meta(100_000, dtype=torch.long)).sizes == (*(800_000,) * 3, pairs)


# ---------------------------------------------------------------------------------------------- normalization


@rows("native_group_norm")
def test_group_norm_keeps_two_factors_a_channel() -> None:
    images, weight = meta(8, 256, 16, 16), meta(256)
    assert need("native_group_norm", images, weight, weight, 8, 256, 256, 4, 1e-5).sizes == (8192, 8192)


@rows("native_group_norm_backward")
def test_group_norms_gradient_keeps_sums_and_factors() -> None:
    """Two sums and a factor for 8 x 256 channels, two factors for 8 x 4 groups, in float32."""
    images, weight, mean = meta(8, 256, 16, 16), meta(256), meta(8, 4)
    mask = [True, True, True]
    found = need("native_group_norm_backward", images, images, mean, mean, weight, 8, 256, 256, 4, mask, group=4)
    assert found.sizes == (8192, 8192, 8192, 128, 128)
    flat = meta(8, 256)
    found = need("native_group_norm_backward", flat, flat, mean, mean, weight, 8, 256, 1, 4, mask, group=4)
    assert found.sizes == (128, 128)


@rows("native_layer_norm_backward")
def test_layer_norms_gradient_of_very_many_short_rows() -> None:
    """131072 rows of 256 floats, 32 a block: 4096 partial sums of 256, for weight and bias; the RMS one's once."""
    many, few, weight = meta(131072, 256), meta(1024, 256), meta(256)
    mask, mean = [True, True, True], meta(131072, 1)
    expected = (4096 * 256 * 4,) if VERSION >= (2, 8) else ()
    found = need("native_layer_norm_backward", many, many, [256], mean, mean, weight, weight, mask)
    assert found.sizes == expected * 2
    assert need("native_layer_norm_backward", few, few, [256], mean, mean, weight, weight, mask).sizes == ()
    if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        assert need("_fused_rms_norm_backward", many, many, [256], mean, weight, mask[:2]).sizes == expected


# ---------------------------------------------------------------------------------------------- libraries


@rows("convolution")
def test_a_convolutions_transformed_filters() -> None:
    """Recorded, JasperSolt/EoR_NN: 32 channels to 64, 3 x 3, float32."""
    assert _convolve("convolution").sizes == (205056,)


@rows("convolution_backward")
def test_a_convolutions_gradient_transforms_them_too() -> None:
    """Recorded, JasperSolt/EoR_NN: the same layer's gradient of its input."""
    assert _convolve("convolution_backward").sizes == (204928,)


def _convolve(name: str) -> Need:
    images, filters, out = meta(1, 32, 64, 64), meta(64, 32, 3, 3), meta(1, 64, 64, 64)
    settings = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    if name == "convolution":
        return need(name, images, filters, None, out=out, **settings)
    return need(name, out, images, filters, out=images, **settings)


@rows("_scaled_dot_product_flash_attention")
def test_flash_attention_splits_the_keys_of_few_queries() -> None:
    """16 tiles for 216 places: 11 splits fill 0.81 of them, as well as any; each keeps a row's sum and 64 numbers."""
    query, keys = meta(1, 8, 128, 64, dtype=torch.float16), meta(1, 8, 8192, 64, dtype=torch.float16)
    found = need("_scaled_dot_product_flash_attention", query, keys, keys)
    assert found.sizes == (11 * 8 * 128 * 4, 11 * 8 * 128 * 64 * 4)
    many = meta(64, 8, 128, 64, dtype=torch.float16)
    assert need("_scaled_dot_product_flash_attention", many, many, many).sizes == ()


@rows("_scaled_dot_product_flash_attention_backward")
def test_flash_attentions_gradient_is_summed_up_in_float32() -> None:
    """1000 words are padded to 1024; fewer key heads expand dK and dV; a deterministic sum has five parts here."""
    half = torch.float16
    query, keys = meta(2, 12, 1000, 64, dtype=half), meta(2, 4, 1000, 64, dtype=half)
    name = "_scaled_dot_product_flash_attention_backward"
    rest = (None, None, None, None, 1000, 1000, 0.0, False, None, None)
    sums, accumulated = 2 * 12 * 1024 * 4, 2 * 12 * 1024 * 64 * 4
    assert need(name, query, query, query, query, *rest).sizes == (sums, accumulated)
    assert need(name, query, query, keys, keys, *rest).sizes == (sums, accumulated, 3_072_000, 3_072_000)
    torch.use_deterministic_algorithms(True)
    try:
        assert need(name, query, query, query, query, *rest).sizes == (sums, 5 * accumulated)
    finally:
        torch.use_deterministic_algorithms(False)


@rows("_scaled_dot_product_efficient_attention")
def test_efficient_attention_of_wide_halves_sums_up_in_float32() -> None:
    wide = meta(1, 2, 100, 256, dtype=torch.float16)
    assert need("_scaled_dot_product_efficient_attention", wide, wide, wide, None, False).sizes == (204_800,)
    assert need("_scaled_dot_product_efficient_attention", wide.float(), wide, wide, None, False).sizes == ()


@rows("_scaled_dot_product_efficient_attention_backward")
def test_efficient_attentions_gradient() -> None:
    """Recorded, cranberrii/ftcourse: 32 heads of 1000 words and 64 numbers, float32."""
    heads = meta(1, 32, 1000, 64)
    found = need("_scaled_dot_product_efficient_attention_backward", heads, heads, heads, heads, None)
    assert found.sizes == (128000, 128000, 8396800)


@rows("_scaled_dot_product_cudnn_attention_backward")
def test_cudnn_attentions_gradient_is_assumed_to_be_flash_attentions() -> None:
    """A row's sum and dQ in float32, and as much as dQ again for what is not known."""
    if "_scaled_dot_product_cudnn_attention_backward" in ROWS:
        heads = meta(2, 12, 1024, 64, dtype=torch.float16)
        found = need("_scaled_dot_product_cudnn_attention_backward", heads, heads, heads, heads)
        assert found == Need((98304, 6291456), unsure=6291456)


@rows("_cudnn_rnn")
@pytest.mark.parametrize(("gates", "mode", "printed"), [(4, 2, 17_730_560), (3, 3, 13_169_920)])
def test_a_recurrent_layer_takes_its_matrices_once_more(gates: int, mode: int, printed: int) -> None:
    """pytorch#2895: 4 layers of 320 units, inputs of 123; its 25,000 steps x texts are taken for 250 steps of 100."""
    weights = []
    for inputs in (123, 320, 320, 320):
        weights += [meta(gates * 320, inputs), meta(gates * 320, 320), meta(gates * 320), meta(gates * 320)]
    state = meta(4, 100, 320)
    cell = state if mode == 2 else None
    given = (weights, 4, None, state, cell, mode, 320, 0, 4, False, 0.0, True, False, [], None)
    assert need("_cudnn_rnn", meta(250, 100, 123), *given).sizes == (printed,)


@rows("_cudnn_rnn")
def test_a_bidirectional_layer_takes_more_for_each_step() -> None:
    """SeanNaren/deepspeech.pytorch#172: a GRU of 800 units, 326 steps of 64 texts; printed: 313,344,000."""
    weights = [meta(2400, 672), meta(2400, 800), meta(2400), meta(2400)] * 2
    given = (weights, 4, None, meta(2, 64, 800), None, 3, 800, 0, 1, False, 0.0, True, True, [], None)
    (size,) = need("_cudnn_rnn", meta(326, 64, 672), *given).sizes
    assert 0.95 < size / 313_344_000 < 1
    turned = need("_cudnn_rnn", meta(64, 326, 672).transpose(0, 1), *given).sizes
    assert turned == (326 * 64 * 672 * 4, size)


@rows("_native_multi_head_attention")
def test_the_fast_path_of_attention() -> None:
    """4 x 128 words of 256 numbers: the projections and one result; with weights two sets of scores instead."""
    words, weight, bias = meta(4, 128, 256), meta(768, 256), meta(768)
    given = (words, words, words, 256, 8, weight, bias, meta(256, 256), meta(256))
    size = 4 * 128 * 256 * 4
    assert need("_native_multi_head_attention", *given, None, False).sizes == (3 * size, size)
    assert need("_native_multi_head_attention", *given).sizes == (
        3 * size,
        4 * 8 * 128 * 128 * 4,
        4 * 8 * 128 * 128 * 4,
    )


@rows("_transformer_encoder_layer_fwd")
def test_the_fast_path_of_a_layer() -> None:
    """The inner layer's 2048 numbers a word are more than the attention's four times 256."""
    layer = {"ffn_weight_1": meta(2048, 256), "num_heads": 8}
    words = meta(4, 128, 256)
    found = need("_transformer_encoder_layer_fwd", words, 256, **layer)
    assert found.sizes == (4 * 128 * 256 * 4, 4 * 128 * 2048 * 4)
