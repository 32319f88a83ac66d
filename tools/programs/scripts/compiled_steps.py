"""Training steps of a model of somebody else's library, uncompiled and compiled: the same losses, and both peaks.

windtunnel run --gpus A100 compiled_steps.py llama
python compiled_steps.py llama cpu                  # uncompiled, on the CPU: losses and seconds to compare with

All random numbers are drawn on the host, before they are moved, so that all runs draw the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from step_seconds import Spent, spent, tell
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision_operators import declare_operators

STEPS = 6


class Training(NamedTuple):
    """A model and its loss, given what runs the model."""

    model: nn.Module
    loss: Callable[[Callable[..., object], str], Tensor]


class Outcome(NamedTuple):
    """The losses of all steps, the seconds so far at the end of each, and the peak in bytes of the second half."""

    losses: list[float]
    ends: list[Spent]
    peak: int


def resnet50() -> Training:
    """timm's ResNet-50."""
    return _images("resnet50", 96)


def vit() -> Training:
    """timm's small vision transformer."""
    return _images("vit_small_patch16_224", 224)


def _images(name: str, size: int) -> Training:
    if "timm" not in sys.modules:
        declare_operators()
    import timm

    images, labels = torch.randn(4, 3, size, size), torch.randint(0, 10, (4,))
    return Training(
        timm.create_model(name, num_classes=10),
        lambda run, device: cross_entropy(_tensor(run(images.to(device))), labels.to(device)),
    )


def llama() -> Training:
    """Hugging Face's Llama, from a configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, num_key_value_heads=4, **sizes))
    tokens = torch.randint(0, 1000, (4, 128))

    def loss(run: Callable[..., object], device: str) -> Tensor:
        words = tokens.to(device)
        return _tensor(getattr(run(input_ids=words, labels=words, use_cache=False), "loss", None))

    return Training(model, loss)


def mingpt() -> Training:
    """minGPT, without dropout."""
    from mingpt.model import GPT

    config = GPT.get_default_config()
    config.model_type, config.vocab_size, config.block_size = "gpt-mini", 100, 64
    config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.0
    tokens = torch.randint(0, 100, (8, 64))

    def loss(run: Callable[..., object], device: str) -> Tensor:
        words = tokens.to(device)
        results = run(words, words)
        assert isinstance(results, tuple)
        return _tensor(results[1])

    return Training(GPT(config), loss)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def train(make: Callable[[], Training], device: str, compiled: bool) -> Outcome:
    """Some steps of SGD from the same beginning."""
    torch.manual_seed(0)
    training = make()
    model = training.model.to(device)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    losses, ends = [], []
    for step in range(STEPS):
        if step == STEPS // 2 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        loss = training.loss(run, device)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ends.append(spent())
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return Outcome(losses, ends, peak)


def main() -> None:
    """One model; on a GPU both ways."""
    make = {"resnet50": resnet50, "vit": vit, "llama": llama, "mingpt": mingpt}[sys.argv[1]]
    if sys.argv[2:] == ["cpu"]:
        outcome = train(make, "cpu", False)
    else:
        eager, outcome = train(make, "cuda", False), train(make, "cuda", True)
        print(f"uncompiled: peak {eager.peak >> 10:,} KiB")
        print(f"compiled:   peak {outcome.peak >> 10:,} KiB, {outcome.peak / eager.peak:.3f} of that")
        assert all(math.isclose(*pair, rel_tol=1e-4) for pair in zip(eager.losses, outcome.losses, strict=True))
    for loss in outcome.losses:
        print(f"loss {loss:.6f}")
    tell(outcome.ends)


if __name__ == "__main__":
    main()
