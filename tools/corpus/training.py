"""Training programs of the reference models, run without data on an emulated GPU, and what the published runs reached.

A program is what a person would write: it makes its model on `cuda`, trains a few steps and reads the clock. The
configurations are those in the published runs' logs (github.com/lambdal/deeplearning-benchmark, pytorch/results, and
the scripts of NVIDIA's DeepLearningExamples that they ran): precision, optimizer, clipping, sequence lengths.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tools.corpus import steps, tables
from tools.corpus.models import BertForQuestions, Gpt2, ResNet50, TransformerXL
from windtunnel import gpus

KEYS = {"RTX 3090": "RTX3090"}
OLD_SOFTWARE = "torch 1.4"
CUDA = {OLD_SOFTWARE: "10.2", "pytorch-21.03": "11.2"}
WARM_UP = 2
Take = Callable[[], None]


def resnet50(batch: int, kind: str, layout: torch.memory_format = torch.contiguous_format) -> tuple[Take, int]:
    """ResNet-50 v1.5 on synthetic images, SGD with momentum, AMP with a constant loss scale: (a step, its images)."""
    model, labels = ResNet50().to(memory_format=layout), torch.zeros(batch, dtype=torch.long)
    images = torch.zeros(batch, 3, 224, 224).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=False)
    half = kind == "fp16"
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=1 << 30, enabled=half)

    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, batch


def bert(layers: int, hidden: int, heads: int) -> Callable[[int, str], tuple[Take, int]]:
    """BERT on SQuAD: sequences of 384, FP16 by apex O2 with a fused Adam, FP32 with BertAdam."""

    def build(batch: int, kind: str) -> tuple[Take, int]:
        model = BertForQuestions(layers, hidden, heads)
        tokens, target = torch.zeros(batch, 384, dtype=torch.long), torch.zeros(batch, 2, dtype=torch.long)
        half = kind == "fp16"
        mask = torch.zeros(batch, 1, 1, 384, dtype=torch.float16 if half else torch.float32)
        update = MasterWeights(model, lambda p: torch.optim.Adam(p, fused=True), 1.0) if half else BertAdam(model)

        def step() -> None:
            loss = cross_entropy(model(tokens, mask).float(), target)
            loss.backward()
            update.step()

        return step, batch

    return build


def transformer_xl(
    layers: int, hidden: int, heads: int, inner: int, length: int, memory: int, dropout: tuple[float, float], lamb: bool
) -> Callable[[int, str], tuple[Take, int]]:
    """Transformer-XL on WikiText-103: FP16 by apex O2, LAMB (base) or Adam (large), the loss read in each step."""

    def build(batch: int, kind: str) -> tuple[Take, int]:
        model = TransformerXL(layers, hidden, heads, inner, *dropout)
        tokens, targets = torch.zeros(2, length, batch, dtype=torch.long)
        half = kind == "fp16"
        make = Lamb if lamb else lambda p: torch.optim.Adam(p, foreach=False)
        update = MasterWeights(model, make, 0.25, half)
        memories = [torch.zeros(layers, memory, batch, hidden, dtype=torch.float16 if half else torch.float32)]

        def step() -> None:
            loss, memories[0] = model(tokens, targets, memories[0])
            loss.backward()
            loss.item()
            update.step()

        return step, length * batch

    return build


def gpt2(batch: int, kind: str) -> tuple[Take, int]:
    """GPT-2 with 124 million parameters, 1024 tokens a sequence, AMP, fused AdamW."""
    model, tokens = Gpt2(), torch.zeros(batch, 1024, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16"):
            loss = cross_entropy(model(tokens).view(-1, Gpt2.WORDS), tokens.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, batch * 1024


PROGRAMS: dict[str, Callable[[int, str], tuple[Take, int]]] = {
    "resnet50_v1.5": resnet50,
    "resnet50_v1.5 channels last": lambda batch, kind: resnet50(batch, kind, torch.channels_last),
    "resnet50 (timm)": resnet50,
    "resnet50 (timm) channels last": lambda batch, kind: resnet50(batch, kind, torch.channels_last),
    "bert-base SQuAD": bert(12, 768, 12),
    "bert-large SQuAD": bert(24, 1024, 16),
    "transformer-xl base": transformer_xl(16, 512, 8, 2048, 192, 192, (0.1, 0.0), True),
    "transformer-xl large": transformer_xl(18, 1024, 16, 4096, 256, 256, (0.2, 0.2), False),
    "gpt2-124M": gpt2,
}


class MasterWeights:
    """What apex's O2 does at the end of a step: the weights live in FP32, the model in FP16 (or both in FP32)."""

    def __init__(self, model: nn.Module, make: Callable[[list[Tensor]], Any], clip: float, half: bool = True) -> None:
        self.half, self.clip = half, clip
        self.masters = [p.detach().clone().requires_grad_() if half else p for p in model.parameters()]
        if half:
            model.half()
        self.weights = list(model.parameters())
        self.optimizer = make(self.masters)

    def step(self) -> None:
        """Unscale into FP32, look for overflows, clip, update, copy back."""
        if self.half:
            for master in self.masters:
                master.grad = torch.empty_like(master)
            grads = [w.grad for w in self.weights]
            torch._foreach_copy_([m.grad for m in self.masters], grads)
            torch.zeros(1).item()  # did a gradient overflow?
        nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.optimizer.step()
        if self.half:
            torch._foreach_copy_([w.detach() for w in self.weights], [m.detach() for m in self.masters])
        for weight in self.weights:
            weight.grad = None


