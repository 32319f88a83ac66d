"""Every operator of PyTorch's database: layout, type and memory of its results, the errors that it raises, by operator.

The memory is the caching allocator's: what a call leaves and its peak, forward and backward, so that every workspace
and temporary tensor counts. Errors are the first lines for the database's own wrong arguments, and for the types that
the device has no kernel of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tools.hardware.context import Context, Items, Row, answered, shown

ORDER = 45
TITLE = "Operators: layouts, memory and errors"
LIMIT_S = 240
ITEM_S = 120
OPTIONS: tuple[str, ...] = ()
PARTS = 24
SAMPLES = 4
TEXT = 300
REFUSED = ("bool", "uint8", "int64", "float16", "bfloat16", "complex64", "float8_e4m3fn", "uint16")


def items(context: Context) -> Items:
    """The database in parts, so that an operator that breaks the context costs only what comes after it there."""
    return {f"part {part:02d}": partial(measured, part, context.short) for part in range(2 if context.short else PARTS)}


def measured(part: int, short: bool) -> dict[str, Any]:
    """By operator: rows of its samples, its errors, and refusals by type."""
    import sys
    from types import ModuleType

    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ModuleNotFoundError:  # PyTorch's database imports it for a base class that nothing here uses
            stub = ModuleType("expecttest")
            stub.TestCase = type("TestCase", (__import__("unittest").TestCase,), {})  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stub
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
        False  # the database forbids it afterwards
    )
    from torch.testing._internal.common_methods_invocations import op_db

    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # cuBLAS's workspace is of no operator
    found: dict[str, Any] = {}
    for op in op_db[part :: 200 if short else PARTS]:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)
        found[name] = {
            "samples": list(_tried(lambda op=op: _samples(op))),
            "errors": list(_tried(lambda op=op: _errors(op))),
            "refused": dict(_tried(lambda op=op: _refused(op))),
        }
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            found[name]["broke the context"] = _line(error)
            break
    return found


def _tried(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """What an iterator gives until it raises, which the database's makers of arguments may."""
    try:
        yield from make()
    except Exception as error:  # noqa: BLE001  # whatever an operator's maker of samples raises is its result
        yield ("no further", _line(error))


def _samples(op: Any) -> Iterator[Any]:
    import itertools

    import torch

    trained = torch.float32 in op.supported_backward_dtypes("cuda")
    samples = op.sample_inputs("cuda", torch.float32, requires_grad=trained)
    for sample in itertools.islice(samples, SAMPLES):
        yield _call(op, sample, trained)


def _call(op: Any, sample: Any, trained: bool) -> dict[str, Any]:
    import gc

    import torch
    from torch.utils._pytree import tree_leaves

    row: dict[str, Any] = {"arguments": _words((sample.input, sample.args, sample.kwargs))}
    op(sample.input, *sample.args, **sample.kwargs)  # the library's own first use
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    calls = torch.cuda.memory_stats()["allocation.all.allocated"]
    out = op(sample.input, *sample.args, **sample.kwargs)
    torch.cuda.synchronize()
    row |= {
        "results": _words(out),
        "kept": torch.cuda.memory_allocated() - before,
        "peak": torch.cuda.max_memory_allocated() - before,
        "allocations": torch.cuda.memory_stats()["allocation.all.allocated"] - calls,
    }
    results = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad]
    if trained and results:
        gradients = [torch.ones_like(x) for x in results]
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        try:
            torch.autograd.backward(results, gradients)
        except RuntimeError as error:
            row["backward"] = _line(error)
            return row
        torch.cuda.synchronize()
        row["backward peak"] = torch.cuda.max_memory_allocated() - before
        leaves = [x for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]
        row["gradients"] = [_words(x.grad) for x in leaves if x.is_leaf and x.grad is not None]
        for x in leaves:
            x.grad = None
    return row


def _errors(op: Any) -> Iterator[Any]:
    if op.error_inputs_func is None:
        return
    for wrong in op.error_inputs("cuda"):
        sample = wrong.sample_input
        yield [_words((sample.input, sample.args, sample.kwargs)), _outcome(op, sample)]


def _refused(op: Any) -> Iterator[tuple[str, str]]:
    import torch

    supported = op.supported_dtypes("cuda")
    for name in REFUSED:
        dtype = getattr(torch, name)
        if dtype in supported:
            continue
        try:
            sample = next(iter(op.sample_inputs("cpu", torch.float32)))
            sample = sample.transform(
                lambda x, t=dtype: (
                    x.to("cuda", t if x.is_floating_point() else x.dtype) if isinstance(x, torch.Tensor) else x
                )
            )
        except Exception:  # noqa: BLE001  # there is no such sample
            continue
        yield name, _outcome(op, sample)


def _outcome(op: Any, sample: Any) -> str:
    import torch

    try:
        op(sample.input, *sample.args, **sample.kwargs)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # any error is the answer
        return _line(error)
    return "no error"


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:TEXT]


def _words(value: Any) -> Any:
    """Tensors as type, shape and strides; what else there is as text."""
    import torch

    if isinstance(value, torch.Tensor):
        strides = list(value.stride()) if value.layout == torch.strided else str(value.layout)
        where = "" if value.device.type == "cuda" else f" {value.device.type}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} {strides}{where}"
    if isinstance(value, (tuple, list)):
        return [_words(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _words(one) for key, one in value.items()}
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)[:80].split(" at 0x")[0]


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """What differs, by operator; numbers of what is equal."""
    found: list[Row] = []
    equal = {"samples": 0, "errors": 0, "refused": 0}
    for _, real, ours in answered(native, emulated, found):
        for name in real:
            for kind in equal:
                for label, one, other in _pairs(real[name][kind], ours.get(name, {}).get(kind)):
                    if one == other:
                        equal[kind] += 1
                    else:
                        found.append(Row(f"{name}, {kind} {label}", shown(one, 300), shown(other, 300), True))
    return [Row(f"{kind} that are equal", "", str(count), False) for kind, count in equal.items() if count] + found


def _pairs(real: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(real, dict):
        yield from ((key, value, (ours or {}).get(key)) for key, value in real.items())
        return
    for place, value in enumerate(real):
        other = ours[place] if ours and place < len(ours) else None
        if isinstance(value, dict) and isinstance(other, dict):
            for key in value:
                yield f"{place} {key} ({shown(value['arguments'], 80)})", value[key], other.get(key)
        else:
            yield str(place), value, other
