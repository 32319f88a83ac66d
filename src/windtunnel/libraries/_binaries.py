"""What is said where a library's own binary for GPUs ended a program: it is installed, and it cannot run here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

MODULE = re.compile(r"[/\\](?:site|dist)-packages[/\\](.*)\.py$")
DESCRIBE = "describe what a kernel computes in a few lines (windtunnel.kernel, --kernels FILE)"
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
        "torchvision's JPEG decoder and encoder for GPUs are nvJPEG's, which windtunnel does not run: decode on the CPU "
        "and copy the images",
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
