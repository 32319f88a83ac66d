"""Five training steps: a memory snapshot and a Kineto profile, kept compressed among the artifacts and summed up."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from tools.hardware import models
from tools.hardware.context import Context, Items, Row, answered, shown

ORDER = 40
TITLE = "Memory and kernels of five training steps"
LIMIT_S = 300
ITEM_S = 150
OPTIONS = ("--no-data", "--assume", "1")  # what is compared depends on shapes alone
MEMORY_BAND = 0.05
ENTRIES = 100_000

KINDS = {
    "aten::convolution": "convolution",
    "aten::cudnn_convolution": "convolution",
    "aten::_conv_depthwise2d": "convolution",
    "aten::convolution_backward": "convolution backward",
    "aten::native_batch_norm": "batch norm",
    "aten::cudnn_batch_norm": "batch norm",
    "aten::_batch_norm_with_update": "batch norm",
    "aten::native_batch_norm_backward": "batch norm backward",
    "aten::cudnn_batch_norm_backward": "batch norm backward",
    "aten::batch_norm_backward": "batch norm backward",
    "aten::zero_": "fill",
    "aten::fill_": "fill",
    "aten::ones_like": "fill",
    "aten::zeros_like": "fill",
    "aten::zeros": "fill",
    "aten::_to_copy": "aten::copy_",
    "aten::clone": "aten::copy_",
    "aten::relu": "relu",
    "aten::relu_": "relu",
    "aten::clamp_min": "relu",
    "aten::clamp_min_": "relu",
}
"""Operators under which the same kernel is launched, on the GPU by the innermost and emulated by the outermost."""


def items(context: Context) -> Items:
    """A snapshot and a profile of each model."""
    found: Items = {}
    for name in models.NAMES:
        found[f"{name}: memory"] = lambda name=name: memory(name, context)
        found[f"{name}: kernels"] = lambda name=name: kernels(name, context)
    return found


def memory(name: str, context: Context) -> dict[str, Any]:
    """Peaks, segments and driver calls; the snapshot goes to the artifacts."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")
    step = models.make(name, context.short)
    for _ in range(models.STEPS):
        step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    with gzip.open(_artifact(context, name, "snapshot.pickle.gz"), "wb") as file:
        pickle.dump(snapshot, file)
    sizes = sorted((segment["total_size"] for segment in snapshot["segments"]), reverse=True)
    return {
        "peak allocated": stats["allocated_bytes.all.peak"],
        "peak reserved": stats["reserved_bytes.all.peak"],
        "peak active": stats["active_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "segments": [[size, count] for size, count in sorted(Counter(sizes).items(), reverse=True)],
        "driver allocations": stats.get("num_device_alloc", 0),
    }


def kernels(name: str, context: Context) -> dict[str, Any]:
    """How many kernels each operator launched in the last step, in which order operators first did, and the copies."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = models.make(name, context.short)
    for _ in range(models.STEPS - 1):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    path = _artifact(context, name, "trace.json")
    profiler.export_chrome_trace(str(path))
    text = path.read_bytes()
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(text))
    return summary(json.loads(text.decode("utf-8", "replace"))["traceEvents"])


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Kernels by operator, of Kineto's events.

    A kernel belongs to the runtime call of the same correlation number, and that to the innermost operator (`cpu_op`)
    around it on its thread (kineto/libkineto/src/output_json.cpp).
    """
    operators = sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e.get("dur", 0)))
    calls = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    counts: Counter[str] = Counter()
    time_us: Counter[str] = Counter()
    order: dict[str, None] = {}
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for event in sorted(work, key=lambda e: e["ts"]):
        if event["cat"] == "kernel":
            call = calls.get(event.get("args", {}).get("correlation"))
            name = "unknown" if call is None else _around(call, operators)
            name = KINDS.get(name, name)
        else:
            name = event["name"].split(" (")[0]
        counts[name] += 1
        time_us[name] += round(event.get("dur", 0))
        order.setdefault(name)
    return {
        "kernels": sum(counts.values()),
        "by operator": dict(counts.most_common()),
        "microseconds by operator": dict(time_us.most_common()),
        "order": list(order),
        "names": [name[:80] for name, _ in Counter(e["name"] for e in work).most_common(40)],
    }


def _around(call: dict[str, Any], operators: list[dict[str, Any]]) -> str:
    found = ""
    for operator in operators:
        if operator["ts"] > call["ts"]:
            break
        if operator["tid"] == call["tid"] and operator["ts"] + operator.get("dur", 0) >= call["ts"]:
            found = operator["name"]
    return found or "outside an operator"


def _artifact(context: Context, name: str, suffix: str) -> Path:
    folder = Path(context.artifacts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-')}.{context.side}.{suffix}"


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Memory that is further apart than the band, and operators that launch another number of kernels."""
    found: list[Row] = []
    for item, real, ours in answered(native, emulated, found):
        if item.endswith("memory"):
            for key in ("peak allocated", "peak reserved", "peak active"):
                off = abs(ours[key] - real[key]) > MEMORY_BAND * real[key]
                found.append(Row(f"{item}, {key}", f"{real[key]:,}", f"{ours[key]:,}", off))
            for key in ("allocations", "segments"):
                if real[key] != ours[key]:
                    found.append(Row(f"{item}, {key}", shown(real[key]), shown(ours[key]), True))
        else:
            counts = real["by operator"], ours["by operator"]
            for name in sorted(counts[0].keys() | counts[1].keys()):
                one, other = (count.get(name, 0) for count in counts)
                if one != other:
                    found.append(Row(f"{item}, {name}", str(one), str(other), True))
            if real["order"] != ours["order"]:
                found.append(Row(f"{item}, order", shown(real["order"]), shown(ours["order"]), True))
    return found
