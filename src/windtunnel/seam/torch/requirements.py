"""The private names of PyTorch that the seam stands on: checked before an emulation, and one by one by `doctor`."""

from __future__ import annotations

import pkgutil
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch

from windtunnel.errors import InstallError

TESTED = ("2.6.0", "2.13.0", "2.14.1")
"""Versions of PyTorch that the seam's tests ran on."""

OLDEST = (2, 6)


class Hook(NamedTuple):
    """One private name: whether it is there, and what needs it."""

    name: str
    ok: bool
    note: str


NEEDED = {
    "every operator": """
        torch._C._ForceDispatchKeyGuard torch._C._TorchDispatchModeKey torch._C._disabled_torch_dispatch_impl
        torch._C._dispatch_tls_local_exclude_set torch._C._dispatch_tls_local_include_set torch._C._get_dispatch_mode
        torch._C._len_torch_dispatch_stack torch._C._should_allow_numbers_as_tensors torch._ops.HigherOrderOperator
        torch._C._dispatch_has_kernel torch._ops._get_packet
        torch._TorchCompileInductorWrapper torch.ops.aten._ctc_loss torch.ops.aten._ctc_loss_backward
        torch.ops.aten._cudnn_ctc_loss torch.ops.aten._fft_r2c.default._op
        torch.ops.aten._thnn_fused_gru_cell.default torch.ops.aten._thnn_fused_lstm_cell.default torch.library._impls
        torch.ops.aten.log_sigmoid_backward.default._op torch.ops.aten.log_sigmoid_forward.default._op
        torch.ops.aten.mode.default._op torch.ops.aten.mode.values._op
        torch.ops.aten.kthvalue.default._op torch.ops.aten.kthvalue.values._op
        torch.ops.aten.sort.stable._op torch.ops.aten.sort.values._op torch.ops.aten.sort.values_stable._op
        torch.ops.aten.topk.default._op torch.ops.aten.topk.values._op
        torch.nn.Module._apply torch.nn.Module._apply.__code__
        torch.nn.Module._call_impl torch.nn.Module._call_impl.__code__
        torch.utils._python_dispatch.TorchDispatchMode torch.utils._python_dispatch._get_current_dispatch_mode
        torch.utils._python_dispatch._pop_mode_temporarily
    """,
    "factories": """
        torch._C._VariableFunctionsClass torch._C._fft torch._C._get_dispatch_stack_at
        torch._C._is_torch_function_mode_enabled
    """,
    "attention": """
        torch._safe_softmax
        torch._C._can_use_cudnn_attention torch._C._can_use_flash_attention torch._C._can_use_mem_efficient_attention
        torch._C._get_cudnn_sdp_enabled torch._C._get_deterministic_algorithms_warn_only
        torch._C._get_flash_sdp_enabled torch._C._get_math_sdp_enabled torch._C._get_mem_efficient_sdp_enabled
        torch.ops.aten._scaled_dot_product_attention_math torch.ops.aten._scaled_dot_product_cudnn_attention
        torch.ops.aten._scaled_dot_product_efficient_attention
        torch.ops.aten._scaled_dot_product_flash_attention
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    """,
    "autocast": """
        torch._C.DispatchKey torch._C.DispatchKeySet torch._C._ExcludeDispatchKeyGuard
        torch._C._dispatch_get_all_op_names torch._C._dispatch_has_kernel_for_dispatch_key
        torch._C._dispatch_tls_set_dispatch_key_included torch._C._is_cached_tensor
    """,
    "CUDA graphs": """
        torch.UntypedStorage._new_with_weak_ptr torch._C.DisableTorchFunctionSubclass torch._C._CUDAGraph
        torch._C._DisableAutocast torch._C._DisableTorchDispatch torch._C._from_dlpack
        torch._C._set_grad_enabled torch._C._to_dlpack torch.cuda.graphs._cuda_isCurrentStreamCapturing
        torch.multiprocessing.reductions.StorageWeakRef
        torch.utils._python_dispatch._get_current_dispatch_mode_stack
    """,
    "torch.jit": """
        torch._C._dispatch_key_parse torch._C._get_tracing_state torch._C._set_tracing_state
        torch.jit._builtins._builtin_table torch.jit._builtins._find_builtin
        torch.jit._builtins._modules_containing_builtins
        torch.jit._script.RecursiveScriptModule torch.jit._serialization.load torch.ops.aten._convolution
        torch.ops.aten.convolution.default._schema
    """,
    "torch.compile": """
        torch._C._dynamo.guards._empty_strided_cpu torch._C._dynamo.guards._empty_strided_cuda
        torch._guards.TracingContext torch._prims_common.suggest_memory_format
        torch.ops.aten._sparse_coo_tensor_unsafe torch.utils._python_dispatch._disable_current_modes
    """,
    "data loaders": """
        torch.utils._pytree.tree_leaves
        torch.utils.data._utils.fetch._IterableDatasetFetcher torch.utils.data._utils.fetch._MapDatasetFetcher
        torch.utils.data._utils.pin_memory.pin_memory torch.utils.data._utils.pin_memory._pin_memory_loop
        torch.utils.data.dataloader._BaseDataLoaderIter
        torch.utils.data.dataloader._BaseDataLoaderIter._next_index
        torch.utils.data.dataloader._BaseDataLoaderIter._reset
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter._get_data
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter._process_data
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_put_index
        torch.utils.data.dataloader._SingleProcessDataLoaderIter
    """,
    "kernels": """
        torch._C._VariableFunctions torch._C._dispatch_keys torch._C._get_cudnn_benchmark torch._C._get_cudnn_enabled
        torch._C._get_deterministic_algorithms torch._ops.OpOverload torch.ops.aten._log_softmax
        torch.ops.aten._softmax torch.ops.aten._to_copy.default._op torch.ops.aten.addmm.default._op
        torch.ops.aten.add.Tensor._op torch.ops.aten.add_.Tensor._op torch.ops.aten.mul.Tensor._op
        torch.ops.aten.abs.default._op torch.ops.aten.abs.out._op torch.ops.aten.logical_and.out._op
        torch.ops.aten.narrow.default._op torch.ops.aten.native_group_norm.default._op torch.ops.aten._weight_norm
        torch.ops.aten.native_dropout_backward.default._op
        torch._C._dispatch_dump_table torch.ops.aten.triangular_solve.X._op torch.ops.aten.triangular_solve.default._op
        torch.ops.aten._nested_tensor_from_tensor_list.default
        torch.ops.aten._test_autograd_multiple_dispatch.fullcoverage
        torch.ops.aten._test_autograd_multiple_dispatch_view.default
        torch.ops.aten._test_autograd_multiple_dispatch_view_copy.default
        torch.ops.aten._int_mm.default._op torch.ops.aten._int_mm.out._op
        torch.ops.aten.baddbmm.default._op torch.ops.aten.bmm.default._op torch.ops.aten.convolution.default._op
        torch.ops.aten._sparse_addmm.default._op
        torch.ops.aten.convolution_backward.default._op torch.ops.aten.mm.default._op torch.ops.aten.nansum.default._op
        torch.ops.aten.native_batch_norm.default._op torch.ops.aten.native_batch_norm_backward.default._op
        torch.utils.flop_counter.flop_registry
    """,
    "moving modules without data": """
        torch._C._swap_tensor_impl torch._C._DisableTorchDispatch torch._has_compatible_shallow_copy_type
        torch.jit.ScriptModule._apply
    """,
    "DLPack": """
        torch._C.StorageBase
    """,
    "CUDA's first use": """
        torch.cuda._cached_device_count torch.cuda._cudart torch.cuda._device_count_nvml torch.cuda._exchange_device
        torch.cuda._initialized torch.cuda._is_in_bad_fork torch.cuda._lazy_init
        torch.cuda._maybe_exchange_device torch.cuda._nvml_based_avail torch.cuda._queued_calls
        torch.cuda.random._lazy_init
    """,
    "factory functions": """
        torch._C.TensorBase torch._C._len_torch_function_stack torch._C._nested.nested_tensor
        torch._C._nn._parse_to torch.overrides._get_current_function_mode_stack
        torch.utils._device.DeviceContext torch.utils._device._device_constructors
    """,
    "functions that depend on a dispatch mode": """
        torch._prims_common.wrappers._maybe_resize_out
        torch.ops.aten._linalg_eigh.default torch.ops.aten._linalg_eigvals.default torch.ops.aten._linalg_svd.default
        torch.ops.aten.linalg_eig.default._op torch.ops.aten.linalg_lstsq.default._op
    """,
    "FakeTensorMode": """
        torch._subclasses.fake_tensor.FakeTensor torch._subclasses.fake_tensor._DISPATCH_META_HANDLERS
        torch._subclasses.fake_tensor.init_gpu_context torch._subclasses.fake_tensor.run_fallback_kernel
        torch._subclasses.fake_impls.run_fallback_kernel torch.ops.aten._to_copy
    """,
    "random numbers": """
        torch._C.Generator
    """,
    "the CUDA sanitizer": """
        torch._C._activate_gpu_trace torch.cuda._gpu_trace.DeviceSynchronizationCallbacks
        torch.cuda._gpu_trace.EventCreationCallbacks torch.cuda._gpu_trace.EventDeletionCallbacks
        torch.cuda._gpu_trace.EventRecordCallbacks torch.cuda._gpu_trace.EventSynchronizationCallbacks
        torch.cuda._gpu_trace.EventWaitCallbacks torch.cuda._gpu_trace.MemoryAllocationCallbacks
        torch.cuda._gpu_trace.MemoryDeallocationCallbacks torch.cuda._gpu_trace.StreamCreationCallbacks
        torch.cuda._gpu_trace.StreamSynchronizationCallbacks
    """,
    "CTC losses": """
        torch.ops.aten._ctc_loss torch.ops.aten._ctc_loss.default torch.ops.aten._ctc_loss_backward
        torch.ops.aten._ctc_loss_backward.default torch.ops.aten._cudnn_ctc_loss torch.ops.aten._cudnn_ctc_loss.Tensor
        torch.ops.aten._cudnn_ctc_loss.default
    """,
    "cuDNN and NVTX": """
        torch._C._has_cudnn torch._use_cudnn_rnn_flatten_weight torch.cuda.nvtx._nvtx
    """,
    "moves between devices": """
        torch.nn.Module._apply torch.ops.aten._nested_view_from_buffer
    """,
    "streams of backward operators": """
        torch._C._autograd._get_sequence_nr torch.autograd.graph._engine_run_backward
    """,
    "checkpoints without data": """
        torch.serialization._get_restore_location
    """,
    "DataParallel": """
        torch._utils._flatten_dense_tensors torch._utils._reorder_tensors_as torch._utils._take_tensors
        torch._utils._unflatten_dense_tensors torch.nn.parallel._functions._streams
    """,
    "memory pools": """
        torch._C._MemPool torch.cuda.memory._MemPool
    """,
    "tensors shared by processes": """
        torch.UntypedStorage._new_shared_cuda torch.UntypedStorage._share_cuda_
    """,
    "torch.profiler": """
        torch._C._dispatch_get_registrations_for_dispatch_key torch._C._profiler._ExperimentalConfig
        torch._C._profiler._ExtraFields_Allocation torch._C._profiler._ExtraFields_PyCCall
        torch._C._profiler._TensorMetadata torch._C._profiler._set_cuda_sync_enabled_val
        torch._C._SetExcludeDispatchKeyGuard torch._C._set_dispatch_mode torch._C._unset_dispatch_mode
        torch._C._autograd.DeviceType torch._C._profiler.ProfilerActivity torch._C._profiler.ProfilerState
        torch._C._profiler._EventType torch._C._profiler._RecordFunctionFast
        torch.autograd.profiler._disable_profiler torch.autograd.profiler._enable_profiler
    """,
    "recurrent layers": """
        torch._C._get_mkldnn_enabled torch._C._set_mkldnn_enabled torch.ops.aten._cudnn_init_dropout_state
        torch.ops.aten._cudnn_rnn torch.ops.aten._local_scalar_dense
    """,
    "stacks in memory snapshots": """
        torch._C._profiler.gather_traceback torch._C._profiler.symbolize_tracebacks
    """,
    "gradients of numbers on the host, and the host's own work": """
        torch._C._current_graph_task_id
    """,
    "sums with alpha": """
        torch.ops.aten.rsub.Tensor._op torch.ops.aten.sub.Tensor._op torch.ops.aten.sub_.Tensor._op
    """,
    "bags of embeddings": """
        torch.ops.aten._embedding_bag torch.ops.aten._embedding_bag.default torch.ops.aten._embedding_bag.default._op
        torch.ops.aten._embedding_bag_forward_only torch.ops.aten._embedding_bag_forward_only.default
        torch.ops.aten._embedding_bag_forward_only.default._op
    """,
    "TF32": """
        torch._C._get_cublas_allow_tf32 torch._C._get_cudnn_allow_tf32
    """,
    "tags on storages": """
        torch.UntypedStorage._write_file torch._C.TensorBase._indices torch._C.TensorBase._values
        torch._C.TensorBase.untyped_storage torch._C._functorch.get_unwrapped
        torch._C._functorch.is_functorch_wrapped_tensor torch._C._meta_in_tls_dispatch_include
        torch._from_functional_tensor torch._subclasses.functional_tensor.FunctionalTensor
        torch._C._functorch.is_legacy_batchedtensor torch._C._vmapmode_decrement_nesting
        torch._C._vmapmode_increment_nesting torch._remove_batch_dim
    """,
    "devices of tensors": """
        torch.Tensor._make_wrapper_subclass torch._C.TensorBase._make_wrapper_subclass
        torch._C._get_default_device torch._C._set_default_tensor_type torch._tensor_str.PRINT_OPTS
        torch.nn.parameter.UninitializedTensorMixin._allowed_methods torch.ops.aten._pin_memory
    """,
    "warnings": """
        torch._ops.__file__
    """,
    "threads": """
        threading.Thread._bootstrap_inner torch._ops.OpOverloadPacket.__getattr__
        torch._ops._OpNamespace.__getattr__
    """,
}
"""What needs them, and the names; `tests/architecture/test_hooks.py` holds the seam to this list."""

