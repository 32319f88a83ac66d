"""What PyTorch's own databases say that CUDA refuses, on an emulated GPU.

- `error_inputs` of operators, of operators on sparse tensors, of modules and of optimizers: the class of the error, and
  a pattern of its text (test_ops.py::test_errors, ::test_errors_sparse, test_modules.py::test_errors, test_optim.py).
- The types that each operator takes on CUDA: one that it does not take raises (test_ops.py::test_dtypes).
- Operators that native_functions.yaml gives no kernel for CUDA.

The databases ask for the GPU when they are imported, so they are imported under emulation, in a process of their own.
"""

from __future__ import annotations

import re
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torchgen

import windtunnel
from tools.differential.found import Found

DEVICE = "cuda:0"
GPU = "1xA100"
FEW = 3
"""How many samples of a type that CUDA takes are run."""
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Refusal:
    """A call that has to raise: `make` makes its arguments and gives the call."""

    name: str
    error: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str
    call: Callable[[], Any]


@dataclass(frozen=True)
class Choice:
    """Which entries of a database are meant: those whose names match a pattern, and of these every `step`-th."""

    patterns: tuple[str, ...] = ("*",)
    first: int = 0
    step: int = 1

    def of(self, entries: Iterable[Any], name: Callable[[Any], str]) -> list[Any]:
        """The entries of a database that are meant."""
        found = [one for one in entries if any(fnmatchcase(name(one), pattern) for pattern in self.patterns)]
        return found[self.first :: self.step]


def missed(kind: str, name: str, want: str, got: str, dtype: str = "") -> Found:
    """A call that did something else than the database says."""
    return Found(name, dtype, kind, 0, DEVICE, "refusal", f"{want} -> {got}")


def operator_errors(choice: Choice) -> Iterator[Refusal]:
    """Error inputs of operators, then of operators on sparse tensors."""
    from torch.testing._internal.common_methods_invocations import op_db

    ops = choice.of(op_db, full_name)
    for op in ops:
        if op.error_inputs_func is not None and not left_out(op, "test_errors"):
            for error in op.error_inputs(DEVICE):
                yield of_sample(full_name(op), op, error)
    for op in ops:
        for layout in LAYOUTS if op.error_inputs_sparse_func is not None else ():
            if op.supports_sparse_layout(layout):
                for error in op.error_inputs_sparse(DEVICE, layout):
                    yield of_sample(f"{full_name(op)} ({layout})", op, error)


def full_name(op: Any) -> str:
    """An operator's name in the database, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def of_sample(name: str, op: Any, error: Any) -> Refusal:
    """An operator's call; of NotImplemented Python makes an error."""
    sample = error.sample_input

    def call() -> Any:
        result = op(sample.input, *sample.args, **sample.kwargs)
        if result is NotImplemented:
            raise TypeError("NotImplemented")
        return result

    return Refusal(name, error.error_type, error.error_regex, call)


def module_errors(choice: Choice) -> Iterator[Refusal]:
    """Error inputs of modules."""
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

    for info in choice.of(module_db, lambda info: str(info.name)):
        if info.module_error_inputs_func is None:
            continue
        given = {"device": DEVICE, "dtype": torch.float32, "requires_grad": False, "training": True}
        for error in info.module_error_inputs_func(info, **given):
            made, passed = error.module_error_input.constructor_input, error.module_error_input.forward_input
            forward = error.error_on == ModuleErrorEnum.FORWARD_ERROR

            def call(info: Any = info, made: Any = made, passed: Any = passed, forward: bool = forward) -> Any:
                module = info.module_cls(*made.args, **made.kwargs)
                return module.to(DEVICE)(*passed.args, **passed.kwargs) if forward else module

            yield Refusal(info.name, error.error_type, error.error_regex, call)


def optimizer_errors(choice: Choice) -> Iterator[Refusal]:
    """Error inputs of optimizers."""
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

    for info in choice.of(optim_db, lambda info: str(info.optim_cls.__name__)):
        for error in info.optim_error_inputs_func(device=DEVICE, dtype=torch.float32):
            given = error.optimizer_error_input
            step = error.error_on == OptimizerErrorEnum.STEP_ERROR

            def call(info: Any = info, given: Any = given, step: bool = step) -> Any:
                optimizer = info.optim_cls(given.params, **given.kwargs)
                return optimizer.step() if step else optimizer

            yield Refusal(info.optim_cls.__name__, error.error_type, error.error_regex, call)


ERRORS = {"operators": operator_errors, "modules": module_errors, "optimizers": optimizer_errors}


def judged(kind: str, refusal: Refusal) -> tuple[Found | None, bool]:
    """(what a call did instead, whether the device can go on)."""
    want = f"{refusal.error} {refusal.pattern!r}"
    goes_on, raised = True, None
    try:
        got = repr(refusal.call())[:100]
    except Exception as error:  # noqa: BLE001  # which one it is, is the result
        raised, got = error, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        raised, goes_on, got = error, False, f"AcceleratorError: {str(error).partition(chr(10))[0]}"
    if raised is not None and isinstance(raised, refusal.error) and re.search(refusal.pattern, str(raised)):
        return None, goes_on
    return missed(kind, refusal.name, want, got), goes_on


def errors(kind: str, choice: Choice, skip: Iterable[str], announce: Announce) -> tuple[int, list[Found]]:
    """(calls, those that did anything else) of one kind; the emulation begins anew after an assertion of a device."""
    wrong: list[Found] = []
    done, goes_on = 0, False
    while not goes_on:
        goes_on = True
        with windtunnel.emulate(GPU), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place, refusal in enumerate(islice(ERRORS[kind](choice), done, None), done):
                done = place + 1
                call = f"{refusal.name}|{place}|{kind}"
                if call in skip:
                    continue
                announce(call)
                found, goes_on = judged(kind, refusal)
                wrong += [found] if found else []
                if not goes_on:
                    break
    return done, wrong


