"""Why no kernel runs `scaled_dot_product_attention`: PyTorch warns of the first condition that each does not meet.

Sources: `select_sdp_backend` and the checks before it in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, with
those of native/transformers/sdp_utils_cpp.h. Of nested tensors only what holds for dense ones as well is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch

from windtunnel.seam.torch.kernels import attention_choice as choice
from windtunnel.seam.torch.kernels.attention_choice import Problem
from windtunnel.seam.torch.plans.halves import HALVES
from windtunnel.seam.torch.tags import VERSION

C = torch._C
Reasons = Iterator[str | None]
CPP_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
}  # fmt: skip
NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"}
RUNS_ON = "{} only supports gpu architectures in the range [sm{}, sm121]. Attempting to run on a sm {}.{} gpu."
BROADCAST = (
    " instead. To broadcast dense inputs, try using unsqueeze and expand_to before passing them into the kernel."
)


def none_available(problem: Problem) -> RuntimeError:
    """PyTorch's error where plain math is switched off, after it has warned why no other kernel is used."""
    switches = C._get_flash_sdp_enabled, C._get_mem_efficient_sdp_enabled, C._get_cudnn_sdp_enabled
    if not any(enabled() for enabled in switches):
        return RuntimeError("No viable backend for scaled_dot_product_attention was found.")
    for heading, reasons in (
        ("Memory efficient kernel not used because:", _efficient),
        ("Flash attention kernel not used because:", _flash),
        ("cuDNN attention kernel not used because:", _cudnn),
    ):
        warnings.warn(heading, stacklevel=1)
        reason = first(reasons, problem)
        if reason:
            warnings.warn(reason, stacklevel=1)
    return RuntimeError("No available kernel. Aborting execution.")


def first(reasons: Callable[[Problem], Reasons], problem: Problem) -> str | None:
    """The first condition that is not met, in PyTorch's words."""
    return next((reason for reason in reasons(problem) if reason is not None), None)


def _efficient(problem: Problem) -> Reasons:
    yield None if C._get_mem_efficient_sdp_enabled() else "Memory Efficient attention has been runtime disabled."
    yield _hardware(problem, "Mem Efficient Attention", (5, 0))
    yield _dimensions(problem)
    alignment = choice.alignment(problem)
    query, key, value = _widths(problem)
    if query != key or any(width % alignment or not width for width in (query, value)):
        yield (
            f"Mem efficient attention requires last dimension of inputs to be divisible by {alignment}. "
            f"Got Query.size(-1): {query}, Key.size(-1): {key}, Value.size(-1): {value} instead."
        )
    if not problem.nested:
        yield _lengths(problem)
        yield _strides(problem)
        yield from _heads(problem, shared=VERSION >= choice.EFFICIENT_SHARES_HEADS)
    new = problem.gpu.compute_capability >= (8, 0)
    yield _types(problem, (torch.float16, torch.float32, *HALVES[1:]) if new else (torch.float16, torch.float32))


def _flash(problem: Problem) -> Reasons:
    yield None if C._get_flash_sdp_enabled() else "Flash attention has been runtime disabled."
    yield _dimensions(problem)
    yield None if problem.mask is None else "Flash Attention does not support non-null attn_mask."
    query, key, value = _widths(problem)
    if not (query == key == value <= 256):
        yield (
            "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. "
            f"Got Query.size(-1): {query}, Key.size(-1): {key}, Value.size(-1): {value} instead."
        )
    yield _hardware(problem, "Flash attention", (8, 0))
    major, minor = problem.gpu.compute_capability
    if choice.trains_narrow(problem) and (192 < query <= 224 or (query > 224 and problem.dropout)):
        yield (
            "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
            "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the range[sm86, sm89]."
            f"Attempting to run with dropout set to: {problem.dropout:g}and head_dim: {query} on a sm {major}.{minor} "
            "gpu."
        )
    lengths = problem.query.shape[2], problem.key.shape[2]
    if problem.causal and not problem.nested and lengths[0] != lengths[1]:
        yield (
            "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got seqlen_q: "
            f"{lengths[0]} seqlen_k: {lengths[1]}. If you would like to use causal attention with non-square masks, "
            "please see CausalAttnMask."
        )
    yield _low_precision(problem)
    if not problem.nested:
        yield from _heads(problem, shared=True)
        yield _lengths(problem)
        yield _strides(problem)


