"""The exam's programs on this machine's GPU, as KernelBench's own timing runs them: a row of times a program.

    python -m tools.exam.measure FOLDER OUT.json

FOLDER holds a folder of programs for each edition, named by its commit (`423217d/1_name.py`). It needs PyTorch alone.
A row names program, hash, GPU, driver, versions, and times with their spread; its kernels by name and microseconds tell
where they go.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

CLEARED = (32, 1024, 1024)
WARM_UP, TRIALS = 3, 10
CLEARING = ("423217d",)
"""Editions that write 256 MB before each call."""


def main(folder: str, output: str, seconds: str = "1000") -> None:
    """Time every program; the file is written after each."""
    import subprocess

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "rows": [],
    }
    ends = time.monotonic() + float(seconds)
    for path in sorted(Path(folder).glob("*/*.py"), key=lambda path: (path.parent.name, int(path.name.split("_")[0]))):
        if time.monotonic() > ends:
            break
        text = path.read_text("utf-8")
        row: dict[str, Any] = {
            "edition": path.parent.name,
            "program": path.stem,
            "hash": hashlib.sha256(text.encode()).hexdigest()[:16],
        }
        try:
            row |= measured(path.stem, text, path.parent.name in CLEARING)
        except Exception as error:  # noqa: BLE001  # a program that fails is a row too
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        gc.collect()
        torch.cuda.empty_cache()
        found["rows"].append(row)
        Path(output).write_text(json.dumps(found, indent=1), "utf-8")


def measured(name: str, text: str, clears: bool) -> dict[str, Any]:
    """Milliseconds between events, the host's microseconds of a call, the kernels of one call."""
    names: dict[str, Any] = {"__name__": name}
    torch.manual_seed(42)
    with torch.no_grad():
        exec(compile(text, f"{name}.py", "exec"), names)
        with torch.device("cuda"):
            inputs = [one.cuda() if isinstance(one, torch.Tensor) else one for one in names["get_inputs"]()]
            model = names["Model"](*names["get_init_inputs"]()).cuda()
        spent = []
        for trial in range(WARM_UP + TRIALS):
            if clears:
                torch.empty(CLEARED, dtype=torch.int64, device="cuda").fill_(42)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            if trial >= WARM_UP:
                spent.append(start.elapsed_time(end))
        begun = time.perf_counter()
        model(*inputs)
        host_us = 1e6 * (time.perf_counter() - begun)
        torch.cuda.synchronize()
        kernels = _kernels(lambda: model(*inputs))
    return {
        "median_ms": median(spent),
        "mean_ms": mean(spent),
        "least_ms": min(spent),
        "most_ms": max(spent),
        "host_us": round(host_us, 1),
        "kernels": kernels,
    }


def _kernels(call: Any) -> list[Any]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [
        [event.key[:160], event.count, round(event.self_device_time_total, 2)]
        for event in profiler.key_averages()
        if event.self_device_time_total
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
