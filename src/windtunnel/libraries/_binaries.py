"""Binaries for GPUs in installed libraries, which cannot run here: who has one, what is said where it ends a run."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

MODULE = re.compile(r"[/\\](?:site|dist)-packages[/\\](.*)\.py$")
DESCRIBE = "describe what a kernel computes in a few lines (windtunnel.kernel, --kernels FILE)"
NEEDS_CUDA = (b"libcudart.so", b"libtorch_cuda.so", b"libc10_cuda.so", b"libcuda.so")
"""What such a binary is linked with."""
CPU_BUILD = "install its build for the CPU, from where this machine's PyTorch comes"


class Ended(NamedTuple):
    """An error that comes through a module, the words it has, and what to do."""

    module: str
    words: re.Pattern[str]
    sentence: str


ROWS = (
    Ended(
        "kernels/load", re.compile(""),
        "a kernel of the Hugging Face Hub is a binary for a GPU, which windtunnel neither downloads nor runs: use the "
        "model's own layers (no use_kernels, attn_implementation='sdpa'), a kernel written in Triton or Python "
        f"(LOCAL_KERNELS=NAME=FOLDER), or {DESCRIBE}",
    ),
    Ended(
        "torchvision", re.compile("operator torchvision::nms does not exist"),
        f"the installed torchvision is built for CUDA and does not load beside a PyTorch for the CPU: {CPU_BUILD}",
    ),
    Ended(
        "torchvision", re.compile("not compiled with (nvJPEG|GPU) support|(de|en)code_jpegs?_cuda"),
        "torchvision's JPEG decoder and encoder for GPUs are nvJPEG's, which windtunnel does not run: decode on the "
        "CPU and copy the images",
    ),
    Ended(
        "torchcodec", re.compile("Could not load (this library|libtorchcodec)"),
        f"the installed torchcodec is built for CUDA and does not load beside a PyTorch for the CPU: {CPU_BUILD}",
    ),
    Ended(
        "torchcodec", re.compile("(?i)cuda"),
        "torchcodec's decoder for GPUs is NVDEC's, which windtunnel does not run: decode on the CPU and copy the "
        "frames",
    ),
)  # fmt: skip


def sentence(error: BaseException) -> str:
    """What is said of it, or of what it was raised for; "" where no such binary ended the program."""
    for one in _chain(error):
        modules = list(_modules(one.__traceback__))
        for row in ROWS:
            if row.words.search(str(one)) and any(f"{name}/".startswith(f"{row.module}/") for name in modules):
                return row.sentence
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _modules(trace: TracebackType | None) -> Iterator[str]:
    """The installed modules that an error came through, as "package/module"."""
    while trace is not None:
        found = MODULE.search(trace.tb_frame.f_code.co_filename)
        if found:
            yield found[1].replace("\\", "/")
        trace = trace.tb_next


def has_one(name: str, distribution: str) -> bool:
    """Whether this library is installed and has a shared object that is linked with CUDA's libraries."""
    spec = PathFinder.find_spec(name)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    found = {file for folder in folders for file in folder.rglob("*.so")}
    if spec is not None:
        try:
            listed = metadata.files(distribution) or []
        except metadata.PackageNotFoundError:
            listed = []
        found.update(Path(str(file.locate())) for file in listed if file.suffix == ".so")
    return any(map(_needs_cuda, found))


def _needs_cuda(file: Path) -> bool:
    try:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in NEEDS_CUDA)
    except (OSError, ValueError):  # it is gone, not readable, or empty
        return False
