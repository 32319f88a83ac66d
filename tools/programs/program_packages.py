"""Packages and checkouts that other people's programs need: what is missing is fetched, what cannot be had says why."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

MODULES = {
    "ema-pytorch": "ema_pytorch",
    "huggingface-hub": "huggingface_hub",
    "ipython": "IPython",
    "opencv-python-headless": "cv2",
    "pyro-ppl": "pyro",
    "pytorch-ignite": "ignite",
    "pytorch-metric-learning": "pytorch_metric_learning",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
UNREACHABLE = re.compile(r"connection broken by '(\w+)", re.IGNORECASE)
NO_INDEX = "pip reaches no package index"
CPU_BUILD = "{name} is published for CUDA builds of torch, and this is a CPU build: make programs TORCH=2.14.1"
OF_CUDA_BUILDS = ("torchvision", "triton")
PARTS = Path(sys.prefix) / "parts"
PYTHON_PART = "torchvision-python"
"""torchvision without its operators, which its builds for CUDA do not load beside a CPU build of torch."""
APART = (
    PYTHON_PART,
    "denoising-diffusion-pytorch",
    "open-clip-torch",
    "pytorch-fid",
    "segmentation-models-pytorch",
    "timm",
    "ultralytics",
    "vit-pytorch",
)
"""torchvision's Python part and what needs it, each in a folder of its own that only the rows see that name it.

Other libraries try these packages when they find them, and break where torchvision is missing or has no operators. They
are installed without what they depend on, which rows name."""


def folders_of(names: Iterable[str]) -> list[str]:
    """The folders to import the packages from that are not among the environment's own."""
    return [str(PARTS / name) for name in names if name in APART]


def version_of(name: str) -> str | None:
    """The version of an installed package, None when it is missing."""
    if name in APART:
        known = "torchvision" if name == PYTHON_PART else name
        found = importlib.metadata.distributions(name=known, path=folders_of([name]))
        return next((one.version for one in found), None)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(wanted: Iterable[Sequence[str]], versions: dict[str, str]) -> dict[str, str]:
    """Install what programs need and lack; the reason, by name, for the packages that cannot be had or imported.

    The torch that is here stays: what would need another version of it cannot be had. A package that cannot be
    imported is taken away again, since others try it when they see it; what only programs need that lack another one
    is not installed.

    Args:
        wanted: the packages of each program.
        versions: the version of each package, "" for any.
    """
    refused: dict[str, str] = {}
    for packages in wanted:
        for name in sorted(packages, key=lambda name: name not in OF_CUDA_BUILDS):  # timm fails beside a bad one
            if name not in refused:
                refused[name] = _provide(name, versions[name])
            if refused[name].startswith(NO_INDEX):
                missing = {other for others in wanted for other in others if version_of(other) is None}
                return {name: reason for name, reason in refused.items() if reason} | dict.fromkeys(
                    missing, refused[name]
                )
            if refused[name]:
                break
    return {name: reason for name, reason in refused.items() if reason}


def _provide(name: str, version: str) -> str:
    """Install a package if it is missing, import it, take it away if that fails; why there is none, "" where it is."""
    if version_of(name) is None:
        if name in OF_CUDA_BUILDS and _cpu_build():
            return CPU_BUILD.format(name=name)
        _say(f"installing {name} (once)")
        problem = _pip(name, version)
        if problem:
            return problem
    problem = "" if name in APART else _import_problem(name)
    if problem:
        command = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", name]
        subprocess.run(command, capture_output=True, check=False)
    return CPU_BUILD.format(name=name) if problem and name in OF_CUDA_BUILDS and _cpu_build() else problem


def _cpu_build() -> bool:
    return "+cpu" in importlib.metadata.version("torch")


def _pip(name: str, version: str) -> str:
    """Install one package; why it is not there, "" where it is."""
    wanted = f"{name}=={version}" if version and name != "torchvision" else name
    torch = importlib.metadata.version("torch")
    pin = f"torch=={torch}"
    own = ["--no-deps", "--target", *folders_of([name])] if name in APART else []
    if name == PYTHON_PART:  # torch 2.N goes with torchvision 0.(N + 15)
        wanted = f"torchvision==0.{int(torch.split('.')[1]) + 15}.*"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(pin)
        constraints.flush()
        options = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--constraint", constraints.name, *own]
        command = [sys.executable, "-m", "pip", "install", *options, wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    lost = UNREACHABLE.search(done.stderr)
    if lost:
        _say(f"{NO_INDEX} ({lost[1]}); no other package is tried")
        return f"{NO_INDEX} ({lost[1]})"
    return f"pip cannot install {wanted} beside {pin}: {_last_line(done.stderr)}"


def _import_problem(name: str) -> str:
    code = f"import {MODULES.get(name, name)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{name} cannot be imported: {_last_line(done.stderr)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1] if lines else "no message"


def clone(repositories: Iterable[str], sources: Path) -> dict[str, str]:
    """Clone what `sources` lacks of "owner/name" from GitHub, newest commit alone; the reason for those that fail."""
    refused = {}
    for repository in repositories:
        folder = sources / repository.split("/")[1]
        if folder.is_dir():
            continue
        _say(f"cloning {repository} into {folder} (once)")
        command = ["git", "clone", "--quiet", "--depth", "1", f"https://github.com/{repository}", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            refused[repository] = "git is not installed"
            continue
        if done.returncode:
            refused[repository] = f"git cannot clone {repository}: {_last_line(done.stderr)}"
    return refused


def commit_of(folder: Path) -> str:
    """The commit of a checkout, in seven digits; empty where there is none to be read."""
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
