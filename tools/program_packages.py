"""Packages and checkouts that other people's programs need: what is missing is fetched, what cannot be had says why."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

MODULES = {"scikit-learn": "sklearn", "ipython": "IPython"}
UNREACHABLE = re.compile(r"connection broken by '(\w+)", re.IGNORECASE)
CPU_BUILD = "torchvision is published for CUDA builds of torch, and this is a CPU build: make programs TORCH=2.14.1"


def version_of(name: str) -> str | None:
    """The version of an installed package, None when it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(names: Iterable[str], versions: dict[str, str]) -> dict[str, str]:
    """Install packages that are missing; the reason, by name, for those that cannot be had or imported.

    The torch that is here stays: what would need another version of it cannot be had.
    """
    names = sorted(names, key=lambda name: (name != "torchvision", name))  # others cannot be imported beside a bad one
    refused: dict[str, str] = {}
    unreachable = ""
    for name in names:
        if version_of(name) is not None or unreachable or (name == "torchvision" and _cpu_build()):
            continue
        _say(f"installing {name} (once)")
        refused[name], unreachable = _pip(name, versions[name])
    vision = _vision_problem()
    for name in names:
        if name == "torchvision":
            refused[name] = refused.get(name) or vision
        elif unreachable and version_of(name) is None:
            refused[name] = unreachable
        elif not refused.get(name):
            refused[name] = _import_problem(name)
    return {name: reason for name, reason in refused.items() if reason}


def _cpu_build() -> bool:
    return "+cpu" in importlib.metadata.version("torch")


def _vision_problem() -> str:
    """Why there is no torchvision; one that cannot be imported is taken away, since others try it when they see it."""
    if version_of("torchvision") is None:
        return CPU_BUILD if _cpu_build() else "torchvision is not installed"
    problem = _import_problem("torchvision")
    if problem:
        command = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"]
        subprocess.run(command, capture_output=True, check=False)
    return problem and (CPU_BUILD if _cpu_build() else problem)


def _pip(name: str, version: str) -> tuple[str, str]:
    """Install one package; why it is not there, and why no other will be ("" each where all is well)."""
    wanted = f"{name}=={version}" if version and name != "torchvision" else name
    pin = f"torch=={importlib.metadata.version('torch')}"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(pin)
        constraints.flush()
        options = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--constraint", constraints.name]
        command = [sys.executable, "-m", "pip", "install", *options, wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return "", ""
    lost = UNREACHABLE.search(done.stderr)
    if lost:
        reason = f"pip reaches no package index ({lost[1]})"
        _say(f"{reason}; no other package is tried")
        return reason, reason
    return f"pip cannot install {wanted} beside {pin}: {_last_line(done.stderr)}", ""


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
