"""Programs with something to fix, and the patch that each finding's advice comes to.

A program is a training loop of one model on one GPU model, with some of the faults of `FAULTS` in it. A fault is a
piece of source and what the advice makes of it, so the same loop can be written with it and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

STEPS, LONG = 10, 24
SMALL = ("mlp of 64", "encoder")
"""Models of small kernels, whose launches are judged from 2,000 kernels on: their programs take more steps."""

LOOP = """
import torch
from torch import nn

{models}

torch.manual_seed(0)
{setup}
net = {model}.cuda()
{wrap}
optimizer = {optimizer}
{source}
{before}
def step(x):
    {zero}
    loss = {loss}
    loss.backward()
    optimizer.step()
    return loss

{graph}
for number in range({steps}):
    {copy}
    {call}
    {after}
"""

MODELS = """
class Shifted(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x + {made})


def mlp(width, depth):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


def convolutions(width, depth):
    first = nn.Conv2d(3, width, 3, padding=1)
    more = []
    for _ in range(depth):
        more += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(first, *more)


def encoder(width, depth):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, depth)
"""

PIECES = {
    "setup": "",
    "wrap": "",
    "optimizer": "torch.optim.SGD(net.parameters(), lr=0.01)",
    "source": "data = torch.randn({steps}, *{shape}).pin_memory()",
    "before": "",
    "zero": "optimizer.zero_grad()",
    "loss": "net(x).square().mean()",
    "graph": "",
    "copy": 'x = data[number].to("cuda", non_blocking=True)',
    "call": "loss = step(x)",
    "after": "total = loss.detach()",
    "made": "0.0",
}

GRAPH = """
static = torch.zeros(*{shape}, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step(static)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = step(static)
"""


@dataclass(frozen=True)
class Fault:
    """What a program does badly: the pieces that it has, and those that the advice of `code` puts in their place."""

    code: str
    bad: dict[str, str]
    good: dict[str, str]


FAULTS = {
    "reads a number": Fault("host-sync", {"after": "total = loss.item()"}, {"after": "total = loss.detach()"}),
    "waits": Fault("host-sync", {"after": "torch.cuda.synchronize()"}, {"after": "total = loss.detach()"}),
    "counts by nonzero": Fault(
        "host-sync",
        {"loss": "net(x).square().mean() + (x > 0).nonzero().shape[0] * 0.0"},
        {"loss": "net(x).square().mean() + torch.where(x > 0, x, 0).sum() * 0.0"},
    ),
    "pageable": Fault(
        "pageable-copy",
        {"source": "data = torch.randn({steps}, *{shape})", "copy": 'x = data[number].to("cuda")'},
        {"source": PIECES["source"], "copy": PIECES["copy"]},
    ),
    "one by one": Fault(
        "unfused-optimizer",
        {"optimizer": "torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)"},
        {"optimizer": "torch.optim.Adam(net.parameters(), lr=0.01, fused=True)"},
    ),
    "copies a constant": Fault(
        "repeated-copy",
        {"before": "weights = torch.ones(*{shape})", "loss": '(net(x) - weights.to("cuda").mean()).square().mean()'},
        {
            "before": 'weights = torch.ones(*{shape}).to("cuda")',
            "loss": "(net(x) - weights.mean()).square().mean()",
        },
    ),
    "makes on the CPU": Fault(
        "created-on-cpu",
        {"made": "torch.zeros(x.shape).to(x.device)"},
        {"made": "torch.zeros(x.shape, device=x.device)"},
    ),
    "goes there and back": Fault(
        "copy-back-and-forth",
        {"loss": 'net(x).square().mean() + x.cpu().to("cuda").mean()'},
        {"loss": "net(x).square().mean() + x.mean()"},
    ),
    "small copies": Fault(
        "many-small-copies",
        {"copy": 'x = torch.stack([row.to("cuda") for row in data[number]])'},
        {"copy": 'x = data[number].to("cuda")'},
    ),
    "full precision": Fault("low-tensor-core-use", {}, {"setup": 'torch.set_float32_matmul_precision("high")'}),
    "launches": Fault(
        "launch-bound",
        {},
        {
            "graph": GRAPH,
            "copy": "static.copy_(data[number], non_blocking=True)",
            "call": "graph.replay(); loss = captured",
        },
    ),
    "adds up losses": Fault(
        "growing-memory",
        {"before": "total = 0.0", "after": "total = total + loss"},
        {"after": "total = total + loss.detach()"},
    ),
    "two GPUs": Fault("data-parallel", {"wrap": "net = nn.DataParallel(net)"}, {"wrap": ""}),
}

COMBINED = ("mlp of 512", "encoder")
"""Models whose programs have two faults as well."""
UNCAPTURED = frozenset(
    {
        "one by one",
        "counts by nonzero",
        "copies a constant",
        "makes on the CPU",
        "goes there and back",
        "adds up losses",
        "two GPUs",
    }
)
"""Faults in the step itself that no CUDA graph holds as it is: `capturable` makes another optimizer of it."""

SIZES = {
    "mlp of 64": ("mlp(64, 12)", (64, 64)),
    "mlp of 512": ("mlp(512, 6)", (256, 512)),
    "mlp of 4096": ("mlp(4096, 4)", (2048, 4096)),
    "convolutions": ("convolutions(32, 4)", (64, 3, 32, 32)),
    "encoder": ("encoder(256, 3)", (32, 64, 256)),
}


@dataclass(frozen=True)
class Program:
    """A program by name, its GPUs and its faults."""

    model: str
    gpus: str
    faults: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"{self.model} on {self.gpus}, {' and '.join(self.faults) or 'no fault'}"

    def source(self, fixed: str = "") -> str:
        """The program's text, with one fault as its advice has it."""
        model, shape = SIZES[self.model]
        pieces = dict(PIECES)
        for name in self.faults:
            pieces |= FAULTS[name].bad
        if fixed:
            pieces |= FAULTS[fixed].good
        made = pieces.pop("made")
        steps = LONG if self.model in SMALL else STEPS
        models = MODELS.replace("{made}", made)
        text = LOOP.format(models=models, model=f"Shifted({model})", steps=steps, **pieces)
        return text.replace("{steps}", str(steps)).replace("{shape}", str(shape))


def programs() -> Iterator[Program]:
    """Each fault in each model, alone and with another one, and loops without a fault."""
    names = list(FAULTS)
    for model in SIZES:
        yield Program(model, "V100", ())
        for number, name in enumerate(names):
            gpus = "2xV100" if name == "two GPUs" else "A100" if name == "full precision" else "V100"
            yield Program(model, gpus, (name,))
            other = names[(number + 3) % len(names)]
            if (
                model in COMBINED
                and name != "two GPUs"
                and other != "two GPUs"
                and not set(FAULTS[name].bad) & set(FAULTS[other].bad)
            ):
                yield Program(model, "A100", (name, other))