class Lamb:
    """LAMB whose elementwise part is one kernel a parameter, as TorchScript fuses it, between two norms."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.states = [(p, torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())) for p in parameters]

    def step(self) -> None:
        """As many passes over memory, and about as many kernels, as NVIDIA's jitted LAMB."""
        with torch.no_grad():
            for p, first, second, count in self.states:
                hyper = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-6, "lr": 0.01}
                flags = {"amsgrad": False, "maximize": False}
                torch._fused_adam_([p.detach()], [p.grad], [first], [second], [], [count], **hyper, **flags)
                ratio = p.norm().clamp_(0, 10) / (first.norm() + 1e-6)
                ratio = (ratio == 0.0) * 1.0 + (ratio != 0.0) * ratio
                p.addcmul_(first, ratio)


class BertAdam:
    """Adam as BERT's own code has it: ten elementwise kernels a parameter."""

    def __init__(self, model: nn.Module) -> None:
        self.states = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]

    def step(self) -> None:
        """Update after reading the norm of all gradients."""
        with torch.no_grad():
            torch.stack(torch._foreach_norm([p.grad for p, _, _ in self.states])).norm().item()
            for p, first, second in self.states:
                first.mul_(0.9).add_(p.grad, alpha=0.1)
                second.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                update = first / (second.sqrt() + 1e-6)
                update += 0.01 * p
                p.add_(-(0.001 * update))
                p.grad = None


class Run(NamedTuple):
    """The last step of a program, and the samples (or tokens) that it took."""

    step: steps.Step
    samples: int

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return 1000.0 * self.samples / self.step.ms


def run(name: str, key: str, kind: str, batch: int, cuda: str = "11.8") -> Run:
    """Run a program on the emulated GPU `key`; `kind` is fp16, bf16, tf32 or fp32."""
    with steps.emulated(key, cuda) as session:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind != "fp32"
        try:
            with torch.device("cuda"):
                take, samples = PROGRAMS[name](batch, kind)
                step = steps.timed(take, session, WARM_UP)
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
        del take
        gc.collect()
    return Run(step, samples)


class TrainingRow(NamedTuple):
    """Published throughput of one model on one GPU, `card` as it was published, in samples or tokens a second."""

    model: str
    gpu: str
    card: str
    kind: str
    batch: int
    published: float
    cuda: str
    source: str
    is_old: bool

    @property
    def group(self) -> str:
        return f"{self.kind} {self.batch}"


def rows() -> list[TrainingRow]:
    """Published throughput on one GPU of the models that are written here."""
    found = []
    for row in tables.read("training_throughput.csv"):
        if row["model"] in PROGRAMS and row["n_gpus"] == "1" and row["metric"] == "throughput":
            key = gpus.find(KEYS.get(row["gpu"], row["gpu"])).key
            kind = "fp16" if "fp16" in row["precision"] else "tf32" if "TF32" in row["precision"] else "fp32"
            cuda = next((cuda for words, cuda in CUDA.items() if words in row["notes"]), "11.8")
            old = OLD_SOFTWARE in row["notes"]
            published = float(row["value"])
            found.append(
                TrainingRow(row["model"], key, row["gpu"], kind, int(row["batch"]), published, cuda, row["source"], old)
            )
    return found


def predict(row: TrainingRow) -> tuple[float, float | None]:
    """Samples (or tokens) a second on the row's GPU, as the emulated program's own clock says, and the run's band."""
    found = run(row.model, row.gpu, row.kind, row.batch, row.cuda)
    return found.throughput, found.step.band
