"""How to emulate: the options of a session, which `windtunnel run`, pytest and programs give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CHOICES = {
    "clock": ("virtual", "real"),
    "async_copies": ("late", "clock", "stale"),
    "host_time": ("modelled", "measured"),
    "compat": ("", "d2l"),
    "check_kernels": ("sample", "all", "none"),
    "cuda_compiler": ("clang", "nvcc"),
}
"""The values of the options that have few."""


@dataclass(frozen=True)
class Options:
    """How to emulate. The names are those of `windtunnel run`'s options.

    - `gpus`: the GPUs, such as "2xV100", "V100:2" or "A100,H100".
    - `cuda_version`: "X.Y", of the driver and of the program. None: the program runs with the version that the
      installed PyTorch is built with for these GPUs (without PyTorch: 11.2, the documents' version, or the first one
      that supports the GPUs), and the driver (nvidia-smi's header) is of the newest that the GPUs and PyTorch need.
    - `seed`: seeds the generators of Python, NumPy and the framework at the start; None leaves them alone.
    - `clock`: "virtual" (the program reads the modelled time) or "real".
    - `async_copies`: "late", "clock" or "stale": when asynchronous copies take effect.
    - `host_time`: "modelled" or "measured"; measured host time is multiplied by `host_factor`.
    - `no_data`: keep shapes and memory but no values; `assume` is what the program gets when it reads a value.
    - `share_gpus`: let several ranks of a group use one GPU, which NCCL refuses.
    - `stacks`: record whole Python stacks, not only the program's line.
    - `memory_history`: record the allocators' history from the start.
    - `compat`: "d2l" gives the answers of the frameworks' versions that the book was printed with (JAX's `x.device()`).
    - `network`: what connects the nodes of ranks on several: a name of the catalogue, a file that describes one, or
      what nccl-tests printed. None: what systems of such GPUs usually have.
    - `jitter`: the seed by which the GPUs of one model differ, as those of a cluster do; None: they do not.
    - `curves`: a file of `windtunnel calibrate`, used for GPUs of its generation.
    - `host`: the host that issues the work: "cloud-vm", "desktop-5ghz" and the like, or a file that describes one.
    - `host_memory_limit`: the bytes of this machine's memory that PyTorch's emulated tensors may take in each process
      (or a string such as "8GiB"); None is what the machine has. Beyond it they raise `HostMemoryError`.
    - `overcommit`: serve requests beyond the GPUs' memory, to measure what a program that does not fit needs.
    - `stop_after`: end the process right after this many steps of the program's first PyTorch optimizer.
    - `stuck_after`: the seconds that a rank may give its devices no work while others wait for it; after that it is
      reported as stuck.
    - `check_kernels`: which launches of the program's own CUDA kernels are checked: "sample" (the first ones of each
      shape whole, later ones by a sample of their blocks), "all" or "none".
    - `cuda_compiler`: what makes PTX of the program's CUDA C++: "clang", or "nvcc": the user's own.
    - `without`: libraries, such as "d2l", that are missing here and shall be missing for the program too, though there
      are stand-ins for them. Only `windtunnel run`, pytest and notebooks offer those.
    - `kernels`: Python files that describe operators (`windtunnel.kernel`), which run when the emulation begins.
    - `faults`: the faults to inject, such as "die:rank=1,step=3" (docs/faults.md).
    """

    gpus: str = "2"
    cuda_version: str | None = None
    seed: int | None = None
    clock: str = "virtual"
    async_copies: str = "late"
    host_time: str = "modelled"
    host_factor: float = 1.0
    no_data: bool = False
    assume: bool | int | float | None = None
    share_gpus: bool = False
    stacks: bool = False
    memory_history: bool = False
    compat: str = ""
    curves: str | None = None
    host: str | None = None
    network: str | None = None
    jitter: int | None = None
    host_memory_limit: int | None = None
    overcommit: bool = False
    stop_after: int | None = None
    stuck_after: float = 60.0
    check_kernels: Literal["all", "sample", "none"] = "sample"
    cuda_compiler: Literal["clang", "nvcc"] = "clang"
    faults: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