NEEDED_BY_RANKS = {
    "torch.distributed": """
        torch._C._collect_all torch._C._construct_storage_from_data_pointer torch._C._current_autograd_node
        torch.distributed._functional_collectives.AsyncCollectiveTensor
        torch._C._distributed_c10d.PrefixStore
        torch._C._distributed_c10d._create_work_from_future torch.autograd.Variable._execution_engine
        torch.distributed.ProcessGroup._device_types torch.distributed.ProcessGroup._end_coalescing
        torch.distributed.ProcessGroup._has_hooks torch.distributed.ProcessGroup._register_on_completion_hook
        torch.distributed.ProcessGroup._wait_for_pending_works
        torch.distributed.ProcessGroup._start_coalescing torch.distributed.Reducer._run_allreduce_hook
        torch.distributed.Reducer._set_forward_pass_work_handle
        torch.distributed._register_comm_hook torch.distributed._verify_params_across_processes
        torch.distributed.distributed_c10d._NCCL_AVAILABLE
        torch.distributed.ProcessGroupGloo._set_default_timeout
        torch.distributed.distributed_c10d._abort_process_group
        torch.distributed.distributed_c10d._create_process_group_wrapper
        torch.distributed.distributed_c10d._new_process_group_helper torch.distributed.distributed_c10d._world
        torch.nn.parallel.DistributedDataParallel._ddp_init_helper
        torch._C._distributed_c10d torch._C._distributed_c10d.HashStore
        torch._C._distributed_c10d._register_process_group torch._C._distributed_c10d._unregister_process_group
        torch.nn.parallel.DistributedDataParallel._pre_forward
        torch.nn.parallel.DistributedDataParallel._register_builtin_comm_hook
        torch.ops._c10d_functional.wait_tensor
    """,
}
"""The same where PyTorch was built with `torch.distributed`."""