def _cudnn(problem: Problem) -> Reasons:
    yield None if C._get_cudnn_sdp_enabled() else "cuDNN attention has been runtime disabled."
    yield "Experimental cuDNN SDPA nested tensor support is not enabled." if problem.nested else None
    yield _dimensions(problem)
    if torch.are_deterministic_algorithms_enabled() and not C._get_deterministic_algorithms_warn_only():
        yield "cuDNN SDPA is not deterministic."
    yield _low_precision(problem)
    mask = problem.mask
    if mask is not None and not choice.mask_fits_cudnn(problem):
        fits = not mask.requires_grad and mask.dim() not in (2, 4)
        yield (
            "Please use the following attn mask shapes: 2d - ({Q_seq_len, 1}  x {KV_seq_len, 1}); "
            "4d - ({Batch, 1} x {Num_heads, 1} x {Q_seq_len, 1}  x {KV_seq_len, 1})"
            if fits
            else ""
        )
    yield _hardware(problem, "cuDNN MHA", (8, 0))
    yield _lengths(problem)
    yield _strides(problem)
    yield from _heads(problem, shared=True)
    query, _, value = _widths(problem)
    limit = choice.cudnn_width(problem)
    yield f"head_dim should be no more than {limit}" if max(query, value) > limit else None
    yield "head_dim should be a multiple of 8" if query % 8 or value % 8 else None
    yield "cudnn SDPA does not support key/value sequence length 1." if problem.key.shape[2] == 1 else None
    if problem.query.shape[2] == 1 and problem.dropout:
        yield "cudnn SDPA does not support query sequence length 1 with dropout."


# ---------------------------------------------------------------------------------------------- conditions of several


def _tensors(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return problem.query, problem.key, problem.value


def _widths(problem: Problem) -> tuple[int, ...]:
    return tuple(int(tensor.shape[-1]) for tensor in _tensors(problem))


def _hardware(problem: Problem, kernel: str, least: tuple[int, int]) -> str | None:
    found = problem.gpu.compute_capability
    return None if least <= found <= choice.NEWEST else RUNS_ON.format(kernel, "".join(map(str, least)), *found)


def _dimensions(problem: Problem) -> str | None:
    query, key, value = (tensor.dim() for tensor in _tensors(problem))
    if query == key == value == 4:
        return None
    return (
        "All fused kernels requires query, key and value to be 4 dimensional, but got Query dim: "
        f"{query}, Key dim: {key}, Value dim: {value} instead."
    )


def _lengths(problem: Problem) -> str | None:
    if problem.query.shape[2] and problem.key.shape[2]:
        return None
    return "All fused kernels do not support zero seq_len_q or seq_len_kv."


def _strides(problem: Problem) -> str | None:
    query, key, value = (tensor.stride(-1) for tensor in _tensors(problem))
    mask = problem.mask
    if (query == key == value == 1 or problem.query.shape[-1] == 1) and (mask is None or mask.stride(-1) == 1):
        return None
    said = (
        "All fused kernels require the last dimension of the input to have stride 1. "
        f"Got Query.stride(-1): {query}, Key.stride(-1): {key}, Value.stride(-1): {value}"
    )
    if mask is not None:
        said += f", Attn_mask.stride(-1): {mask.stride(-1)} (GPU backends require attn_mask's last dimension to have "
        said += "stride 1 while the CPU does not)."
    return said


def _heads(problem: Problem, shared: bool) -> Reasons:
    query, key, value = (list(tensor.shape) for tensor in _tensors(problem))
    if len({sizes[0] for sizes in (query, key, value)}) > 1:
        yield (
            "For dense inputs, both fused kernels require query, key and value to have the same batch_size. "
            f"Query.sizes(): {query}, Key.sizes(): {key}, Value.sizes(): {value}{BROADCAST}"
        )
    if problem.gqa and shared:
        if key[1] != value[1]:
            yield (
                "Both fused kernels require key and value to have the same num_heads and batch_size but got: "
                f"Key sizes: {key}, Value sizes: {value}, Query sizes: {query} instead."
            )
        elif query[1] % key[1]:
            yield (
                "The number of heads in key/value must divide number of heads in query."
                f"Got input Key sizes(): {key[1]}, Value sizes(): {value[1]}, Query sizes(): {query[1]} instead."
            )
    elif len({sizes[1] for sizes in (query, key, value)}) > 1:
        yield (
            "For dense input, both fused kernels require query, key and value to have the same num_heads. "
            f"Query.sizes(): {query}, Key sizes(): {key}, Value sizes(): {value}{BROADCAST}"
        )


def _low_precision(problem: Problem) -> str | None:
    return _types(problem, HALVES if problem.gpu.compute_capability >= (8, 0) else HALVES[:1])


def _types(problem: Problem, allowed: tuple[torch.dtype, ...]) -> str | None:
    found = [tensor.dtype for tensor in _tensors(problem)]
    if len(set(found)) == 1 and found[0] in allowed:
        return None
    query, key, value = (CPP_TYPES.get(dtype, str(dtype).removeprefix("torch.")) for dtype in found)
    return (
        f"Expected query, key and value to all be of dtype: {{{', '.join(NAMES[dtype] for dtype in allowed)}}}. Got "
        f"Query dtype: {query}, Key dtype: {key}, and Value dtype: {value} instead."
    )
