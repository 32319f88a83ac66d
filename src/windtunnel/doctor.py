"""What this machine has and lacks: one line a thing, with the command that fixes it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Literal, NamedTuple

import psutil
import pynvml

from windtunnel import launch, libraries
from windtunnel.compiler import clang
from windtunnel.errors import UnsupportedError
from windtunnel.seam.signatures import TESTED
from windtunnel.version import __version__, installed

State = Literal["ok", "absent", "problem"]
FRAMEWORKS = {"jax": "jax", "tensorflow": "tensorflow", "mxnet": ""}
REACHED = "import sys; print(any(type(finder).__name__ == 'ImportHook' for finder in sys.meta_path))"


EXTRAS = {
    "torch": (
        ("torch", "numpy", "safetensors", "tensorboard", "matplotlib", "jinja2"),
        "PyTorch programs, the Trainer",
    ),
    "report": (("jinja2",), "reports as .html"),
    "compile": (("triton",), "torch.compile compiles, and Triton kernels run"),
    "cuda": (("llvmlite", "numpy", "ziglang"), "CUDA kernels of your own are compiled, run, checked and priced"),
    "jax": (("jax", "flax", "optax", "safetensors"), "JAX programs, and the Trainer of JAX"),
    "tensorflow": (("tensorflow-cpu", "tf-keras", "safetensors"), "TensorFlow programs, and the Trainer of TensorFlow"),
    "mxnet": (("mxnet", "numpy", "safetensors"), "MXNet programs, and the Trainer of MXNet"),
    "xla": (
        ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12"),
        "jax.jit compiled by XLA for the emulated GPU",
    ),
    "dask": (("joblib", "distributed"), "plans on a Dask cluster"),
    "ray": (("joblib", "ray"), "plans on a Ray cluster"),
}
"""By the name of an extra for users: its packages, and what it adds."""


class Line(NamedTuple):
    """One thing that was looked at. "absent" is no fault: windtunnel stands in, or the thing is optional."""

    subject: str
    state: State
    text: str
    advice: str = ""


def diagnose() -> Iterator[Line]:
    """Look at everything that windtunnel needs or stands in for; nothing is changed and nothing is raised."""
    yield _python()
    yield Line("windtunnel", "ok", __version__)
    yield from _torch()
    for name, extra in FRAMEWORKS.items():
        yield _framework(name, extra)
    yield _triton()
    yield _cuda_kernels()
    for name in libraries.names():
        yield _library(name)
    yield from _extras()
    yield _processors()
    yield _memory()
    yield _temporary_folder()
    yield _reach()
    yield from _real_gpus()


def _python() -> Line:
    return Line("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Iterator[Line]:
    version = installed("torch")
    if version is None:
        yield Line("PyTorch", "problem", "not installed", 'pip install "windtunnel[torch]"')
        return
    try:
        from windtunnel.seam.torch import requirements
    except ImportError as error:
        yield Line(
            "PyTorch", "problem", f"{version} cannot be imported: {error}", "pip install --force-reinstall torch"
        )
        return
    found = requirements.problem(version)
    if found:
        yield Line("PyTorch", "problem", found, requirements.ADVICE)
    else:
        known = (
            "tested"
            if version.split("+")[0] in requirements.TESTED
            else f"not one of those tested ({requirements.tested()})"
        )
        yield Line("PyTorch", "ok", f"{version} ({_build()}), {known}")
    for name, ok, note in requirements.check():
        yield Line("PyTorch hook", "ok" if ok else "problem", f"{name}: {note}", "" if ok else requirements.ADVICE)


def _build() -> str:
    """CPU or CUDA build, from the torch that `hooks.check` imported."""
    version = sys.modules["torch.version"]
    cuda = getattr(version, "cuda", None)
    return f"CUDA {cuda} build" if cuda else "CPU build"


def _framework(name: str, extra: str) -> Line:
    version = installed(name) or installed(f"{name}-cpu")
    if version is None:
        return Line(name, "absent", "not installed", f'pip install "windtunnel[{extra}]"' if extra else "")
    return Line(name, "ok", f"{version}; tested: {TESTED[name]}")


def _triton() -> Line:
    version = installed("triton")
    if version is None or installed("torch") is None:
        return Line("Triton", "absent", "not installed", 'pip install "windtunnel[compile]"')
    try:
        from windtunnel.seam.torch.triton.interpreter import Interpreter

        Interpreter().check()
    except (ImportError, UnsupportedError) as error:
        return Line("Triton", "problem", str(error), f'pip install "{TESTED["triton"]}"')
    return Line("Triton", "ok", f"{version}; tested: {TESTED['triton']}")


def _cuda_kernels() -> Line:
    found = clang.find()
    version = installed("llvmlite")
    if found is None or version is None:
        missing = "clang" if found is None else "llvmlite"
        return Line("CUDA C++", "absent", f"{missing} is not installed; custom kernels are refused", clang.MISSING)
    return Line("CUDA C++", "ok", f"clang {found.version} ({' '.join(found.command)}), llvmlite {version}")


def _library(name: str) -> Line:
    found = libraries.find(name)
    version = installed(name)
    if version is not None and not libraries.gives_way(name):
        return Line(name, "ok", version)
    if version is not None:
        text = f"{version}, whose kernels are a binary for GPUs; `windtunnel run` has a stand-in for part of {found}"
        return Line(name, "ok", text)
    return Line(name, "absent", f"not installed; `windtunnel run` has a stand-in for part of {found}")


def _extras() -> Iterator[Line]:
    for name, (packages, adds) in EXTRAS.items():
        missing = [package for package in packages if installed(package) is None]
        if missing:
            text = f"would add: {adds} (missing: {', '.join(missing)})"
            yield Line(f"extra {name}", "absent", text, f'pip install "windtunnel[{name}]"')
        else:
            yield Line(f"extra {name}", "ok", f"is there: {adds}")


def _processors() -> Line:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{usable} usable of {os.cpu_count()}"
    limit = os.environ.get("OMP_NUM_THREADS")
    return Line("CPU threads", "ok", text + (f", OMP_NUM_THREADS={limit}" if limit else ""))


def _memory() -> Line:
    memory = psutil.virtual_memory()
    return Line("memory", "ok", f"{memory.available / 2**30:.1f} GiB available of {memory.total / 2**30:.1f} GiB")


def _temporary_folder() -> Line:
    try:
        with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
            return Line("temporary files", "ok", os.path.dirname(folder))
    except OSError as error:
        return Line("temporary files", "problem", f"no folder is writable ({error.strerror})", "set TMPDIR to one")


def _reach() -> Line:
    """Whether a Python that we start gets our import hook: some set-ups keep `sitecustomize` out."""
    variables = launch.environment({}, None, os.environ)
    done = subprocess.run([sys.executable, "-c", REACHED], env=variables, capture_output=True, text=True, check=False)
    if done.stdout.strip() == "True":
        return Line("child processes", "ok", "a Python started by `windtunnel run` is reached")
    reason = done.stderr.strip().splitlines()[-1:] or ["PYTHONPATH is not honoured here"]
    return Line("child processes", "problem", f"a Python started by `windtunnel run` is not reached: {reason[0]}")


def _real_gpus() -> Iterator[Line]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Line("NVIDIA driver", "absent", f"none ({error}); emulated GPUs need none")
        yield Line("GPUs", "absent", "none; `windtunnel run --gpus 2` emulates two")
        return
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        yield Line("NVIDIA driver", "ok", f"{driver}, CUDA up to {cuda // 1000}.{cuda % 1000 // 10}")
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        yield Line("GPUs", "ok", f"{len(names)} real: {', '.join(names)}; hidden while emulating")
        torch = sys.modules.get("torch.version")
        if names and torch is not None and getattr(torch, "cuda", None) is None:
            advice = "pip install --force-reinstall torch, which is a CUDA build on Linux"
            yield Line("PyTorch build", "problem", "a CPU build cannot use these GPUs", advice)
    except pynvml.NVMLError as error:
        yield Line("GPUs", "problem", f"the driver does not answer: {error}", "see what the real nvidia-smi says")
    finally:
        pynvml.nvmlShutdown()
    if shutil.which("nvidia-smi") is None:
        yield Line("nvidia-smi", "problem", "not on PATH", "add the driver's programs to PATH")
