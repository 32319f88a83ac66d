"""Facts about operators that their schemas do not tell. Tables, so that nothing branches on an operator's name.

Sources: the CUDA kernels' own behaviour as PyTorch documents it (notes/cuda, native_functions.yaml, ATen/native/cuda).
"""

from __future__ import annotations

EXEMPT = frozenset(
    {
        "aten::copy_",
        "aten::_to_copy",
        "aten::set_",
        "aten::is_pinned",
        "aten::record_stream",
        "aten::pin_memory",
        "aten::_pin_memory",
        "aten::_has_same_storage_numel",
        "aten::is_same_size",
        "aten::_local_scalar_dense",
        "aten::_foreach_copy_",
        "aten::resize_as_",
        "aten::_shallow_copy_and_detach",
        "aten::shallow_copy_and_detach",
        "aten::_pack_padded_sequence",
        "aten::_ctc_loss",
        "aten::_ctc_loss_backward",
        "aten::_use_cudnn_ctc_loss",
        "aten::view_as",
        "aten::expand_as",
    }
)
"""Operators whose tensors may lie on several devices."""

HOST_ARGUMENTS: dict[str, frozenset[str]] = {
    "aten::fill_": frozenset({"self"}),  # its value is fetched
    "aten::index": frozenset({"indices"}),
    "aten::_unsafe_index": frozenset({"indices"}),
    "aten::index_put": frozenset({"indices", "values"}),
    "aten::index_put_": frozenset({"indices", "values"}),
    "aten::_index_put_impl_": frozenset({"indices", "values"}),
    "aten::_unsafe_index_put": frozenset({"indices"}),
    "aten::_fused_adam_": frozenset({"state_steps", "grad_scale", "found_inf"}),
    "aten::_fused_adamw_": frozenset({"state_steps", "grad_scale", "found_inf"}),
    "aten::repeat_interleave": frozenset({"repeats"}),
    "aten::tensor_split": frozenset({"tensor_indices_or_sections"}),
    "aten::_pad_packed_sequence": frozenset({"batch_sizes"}),
    "aten::_pack_padded_sequence_backward": frozenset({"batch_sizes"}),
    "aten::_nested_from_padded": frozenset({"cpu_nested_shape_example"}),
    **dict.fromkeys(
        ("aten::_nested_view_from_buffer", "aten::_nested_view_from_buffer_copy"),
        frozenset({"nested_size", "nested_strides", "offsets"}),
    ),
    **dict.fromkeys(
        ("aten::_foreach_addcdiv", "aten::_foreach_addcdiv_", "aten::_foreach_addcmul", "aten::_foreach_addcmul_"),
        frozenset({"scalars"}),
    ),
    "aten::_thnn_fused_lstm_cell": frozenset(),
}
"""Arguments that CUDA kernels accept on the host, whatever their size."""

SYNCHRONIZING = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::_unique",
        "aten::_unique2",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::unique_dim_consecutive",
        "aten::bincount",
        "aten::equal",
        "aten::is_nonzero",
        "aten::linalg_eig",
        "aten::linalg_lstsq",
        "aten::linalg_matrix_exp",
        "aten::_linalg_eigvals",
        "aten::_linalg_eigh",
        "aten::_linalg_svd",
        "aten::geqrf",
        "aten::_coalesce",
    }
)
"""Operators whose CUDA kernels make the host wait for a result."""

MASKABLE = frozenset(
    {
        "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
    }
)  # fmt: skip
"""Operators that do so when an index is a mask: the host must know how many elements it selects."""

NO_KERNEL = frozenset(
    {
        "aten::_unsafe_view",
        "aten::_reshape_alias",
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::empty_permuted",
        "aten::set_",
        "aten::resize_",
        "aten::resize_as_",
        "aten::requires_grad_",
        "aten::record_stream",
        "aten::is_pinned",
        "aten::is_same_size",
        "aten::_has_same_storage_numel",
        "aten::sym_size",
        "aten::sym_stride",
        "aten::sym_numel",
        "aten::sym_storage_offset",
        "aten::_sparse_coo_tensor_with_dims_and_tensors",
        "aten::_sparse_coo_tensor_unsafe",
        "aten::_coalesced_",
        "aten::_nnz",
        "aten::sparse_dim",
        "aten::dense_dim",
    }
)
"""Operators that launch nothing."""

