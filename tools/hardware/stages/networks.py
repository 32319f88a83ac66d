"""Networks that others wrote (timm, Transformers), eager and compiled, for inference and for training."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from tools.hardware import models
from tools.hardware.context import Context, Items, Row, answered, both, failed
from tools.hardware.stages.facts import ratio
from tools.hardware.stages.profiles import summary

ORDER = 57
TITLE = "Networks: steps, memory and kernels, eager and compiled"
LIMIT_S = 900
ITEM_S = 240
OPTIONS = ("--no-data", "--assume", "1")
WARM_UP = 5
MEMORY_BAND = 0.05
HOST_BOUND = 0.9
"""A step whose launches take this part of it on the GPU's host is bound by the host."""
LONGEST_ROWS = 25
Call = Callable[[], object]


class Network(NamedTuple):
    """A network: who has it, its name there, its batch in inference and in training, and its length in tokens."""

    library: str
    name: str
    images: tuple[int, int]
    tokens: int = 0


NETWORKS = {
    "resnet50": Network("timm", "resnet50", (256, 128)),
    "vit_base": Network("timm", "vit_base_patch16_224", (256, 64)),
    "convnext_tiny": Network("timm", "convnext_tiny", (256, 64)),
    "efficientnet_b0": Network("timm", "efficientnet_b0", (256, 128)),
    "swin_tiny": Network("timm", "swin_tiny_patch4_window7_224", (256, 64)),
    "llama": Network("transformers", "LlamaConfig", (8, 4), 1024),
    "bert": Network("transformers", "BertConfig", (32, 16), 512),
    "gpt2": Network("transformers", "GPT2Config", (8, 4), 1024),
    "regnety_032": Network("timm", "regnety_032", (256, 128)),
    "mobilenetv3": Network("timm", "mobilenetv3_large_100", (256, 128)),
    "resnext50": Network("timm", "resnext50_32x4d", (256, 64)),
    "deit_small": Network("timm", "deit_small_patch16_224", (256, 128)),
    "mixer_b16": Network("timm", "mixer_b16_224", (256, 64)),
    "vgg16": Network("timm", "vgg16_bn", (128, 64)),
    "qwen2": Network("transformers", "Qwen2Config", (8, 4), 1024),
    "opt": Network("transformers", "OPTConfig", (8, 4), 1024),
}
LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
LLAMA |= {"num_key_value_heads": 4}
QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 8, "num_attention_heads": 14}
QWEN2 |= {"num_key_value_heads": 2, "vocab_size": 32000}
SIZES: dict[str, dict[str, int]] = {"LlamaConfig": LLAMA, "Qwen2Config": QWEN2}
MODES = ("eager inference", "eager training", "compiled inference", "compiled training")


def items(context: Context) -> Items:
    """A network in a mode; in 16 bits, as users run them: half weights for inference, autocast for training."""
    chosen = list(NETWORKS)[:1] if context.short else list(NETWORKS)
    return {
        f"{name}, {mode}": lambda name=name, mode=mode: measured(NETWORKS[name], mode, context)
        for mode in MODES
        for name in chosen
        if not (context.short and mode.startswith("compiled"))
    }


