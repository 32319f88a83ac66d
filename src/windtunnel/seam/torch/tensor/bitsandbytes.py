"""bitsandbytes: its operators are Python over a library of CUDA's, whose place its own library for the CPU takes.

The wheel has both, and imports without a GPU. Each function of the library for CUDA that its operators call becomes one
kernel, with the values of the kernel that bitsandbytes registers for the CPU, so its tables of 8 and 4 bits are exact.
What its Python does around them (choosing between a fused product and a dequantized weight, looking for outliers) runs
unchanged on the device. Managed memory, in which paged optimizers keep their state, is memory of the host here; it does
not count as PyTorch's on a GPU either.

Source: bitsandbytes 0.50, backends/cuda/ops.py and functional.py; the CUDA sources launch one kernel for each function.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from math import prod
from types import ModuleType

import torch

from windtunnel.operators.described import Description, add
from windtunnel.seam.patching import Patch

Tensor = torch.Tensor
Values = Callable[..., object]


def _product_flops(first: Tensor, second: Tensor, shape: tuple[int, ...], *others: object, **options: object) -> int:
    return 2 * first.numel() * int(shape[0])


def _integer_flops(first: Tensor, second: Tensor, *others: object, **options: object) -> int:
    return 2 * first.numel() * int(second.shape[0])


def _into(name: str) -> Values:
    """The operator's values, written into `out` where that is given."""

    def values(*args: object, **options: object) -> object:
        out = options.pop("out", None)
        operator = getattr(torch.ops.bitsandbytes, name).default
        count = len(operator._schema.arguments)
        if out is None and len(args) > count:  # the last of the overload with `out` is no keyword
            *args, out = args  # type: ignore[assignment]
        made = operator(*args, **options)
        if not isinstance(out, Tensor):
            return made
        out.copy_(made)
        return None

    return values


GEMM = (
    "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor"
)
DESCRIBED = (
    *(
        Description(f"bitsandbytes::{name}", _into(name), like)
        for name, like in (
            ("quantize_blockwise", "aten::_to_copy"),
            ("dequantize_blockwise", "aten::_to_copy"),
            ("quantize_4bit", "aten::_to_copy"),
            ("dequantize_4bit", "aten::_to_copy"),
            ("int8_mm_dequant", "aten::mul"),
        )
    ),
    Description("bitsandbytes::gemv_4bit", _into("gemv_4bit"), "aten::_weight_int4pack_mm", _product_flops),
    Description("bitsandbytes::int8_linear_matmul", _into("int8_linear_matmul"), "aten::_int_mm", _integer_flops),
    *(
        Description(f"bitsandbytes::{name}", _into(name), "aten::_fused_adam_", host=True)
        for name in ("optimizer_update_8bit_blockwise", "optimizer_update_32bit")
    ),
)


def operators(module: ModuleType) -> list[Patch]:
    """Of bitsandbytes._ops: describe what calls the library directly, and define what stands for one function of it."""
    for description in DESCRIBED:
        add(description)
    if not hasattr(torch.ops.bitsandbytes, "gemm_4bit_kernel"):
        library = torch.library.Library("bitsandbytes", "FRAGMENT")
        KEPT.append(library)
        library.define(f"gemm_4bit_kernel{GEMM}")
        library.define("int8_vector_quant_kernel(Tensor A, float threshold) -> (Tensor, Tensor)")
        for name, values in (("gemm_4bit_kernel", _gemm), ("int8_vector_quant_kernel", _rows_in_8_bits)):
            library.impl(name, values, "CompositeExplicitAutograd")
    add(Description("bitsandbytes::gemm_4bit_kernel", _gemm, "aten::_weight_int4pack_mm", _product_flops))
    add(Description("bitsandbytes::int8_vectorwise_quant", in_8_bits, parts=True))
    add(Description("bitsandbytes::int8_vector_quant_kernel", _rows_in_8_bits, "aten::_to_copy"))
    return []


KEPT: list[torch.library.Library] = []


def _gemm(*args: object, **options: object) -> object:
    return torch.ops.bitsandbytes.gemm_4bit.default(*args, **options)


def _rows_in_8_bits(A: Tensor, threshold: float) -> tuple[Tensor, Tensor]:  # noqa: N803  # its name there
    """The rows in int8 and their largest numbers, outliers aside."""
    wide = A.float()
    if threshold > 0.0:
        wide = wide.masked_fill(A.abs() >= threshold, 0.0)
    stats = wide.abs().amax(-1)
    numbers = torch.round(wide * (127.0 / stats.unsqueeze(-1))).nan_to_num(0.0)
    return numbers.to(torch.int8), stats.reshape(-1)


def kernels(module: ModuleType) -> list[Patch]:
    """Of bitsandbytes.backends.cuda.ops: functions in whose place one operator stands, where they have tensors."""
    ops = torch.ops.bitsandbytes

    def dequantize_4bit(A, absmax, blocksize, quant_type, dtype, out):  # type: ignore[no-untyped-def]  # noqa: N803
        ops.dequantize_4bit.out(A, absmax, blocksize, quant_type, out.shape, dtype, out=out)

    def dequantize_blockwise(A, absmax, code, blocksize, dtype, out):  # type: ignore[no-untyped-def]  # noqa: N803
        ops.dequantize_blockwise.out(A, absmax, code, blocksize, dtype, out=out)

    own = {
        "_dequantize_4bit_impl": dequantize_4bit,
        "_dequantize_blockwise_impl": dequantize_blockwise,
        "_gemm_4bit_kernel_impl": ops.gemm_4bit_kernel,
    }
    return [Patch(module, name, value) for name, value in own.items() if hasattr(module, name)]


def in_8_bits(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: N803
    """bitsandbytes::int8_vectorwise_quant as its CUDA kernel's Python has it."""
    if A.dtype is not torch.float16:
        raise ValueError(f"A must be float16, got {A.dtype}")
    if threshold < 0.0:
        raise ValueError("threshold must be non-negative")
    columns = None
    if threshold > 0.0:
        outliers = A.abs() >= threshold
        if outliers.any():
            columns = torch.argwhere(outliers.any(dim=0)).view(-1)
        else:
            columns = torch.empty(0, device=A.device, dtype=torch.int64)
    rows, stats = torch.ops.bitsandbytes.int8_vector_quant_kernel(A, threshold)
    if columns is not None and A.numel() > A.shape[-1]:
        rows[:, columns] = 0
    return rows, stats, columns


def functions(module: ModuleType) -> list[Patch]:
    """Of bitsandbytes.functional: managed memory, which the processes' own memory stands for."""

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
        memory = mmap.mmap(-1, max(1, dtype.itemsize * prod(shape)))
        out = torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)
        out.is_paged = True  # type: ignore[attr-defined]
        out.page_deviceid = device.index if device is not None else 0  # type: ignore[attr-defined]
        return out

    def prefetch_tensor(A: Tensor, to_cpu: bool = False) -> None:  # noqa: N803
        assert A.is_paged, "Only paged tensors can be prefetched!"  # type: ignore[attr-defined]

    def fill(A: Tensor, value: float, device: object = None, prefetch: bool = True) -> None:  # noqa: N803
        A.fill_(value)

    own = {"get_paged": get_paged, "prefetch_tensor": prefetch_tensor, "fill": fill}
    return [Patch(module, name, value) for name, value in own.items() if hasattr(module, name)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "bitsandbytes._ops": operators,
    "bitsandbytes.backends.cuda.ops": kernels,
    "bitsandbytes.functional": functions,
}
"""What is replaced in modules that the program may import later, by their names."""
