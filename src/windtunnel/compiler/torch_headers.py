"""PyTorch's headers as an emulated extension is compiled with them: a few lines ask the emulation where a tensor lives.

What is written is a copy of the installed headers with these lines replaced, in a folder that is searched first.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import UnsupportedError


class Replacement(NamedTuple):
    """A line of a header and what stands there instead."""

    old: str
    new: str


TENSOR, BODY = "ATen/core/TensorBase.h", "ATen/core/TensorBody.h"
BACKEND = "dispatchKeyToBackend(legacyExtractDispatchKey(key_set())),"
REPLACED: dict[str, tuple[Replacement, ...]] = {
    TENSOR: (
        Replacement("return impl_->device();", "return windtunnel_device_of(impl_.get());"),
        Replacement("return impl_->get_device();", "return windtunnel_device_of(impl_.get()).index();"),
        Replacement("return impl_->is_cpu();", "return windtunnel_device_of(impl_.get()).is_cpu();"),
        Replacement("return impl_->is_cuda();", "return windtunnel_device_of(impl_.get()).is_cuda();"),
        Replacement("namespace at {", "c10::Device windtunnel_device_of(const c10::TensorImpl*);\nnamespace at {"),
    ),
    BODY: (Replacement(BACKEND, f"is_cuda() && !is_sparse() ? Backend::CUDA : {BACKEND}"),),  # of `x.type().is_cuda()`
}
"""In each file, the first place where a line stands."""
SLIM = """#pragma once
#if defined(WINDTUNNEL_WHOLE_TORCH)
#include_next <{name}>
#else
#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
#endif
"""
"""What extensions use of `torch/extension.h`: all but the C++ frontend (torch::nn, torch::optim, torch::data)."""
FRONTEND = ("torch/extension.h", "torch/torch.h", "torch/all.h", "torch/script.h")
COMMON = """#include <torch/extension.h>
#ifdef __CUDA__
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#endif
"""
"""What is precompiled."""


def write(include: Path, folder: Path) -> None:
    """Write the changed headers of the PyTorch whose headers are in `include`.

    Raises:
        UnsupportedError: a line that is to be replaced is not there.
    """
    for name, replacements in REPLACED.items():
        text = (include / name).read_text(encoding="utf-8")
        for old, new in replacements:
            if old not in text:
                raise UnsupportedError(
                    f"the headers of this PyTorch have no line {old!r} in {name}, so CUDA extensions cannot be built "
                    "for emulated GPUs: use a version that windtunnel's docs name"
                )
            text = text.replace(old, new, 1)
        _write(folder / name, text)
    for name in FRONTEND:
        _write(folder / name, SLIM.format(name=name))
    _write(folder / "windtunnel_common.h", COMMON)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