WRITES_ONLY = frozenset(
    {
        "aten::fill_",
        "aten::zero_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::log_normal_",
        "aten::cauchy_",
        "aten::copy_",
        "aten::_foreach_zero_",
        "aten::_foreach_copy_",
        "aten::zeros_like",
        "aten::ones_like",
        "aten::full_like",
        "aten::empty_like",
        "aten::rand_like",
        "aten::randn_like",
        "aten::randint_like",
        "aten::new_zeros",
        "aten::new_ones",
        "aten::new_full",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
"""Operators that do not read the memory of their first argument."""

HIDDEN_WRITES: dict[str, tuple[tuple[int, ...], int]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::batch_norm": ((3, 4), 5),
    "aten::_cudnn_rnn": ((15,), 12),
}
"""Positions of arguments that an operator writes against its schema (running statistics, random states), and of the
flag that says whether it does (`training`)."""

FILLED_FIRST = frozenset({"aten::constant_pad_nd"})
"""Operators that fill the whole result before they write it (ATen/native/PadNd.cpp)."""

GATHERS = frozenset(
    {
        "aten::index",
        "aten::_unsafe_index",
        "aten::index_select",
        "aten::gather",
        "aten::embedding",
        "aten::take",
        "aten::masked_select",
    }
)
"""Operators that read of their first argument only as much as they give back."""

SCATTERS = frozenset(
    {
        "aten::scatter_",
        "aten::scatter_add_",
        "aten::index_add_",
        "aten::index_copy_",
        "aten::index_put_",
        "aten::_index_put_impl_",
    }
)
"""Operators that read and write of their first argument only as much as their last one has."""

ASSERTING = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::index_select",
    "aten::index_add",
    "aten::index_add_",
    "aten::index_copy",
    "aten::index_copy_",
    "aten::index_fill",
    "aten::index_fill_",
    "aten::gather",
    "aten::scatter",
    "aten::scatter_",
    "aten::scatter_add",
    "aten::scatter_add_",
    "aten::scatter_reduce",
    "aten::scatter_reduce_",
    "aten::take",
    "aten::embedding",
    "aten::embedding_dense_backward",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::nll_loss_forward",
    "aten::nll_loss2d_forward",
    "aten::binary_cross_entropy",
    "aten::multinomial",
    "aten::bernoulli",
    "aten::bernoulli_",
    "aten::poisson",
    "aten::repeat_interleave",
    "aten::max_unpool2d",
    "aten::max_unpool3d",
)
"""Operators whose CUDA kernels assert that indices, targets or probabilities are in range, where the CPU's raise."""

MATH = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::addmv",
        "aten::mv",
        "aten::dot",
        "aten::_addmm_activation",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_convolution",
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
    }
)
"""Operators whose cost depends on PyTorch's TF32 switches."""

RECURRENT_PASSES = {"aten::_cudnn_rnn": 1, "aten::_cudnn_rnn_backward": 2}
"""Recurrent operators, and how many products each matrix takes part in for a step."""

HEADS = {
    f"aten::_scaled_dot_product_{kernel}_attention{suffix}": first
    for kernel in ("flash", "efficient", "cudnn")
    for suffix, first in (("", 0), ("_backward", 1))
}
"""Operators of attention, and the position of the query, before key and value, which may have fewer heads."""

TOKENS_FIRST = {
    "aten::_flash_attention_forward": ("_scaled_dot_product_flash_attention", 0, 3),
    "aten::_flash_attention_backward": ("_scaled_dot_product_flash_attention_backward", 1, 6),
    "aten::_efficient_attention_forward": ("_scaled_dot_product_efficient_attention", 0, 4),
    "aten::_efficient_attention_backward": ("_scaled_dot_product_efficient_attention_backward", 1, 6),
}
"""The kernels below them, whose tensors are (batch, tokens, heads, width): the operator that counts alike with heads
before tokens, the position of the query, and that of the texts' beginnings, None where all texts are equally long."""

