"""Operators whose CUDA kernels allocate their results and nothing else.

Elementwise operators (PyTorch's own tag `pointwise`), views and what launches no kernel are not listed: see `silent`.
Source: the kernels of aten/src/ATen/native/cuda (Loops.cuh for what runs as one elementwise loop; Shape.cu,
Indexing.cu, ScatterGatherKernel.cu, SoftMax.cu, Loss.cu, layer_norm_kernel.cu, Normalization.cu and others): none of
them asks the allocator for anything but its results. cuBLAS's workspace is `Memory.workspace`'s.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.operators.call import OpOverload
from windtunnel.seam.torch.operators.plan import Plan

_NAMES = """
mm addmm _addmm_activation bmm baddbmm addbmm addmv mv dot vdot addr linear matmul _scaled_mm bilinear
fill zero copy _to_copy clone contiguous resolve_conj set detach alias lift_fresh
zeros_like ones_like full_like empty_like rand_like randn_like randint_like zeros ones full arange linspace logspace eye
new_zeros new_ones new_full new_empty new_empty_strided scalar_tensor tril_indices triu_indices
normal uniform random bernoulli exponential geometric log_normal cauchy rand randn randint poisson binomial
native_dropout native_dropout_backward _fill_mem_eff_dropout_mask_
_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax softmax log_softmax
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_backward
binary_cross_entropy_with_logits soft_margin_loss kl_div
_ctc_loss _ctc_loss_backward
native_layer_norm _fused_rms_norm _fused_rms_norm_backward native_batch_norm native_batch_norm_backward
cudnn_batch_norm cudnn_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training
_batch_norm_with_update _batch_norm_no_update batch_norm_backward
batch_norm_stats batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_backward_reduce
batch_norm_backward_elemt
hardtanh hardtanh_backward elu elu_backward leaky_relu leaky_relu_backward softplus softplus_backward
log_sigmoid_forward log_sigmoid_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
softshrink hardshrink hardshrink_backward softshrink_backward rrelu_with_noise prelu _prelu_kernel
_prelu_kernel_backward glu glu_backward glu_jvp celu mish mish_backward silu silu_backward logit logit_backward
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
max_unpool2d fractional_max_pool2d
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d
upsample_trilinear3d _upsample_nearest_exact2d _upsample_bilinear2d_aa upsample_nearest2d_backward
upsample_bilinear2d_backward upsample_nearest1d_backward upsample_linear1d_backward upsample_bicubic2d_backward
reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d constant_pad_nd
reflection_pad2d_backward replication_pad2d_backward reflection_pad1d_backward replication_pad1d_backward
grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d affine_grid_generator pixel_shuffle pixel_unshuffle
channel_shuffle im2col col2im
cat stack _stack flip roll rot90 repeat tril triu diag_embed diagonal_copy diagonal_scatter select_scatter slice_scatter
select_backward slice_backward diagonal_backward as_strided_scatter unfold_backward trace
embedding embedding_renorm _embedding_bag _embedding_bag_forward_only index_select index_add index_copy index_fill
gather scatter scatter_add scatter_reduce take put masked_fill masked_select_backward
searchsorted bucketize one_hot isin cross _cdist_forward _pdist_forward equal allclose
_local_scalar_dense record_stream
_amp_foreach_non_finite_check_and_unscale _amp_update_scale
_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
_fused_adam _fused_adamw _fused_sgd _fused_adagrad
_pack_padded_sequence _pad_packed_sequence _weight_norm_interface _weight_norm_interface_backward
_fft_r2c _fft_c2c view_as_real view_as_complex complex polar
_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
_conv_depthwise2d
"""

NAMES = frozenset(_NAMES.split())


def plain_name(name: str) -> str:
    """An operator's name without its namespace and without the underscore of its in-place form."""
    base = name.partition("::")[2]
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def silent(plan: Plan, func: OpOverload) -> bool:
    """Whether an operator is known to allocate its results only."""
    if not plan.kernel or torch.Tag.pointwise in func.tags:
        return True
    name = plain_name(plan.name)
    # A foreach operator runs as one kernel over lists of pointers, which travel as its arguments.
    return plan.builtin and (name in NAMES or name.startswith("_foreach_"))