def measured(network: Network, mode: str, context: Context) -> dict[str, Any]:
    """Time of a step on device and host, peaks of memory, and a step's kernels by operator."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = network.library == "timm"
    began = time.perf_counter()
    step = _step(network, mode, context.short)
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - began
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    device_ms, host_ms = (ms / models.STEPS for ms in models.times_ms(step))
    found = {
        "device_ms": round(device_ms, 4),
        "host_ms": round(host_ms, 4),
        "first_s": round(first_s, 1),
        "peak allocated": torch.cuda.max_memory_allocated(),
        "peak reserved": torch.cuda.max_memory_reserved(),
    }
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    return found | _kernels(profiler)


def _kernels(profiler: Any) -> dict[str, Any]:
    """Kernels and their time by operator, and the longest by name: count and microseconds."""
    import json
    import tempfile
    from collections import defaultdict
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="hardware-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8", "replace"))["traceEvents"]
    found = summary(events)
    by_name: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            by_name[event["name"][:90]][0] += 1
            by_name[event["name"][:90]][1] += event.get("dur", 0)
    longest = sorted(by_name.items(), key=lambda pair: -pair[1][1])[:LONGEST_ROWS]
    return {
        "kernels": found["kernels"],
        "kernel_us": sum(found["microseconds by operator"].values()),
        "by operator": found["by operator"],
        "microseconds by operator": found["microseconds by operator"],
        "longest": {name: [int(count), round(us, 1)] for name, (count, us) in longest},
    }


def _step(network: Network, mode: str, short: bool) -> Call:
    import torch

    training = mode.endswith("training")
    batch = 2 if short else network.images[training]
    if network.library == "timm":
        net, call = _images(network.name, batch, training)
    else:
        net, call = _tokens(network, batch, training)
    if mode.startswith("compiled"):
        compiled = torch.compile(net)
    else:
        compiled = net
    if not training:

        def infer() -> None:
            with torch.inference_mode():
                call(compiled)

        return infer
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(compiled)
        loss.backward()
        optimizer.step()

    return train


def _images(name: str, batch: int, training: bool) -> tuple[Any, Callable[[Any], Any]]:
    """A network of timm and its loss on a batch, channels last."""
    import timm
    import torch

    net = timm.create_model(name).cuda().to(memory_format=torch.channels_last).train(training)
    size = net.pretrained_cfg["input_size"]
    x = torch.randn(batch, *size, device="cuda").contiguous(memory_format=torch.channels_last)
    target = torch.zeros(batch, dtype=torch.long, device="cuda")
    if not training:
        net, x = net.half(), x.half()
        return net, lambda module: module(x)
    return net, lambda module: torch.nn.functional.cross_entropy(module(x), target)


def _tokens(network: Network, batch: int, training: bool) -> tuple[Any, Callable[[Any], Any]]:
    """A language model of Transformers from its configuration, with random weights, and its loss on a batch."""
    import torch
    import transformers

    config = getattr(transformers, network.name)(**SIZES.get(network.name, {}))
    kind = transformers.AutoModelForMaskedLM if network.name == "BertConfig" else transformers.AutoModelForCausalLM
    net = kind.from_config(config).cuda().train(training)
    tokens = torch.randint(0, 1000, (batch, network.tokens), device="cuda")
    if not training:
        net = net.bfloat16()
        return net, lambda module: module(input_ids=tokens, use_cache=False).logits
    return net, lambda module: module(input_ids=tokens, labels=tokens, use_cache=False).loss


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Errors by mode, of speed-ups; ratios of times, memory further apart than the band, numbers of kernels."""
    found: list[Row] = []
    errors: dict[str, list[float]] = {}
    for item, real, ours in answered(native, emulated, found):
        for key in ("device_ms", "host_ms", "kernel_us", "kernels"):
            words = f"{ours[key]} ({ratio(real[key], ours[key])})"
            found.append(Row(f"{item}, {key}", f"{real[key]}", words, False))
        for key in ("peak allocated", "peak reserved"):
            off = abs(ours[key] - real[key]) > MEMORY_BAND * real[key]
            found.append(Row(f"{item}, {key}", f"{real[key]:,}", f"{ours[key]:,}", off))
        bound = "host" if real["host_ms"] >= HOST_BOUND * real["device_ms"] else "device"
        mode = item.partition(", ")[2]
        for words, key in (
            ("time in kernels", "kernel_us"),
            (f"a step that the {bound} bounds", "device_ms"),
            ("peak allocated", "peak allocated"),
        ):
            errors.setdefault(f"{mode}, {words}", []).append(ours[key] / real[key] - 1.0)
    summed = []
    for words, of in errors.items():
        told = f"{median(map(abs, of)):.1%}, bias {median(of):+.1%}, worst {max(map(abs, of)):.1%}"
        summed.append(Row(f"{words}: median error of {len(of)}", "", told, False))
    for use in ("inference", "training"):
        pairs = _speed_ups(native, emulated, use)
        if len(pairs) > 1:
            of = [ours / real - 1.0 for real, ours in pairs]
            told = f"{median(map(abs, of)):.1%}, worst {max(map(abs, of)):.1%}, Kendall's tau {_tau(pairs):.2f}"
            summed.append(Row(f"{use}, speed-up of compiling: median error of {len(of)}", "", told, False))
    return [*summed, *found]


def _speed_ups(native: dict[str, Any], emulated: dict[str, Any], use: str) -> list[tuple[float, float]]:
    """An eager step over the compiled one, natively and emulated, of the networks that ran both ways on both sides."""
    ran = {item: (real, ours) for item, real, ours in both(native, emulated) if not failed(real) and not failed(ours)}
    found = []
    for name in NETWORKS:
        eager, compiled = (ran.get(f"{name}, {how} {use}") for how in ("eager", "compiled"))
        if eager and compiled:
            real, ours = (one["device_ms"] / other["device_ms"] for one, other in zip(eager, compiled, strict=True))
            found.append((real, ours))
    return found


def _tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's tau (a) of two rankings."""
    signs = [1 if (a[0] - b[0]) * (a[1] - b[1]) > 0 else -1 for a, b in combinations(pairs, 2)]
    return sum(signs) / len(signs)
