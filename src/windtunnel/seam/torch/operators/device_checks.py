"""Operators whose CUDA wrapper lets no tensor lie elsewhere, not even a number of the host.

They are those of native_functions.yaml (in PyTorch 2.6 and 2.13) that have a kernel for CUDA, take several tensors and
have no `device_check: NoCheck`, less those that the program does not call itself (backward formulas, helpers, cuDNN's)
and those with `out`. `embedding` is looked up by `index_select`, `stack` is a `cat`, and what `index_fill` and
`masked_scatter` give to a TensorIterator has dimensions.
"""

_NAMES = """
_fused_rms_norm
addbmm addbmm_ addmm addmm_ addmv addmv_ addr baddbmm baddbmm_ batch_norm_elemt batch_norm_gather_stats
batch_norm_gather_stats_with_counts batch_norm_update_stats bincount bmm bucketize.Tensor clamp.Tensor clamp_.Tensor
clamp_max.Tensor clamp_max_.Tensor clamp_min.Tensor clamp_min_.Tensor conv_depthwise3d dot embedding embedding_renorm_
equal fake_quantize_per_channel_affine_cachemask fractional_max_pool2d fractional_max_pool3d gather gcd gcd_
grid_sampler_2d grid_sampler_3d huber_loss igamma igamma_ igammac igammac_ index_add index_add_ index_copy index_copy_
index_fill.int_Scalar index_fill_.int_Scalar index_reduce index_reduce_ index_select isin.Tensor_Tensor lcm lcm_
linalg_cross linalg_householder_product linalg_ldl_solve linalg_lu_solve linalg_solve_triangular logaddexp logaddexp2
lu_unpack masked_scatter masked_scatter_ masked_select max_unpool2d max_unpool3d mm multi_margin_loss
multilabel_margin_loss_forward native_batch_norm native_group_norm native_layer_norm nextafter nextafter_
nll_loss2d_forward nll_loss_forward normal.Tensor_Tensor ormqr put_ quantize_per_channel
quantize_per_tensor.tensor_qparams rrelu_with_noise rrelu_with_noise_ scatter.reduce scatter.src scatter.value
scatter.value_reduce scatter_.reduce scatter_.src scatter_.value scatter_.value_reduce scatter_add scatter_add_
scatter_reduce.two scatter_reduce_.two searchsorted.Scalar searchsorted.Tensor segment_reduce slow_conv_dilated2d
slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d stack take triangular_solve triangular_solve.X vdot
"""
CHECKED = frozenset(f"aten::{name}" for name in _NAMES.split())
