"""What machine it is: GPU, driver, versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from tools.hardware.context import Context, Items, Row, answered, shown

ORDER = 0
TITLE = "The machine"
LIMIT_S = 120
ITEM_S = 60
OPTIONS: tuple[str, ...] = ()

PROPERTIES = ("name", "major", "minor", "total_memory", "multi_processor_count")
COMPARED = ("compute_capability", "multi_processor_count", "name", "total_memory", "warp_size")


def items(context: Context) -> Items:
    """The versions, and the properties of device 0."""
    return {"versions": versions, "device": device, "driver": driver}


def versions() -> dict[str, Any]:
    """Of Python, PyTorch and what it was built with."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.distributed.is_available() and torch.version.cuda else None
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": None if nccl is None else list(nccl) if isinstance(nccl, tuple) else nccl,
    }


def device() -> dict[str, Any]:
    """What PyTorch says of the first GPU, and how many there are."""
    import torch

    found = torch.cuda.get_device_properties(0)
    facts = {name: getattr(found, name) for name in PROPERTIES}
    for name in ("warp_size", "L2_cache_size", "shared_memory_per_block", "regs_per_multiprocessor"):
        if hasattr(found, name):
            facts[name] = getattr(found, name)
    facts["compute_capability"] = [facts.pop("major"), facts.pop("minor")]
    return {**facts, "count": torch.cuda.device_count(), "free_and_total": list(torch.cuda.mem_get_info(0))}


def driver() -> str:
    """The driver's version, by nvidia-smi; "" where there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.split("\n")[0].strip()


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor()


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """The device's properties; versions may differ."""
    found: list[Row] = []
    for item, real, ours in answered(native, emulated, found):
        if item == "device":
            found += [Row(n, shown(real.get(n)), shown(ours.get(n)), real.get(n) != ours.get(n)) for n in COMPARED]
    return found
