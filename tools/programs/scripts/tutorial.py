"""Run one of Triton's tutorials, with each of its benchmarks at the first size alone.

    windtunnel run --gpus A100 tutorial.py 05-layer-norm.py

The tutorial compares its kernels with PyTorch's operators itself. Its benchmarks go on to sizes that take an
interpreter hours, so the list of sizes that each of them is given is cut; nothing else is changed. Results that the
tutorial only prints, for the reader to compare, are compared here.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.testing

Names = Mapping[str, Any]


def shorten(benchmark: type) -> None:
    """Let a benchmark keep the first of its sizes."""
    stock: Callable[..., None] = benchmark.__init__  # type: ignore[misc]

    def init(self: object, *args: object, x_vals: list[object], **kwargs: object) -> None:
        stock(self, *args, x_vals=x_vals[:1], **kwargs)

    benchmark.__init__ = init  # type: ignore[misc]


def vectors(names: Names) -> None:
    """The sums of the tutorial are PyTorch's."""
    assert torch.equal(names["output_triton"], names["output_torch"])


def products(names: Names) -> None:
    """The last product, of float8 operands, is PyTorch's within the tutorial's tolerance."""
    torch.testing.assert_close(names["triton_output"], names["torch_output"], atol=0.125, rtol=0)


def masks(names: Names) -> None:
    """A seed repeats its mask, another one has another, and what is kept is scaled."""
    assert torch.equal(names["output"], names["output2"])
    assert not torch.equal(names["output"], names["output3"])
    kept = names["output"] != 0
    torch.testing.assert_close(names["output"][kept], names["x"][kept] / 0.5)


CHECKS: dict[str, Callable[[Names], None]] = {
    "01-vector-add.py": vectors,
    "03-matrix-multiplication.py": products,
    "04-low-memory-dropout.py": masks,
}
"""What is left to check of a tutorial."""


def main(path: str) -> None:
    """Run the tutorial as a program, and check what it leaves behind."""
    shorten(triton.testing.Benchmark)
    names = runpy.run_path(path, run_name="__main__")
    if path in CHECKS:
        CHECKS[path](names)
    print(f"{path}: the values are PyTorch's")


if __name__ == "__main__":
    main(sys.argv[1])