def types(choice: Choice, skip: Iterable[str], announce: Announce) -> tuple[int, list[Found]]:
    """(operators and types, those that are taken here and not on CUDA or the other way round).

    A type that even the CPU takes without a word of it in the database is none of CUDA's.
    """
    wrong: list[Found] = []
    number, left = 0, None
    while left is None or left:
        with windtunnel.emulate(GPU), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_dtype import all_types_and_complex_and
            from torch.testing._internal.common_methods_invocations import op_db

            every = set(all_types_and_complex_and(torch.half, torch.bfloat16, torch.bool))
            if left is None:
                left = [
                    (full_name(op), dtype)
                    for op in choice.of(op_db, full_name)
                    for dtype in sorted(every | set(op.dtypesIfCUDA), key=str)
                ]
                ops = {full_name(op): op for op in op_db}
            while left:
                name, dtype = left.pop(0)
                op, call = ops[name], f"{name}|{dtype}|types"
                if call in skip or left_out(op, "test_dtypes"):
                    continue
                announce(call)
                number += 1
                claimed = dtype in op.dtypesIfCUDA
                said = takes(op, dtype, DEVICE, FEW if claimed else None)
                if claimed != (said == "") and not (dtype not in op.dtypes and not takes(op, dtype, "cpu", None)):
                    want = "runs" if claimed else "raises"
                    wrong.append(missed("types", name, want, said or "runs", str(dtype).removeprefix("torch.")))
                try:
                    torch.cuda.synchronize()
                except torch.AcceleratorError:
                    break
    return number, wrong


def left_out(op: Any, test: str) -> bool:
    """Whether PyTorch's database lets a test of an operator fail on CUDA, or leaves it out."""
    from torch.testing._internal.common_device_type import onlyCPU
    from torch.testing._internal.opinfo.core import DecorateInfo

    if onlyCPU in op.decorators:
        return True
    rows = [row for row in op.decorators if isinstance(row, DecorateInfo) and row.test_name == test]
    active = [row for row in rows if row.is_active("TestCommon", test, "cuda", None, {})]
    return any(
        "skip" in made.__qualname__ or made is unittest.expectedFailure for row in active for made in row.decorators
    )


def takes(op: Any, dtype: torch.dtype, device: str, most: int | None) -> str:
    """ "" where an operator runs with a type, else what the first sample that raises said."""
    try:
        for sample in islice(op.sample_inputs(device, dtype, requires_grad=False), most):
            op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:  # noqa: BLE001  # any refusal counts
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return ""


def kernels(choice: Choice, skip: Iterable[str], announce: Announce) -> tuple[int, list[Found]]:
    """(operators without a kernel for CUDA, those that run on an emulated GPU all the same)."""
    wrong: list[Found] = []
    number = 0
    with windtunnel.emulate(GPU):
        for func in choice.of(without_kernel(), lambda func: str(func.name()).removeprefix("aten::")):
            call = f"{func.name()}||kernels"
            if call in skip:
                continue
            announce(call)
            number += 1
            want = f"Could not run '{func.name()}' with arguments from the 'CUDA' backend"
            try:
                got = repr(called(func))[:100]
            except Exception as error:  # noqa: BLE001  # which one it is, is the result
                got = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if not got.startswith(f"NotImplementedError: {want}"):
                wrong.append(missed("kernels", func.name(), want, got))
    return number, wrong


def without_kernel() -> Iterator[Any]:
    """Operators on dense tensors of which native_functions.yaml names a kernel for the CPU and none for CUDA."""
    yaml = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    entries = {entry[: entry.index("(")]: entry for entry in yaml.split("\n- func: ")[1:]}
    for name, entry in entries.items():
        delegate = re.search(r"^  structured_delegate: (\S+)", entry, re.MULTILINE)
        body = entries[delegate[1]] if delegate else entry
        keys = {key.strip() for line in re.findall(r"^    ([\w, ]+):", body, re.MULTILINE) for key in line.split(",")}
        made = "ufunc_inner_loop" in body or any(key.startswith("Composite") for key in keys)
        packet, _, overload = name.partition(".")
        if "CPU" in keys and "CUDA" not in keys and not made and hasattr(torch.ops.aten, packet):
            func = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if func is not None and any("Tensor" in str(argument.type) for argument in func._schema.arguments):
                yield func


PLAIN = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1, "bool": False, "str": "", "Generator": None}


def called(func: Any) -> Any:
    """What an operator gives for arguments that fit its schema by their types."""
    given = [a for a in func._schema.arguments if not a.has_default_value()]
    positional = [value_of(a.type) for a in given if not a.kwarg_only]
    return func(*positional, **{a.name: value_of(a.type) for a in given if a.kwarg_only})


def value_of(kind: Any) -> Any:
    """A value of a schema's type."""
    text = str(kind)
    if text.startswith("Optional"):
        return None
    if text.startswith("List"):
        return [value_of(kind.getElementType())]
    return torch.ones(2, 2, device=DEVICE) if text == "Tensor" else PLAIN[text]


def refusals(kind: str, choice: Choice, skip: Iterable[str], announce: Announce) -> tuple[int, list[Found]]:
    """(comparisons, differences) of one of `KINDS`."""
    if kind in ERRORS:
        return errors(kind, choice, skip, announce)
    return (types if kind == "types" else kernels)(choice, skip, announce)


KINDS = (*ERRORS, "kernels", "types")
