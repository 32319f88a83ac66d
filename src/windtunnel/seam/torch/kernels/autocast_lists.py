"""Which operators autocast runs in which precision on CUDA.

Source: PyTorch's notes/amp ("CUDA Op-Specific Behavior") and aten/src/ATen/autocast_mode.h,
AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Cast = Callable[[object, torch.dtype], object]
"""Casts a value, or those in a list, as a rule of autocast wants it."""

LOWER_PRECISION = (
    "cudnn_convolution", "cudnn_convolution_transpose", "_convolution",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot",
    "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "nuclear_norm", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "frobenius_norm", "rms_norm",
)  # fmt: skip
FLOAT32_RESULT = (
    "prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum",
)  # fmt: skip
APPENDED = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""Overloads that autocast calls another one for, which takes the result's type, float32, and converts nothing before
(AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE)."""
PROMOTE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip
OURS = frozenset({"aten::_cudnn_rnn"})
"""Operators that we run on CUDA's lists, and that PyTorch's build for the CPU has no kernel of autocast for."""
LOWER_ON_CPU = ("_addmm_activation", "_native_multi_head_attention", "conv1d", "conv2d", "conv3d", "mkldnn_rnn_layer")
PROMOTE_ON_CPU = ("cat", "stack", "index_copy")
"""Of the operators that only the CPU's lists have, those that do not run in float32."""
BANNED = ("binary_cross_entropy",)
BANNED_TEXT = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
