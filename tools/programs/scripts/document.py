"""A program of the documents as it stands, and with one line more that compiles its network.

    windtunnel run --gpus 2xV100 document.py housing compiled
    python document.py housing                                      # on the CPU, to compare losses and seconds with
    python document.py housing compiled=aot_eager                   # there, by another backend of torch.compile

All random numbers are drawn on the host, before they are moved, so that all runs draw the same.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import NamedTuple

import torch
from step_seconds import measure_steps

from windtunnel import libraries

ROOT = Path(__file__).resolve().parents[3]
LISTINGS = ROOT / "tests" / "programs" / "mission" / "pytorch"
EXAMPLES = ROOT / "examples"


class Document(NamedTuple):
    """A program, its line behind which `compiles` stands, and what trains with it and prints, where it does not.

    `compiles` takes the name of torch.compile's backend, and gets the line's indentation.
    """

    program: Path
    line: str
    then: str = ""
    compiles: str = "model.compile(backend={!r})"


TRAINER = """
class TwoLayers(d2l.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1))

    def loss(self, y_hat, y):
        return nn.functional.mse_loss(y_hat, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch):
        losses.append(super().training_step(batch))
        return losses[-1]

losses = []
inputs = torch.randn(1024, 20)
d2l.Trainer(max_epochs=50, num_gpus=1, gradient_clip_val=1).fit(TwoLayers(), [(x, x[:, :1]) for x in inputs.split(256)])
for loss in losses[:20]:
    print(f"loss {loss.item():.6f}")
"""
DOCUMENTS = {
    "network": Document(
        LISTINGS / "s0_gpus.py",
        "net = net.to(device=try_gpu())",
        'print("loss", globals().get("compiled", net)(X).sum().item())',
        "compiled = torch.compile(net, backend={!r})",
    ),
    "trainer": Document(LISTINGS / "s0_trainer.py", "    self.model = model", TRAINER),
    "housing": Document(LISTINGS / "s2_housing.py", "model.to(device)", 'print("loss", loss.item())'),
    "ddp": Document(
        EXAMPLES / "housing_ddp.py",
        "    model = DistributedDataParallel(model, device_ids=[device.index] if use_cuda else None)",
    ),
    "shapes": Document(EXAMPLES / "shapes_cnn.py", "    model = network().to(device)"),
    "characters": Document(EXAMPLES / "character_gpt.py", "    model = GPT(len(alphabet), context=64).to(device)"),
}


def run(document: Document, backend: str) -> None:
    """What the document takes for granted, the document, and what follows it, as one program; "" compiles nothing."""
    program = document.program
    prelude = program.with_suffix(".prelude.py")
    text = program.read_text(encoding="utf-8")
    before, found, after = text.partition(f"\n{document.line}\n")
    assert found, f"{program} has no line {document.line!r}"
    if backend:
        indent = document.line.removesuffix(document.line.lstrip())
        found += f"{indent}{document.compiles.format(backend)}\n"
    text = before + found + after
    module = types.ModuleType("__main__")
    module.__file__ = str(program)
    sys.modules["__main__"] = module
    sys.path[0] = str(program.parent)
    if prelude.exists():
        exec(compile(prelude.read_text(encoding="utf-8"), str(prelude), "exec"), vars(module))
    exec(compile(text, str(program), "exec"), vars(module))
    exec(compile(document.then, "then", "exec"), vars(module))


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    backends = {word: word.partition("=")[2] or "inductor" for word in rest if word.partition("=")[0] == "compiled"}
    sys.argv[1:] = [word for word in rest if word not in backends]
    torch.manual_seed(0)
    measure_steps()
    libraries.offer(lambda library: None)  # on the CPU too, where `windtunnel run` has not
    run(DOCUMENTS[name], next(iter(backends.values()), ""))