def check() -> list[Hook]:
    """Every hook; nothing is changed."""
    needed = NEEDED | (NEEDED_BY_RANKS if torch.distributed.is_available() else {})
    found = [Hook(name, _exists(name), use) for use, names in needed.items() for name in names.split()]
    storage = torch.UntypedStorage(4)
    storage._wt_probe = True  # type: ignore[attr-defined]
    unseen = getattr(torch._C, "_DisableTorchDispatch", nullcontext)  # a mode that was on before has no part in it
    with unseen():
        again = torch.empty(0, dtype=torch.float32, device="cpu").set_(storage).untyped_storage()
    kept = getattr(again, "_wt_probe", False)
    found.append(Hook("attributes of UntypedStorage are kept", bool(kept), "tags on storages"))
    return found


def tested() -> str:
    """The tested versions, as a sentence names them."""
    return f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"


def problem(version: str) -> str:
    """Why PyTorch of this version cannot be emulated on: too old, or a private name is missing; "" where it can."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST:
        return f"PyTorch {version} is older than {'.'.join(map(str, OLDEST))} (tested are {tested()})"
    lacking = [f"{hook.name} ({hook.note})" for hook in check() if not hook.ok]
    if not lacking:
        return ""
    names = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
    return f"PyTorch {version} lacks {names}, which the emulation needs (tested are {tested()})"


@cache
def require() -> None:
    """Refuse a PyTorch that the seam cannot be put into, before any of the seam's other modules is imported.

    What was found good is not looked at again: a test suite begins many emulations.

    Raises:
        InstallError: the installed PyTorch is too old, or lacks a private name that the seam needs.
    """
    found = problem(torch.__version__)
    if found:
        raise InstallError(f"{found}: {ADVICE}, or see `windtunnel doctor`")


ADVICE = f"pip install torch=={TESTED[-1]}"


def _exists(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True