BLAS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::addbmm",
        "aten::addmv",
        "aten::mv",
        "aten::dot",
        "aten::vdot",
        "aten::linear",
        "aten::matmul",
        "aten::_addmm_activation",
        "aten::_scaled_mm",
    }
)
"""Operators whose CUDA kernels ask for a cuBLAS handle, and with it for its workspace."""

CUBLAS, CUDNN, CUFFT, CUSOLVER = "cuBLAS", "cuDNN", "cuFFT", "cuSOLVER"
CONVOLUTIONS = frozenset({"aten::convolution", "aten::convolution_backward"})
ONE_MATRIX = frozenset(
    {
        "aten::_linalg_det",
        "aten::_linalg_solve_ex",
        "aten::geqrf",
        "aten::linalg_inv_ex",
        "aten::linalg_lu_factor_ex",
    }
)
"""Decompositions that cuSOLVER computes for one matrix; cuBLAS or MAGMA may for a batch."""
LIBRARIES = {
    **dict.fromkeys(BLAS, CUBLAS),
    "aten::linalg_solve_triangular": CUBLAS,
    "aten::triangular_solve": CUBLAS,
    **dict.fromkeys(CONVOLUTIONS, CUDNN),
    "aten::_cudnn_rnn": CUDNN,
    "aten::_cudnn_rnn_backward": CUDNN,
    **dict.fromkeys(ONE_MATRIX, CUSOLVER),
    "aten::_cholesky_solve_helper": CUSOLVER,
    "aten::_linalg_eigh": CUSOLVER,
    "aten::_linalg_svd": CUSOLVER,
    "aten::cholesky": CUSOLVER,
    "aten::cholesky_inverse": CUSOLVER,
    "aten::linalg_cholesky_ex": CUSOLVER,
    "aten::linalg_householder_product": CUSOLVER,
    "aten::linalg_ldl_factor_ex": CUSOLVER,
    "aten::linalg_ldl_solve": CUSOLVER,
    "aten::linalg_lstsq": CUSOLVER,
    "aten::linalg_qr": CUSOLVER,
    "aten::ormqr": CUSOLVER,
}
"""Whose handle an operator takes (native/cuda/Blas.cpp, native/cudnn/, native/cuda/linalg/BatchLinearAlgebra.cpp)."""

ORDERED = frozenset(
    {
        "aten::add",
        "aten::add_",
        "aten::cat",
        "aten::clone",
        "aten::constant_pad_nd",
        "aten::copy_",
        "aten::div",
        "aten::_fused_rms_norm",
        "aten::mul",
        "aten::mul_",
        "aten::native_group_norm",
        "aten::native_layer_norm",
        "aten::_softmax",
        "aten::sub",
        "aten::_to_copy",
    }
)
"""Operators whose time depends on whether their operands lie in memory in the order of the result, and that see others.

Norms and softmax make a contiguous copy of such an operand (`expect_contiguous`, `contiguous` in ATen/native/cuda).
"""

LAID_OUT = frozenset(
    {
        "aten::_adaptive_avg_pool2d",
        "aten::_batch_norm_with_update",
        "aten::avg_pool2d",
        "aten::avg_pool2d_backward",
        "aten::batch_norm_backward",
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::mean",
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        "aten::sum",
        "aten::upsample_bilinear2d",
        "aten::upsample_nearest2d",
    }
)
"""Operators that have other kernels for images whose channels come last: the same shapes have two prices."""

ATTRIBUTES = frozenset(
    {
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_convolution",
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::avg_pool2d",
        "aten::avg_pool2d_backward",
        "aten::_fft_c2c",
        "aten::_fft_c2r",
        "aten::_fft_r2c",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
        "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_flash_attention_backward",
        "aten::_efficient_attention_backward",
        "aten::upsample_nearest2d",
        "aten::upsample_bilinear2d",
        "aten::cat",
        "aten::sum",
        "aten::mean",
        "aten::_softmax",
        "aten::_log_softmax",
        "aten::native_group_norm",
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
    }
)
"""Operators whose cost depends on more than the shapes of their tensors."""

BUILT_IN = frozenset({"aten", "_c10d_functional", "c10d", "c10d_functional", "inductor", "rngprims"})
"""Operator namespaces of PyTorch's C++ kernels; those of `prims` are Python, which must see the physical device."""
