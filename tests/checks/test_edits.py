"""Edits: one generic script takes the first edit of a report, applies it and runs again, until there is none."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checks import corpus
from windtunnel.checks._edits import edit_of
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site

MOST_EDITS = 4


class Kind(NamedTuple):
    """A fault: its finding, its program (a page of the corpus, a program of the ranks or a text), how it is run."""

    code: str
    program: str
    ranks: int = 1
    keeps: bool = True  # what the program computes, which it does where nothing but time and memory was wrong


RANKS = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["LOCAL_RANK"])
"""
SUM = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(128, 64, device="cuda"), torch.randn(128, 1, device="cuda")
for epoch in range(2):
    total, right = 0.0, 0
    for step in range(30):
        loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += ((net(x) - y).abs() < 0.5).sum().item()
    print(f"epoch {epoch}: {total / 30:.4f}", total, right)
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(1024, 1024).cuda()
loader = DataLoader(TensorDataset(torch.randn(20 * 256, 1024), torch.randn(20 * 256, 1024)), batch_size=256)
total = torch.zeros((), device="cuda")
with torch.no_grad():
    for batch, target in loader:
        total += (net(batch.to("cuda")) - target.to("cuda")).abs().mean()
"""
KINDS = {
    "loss-broadcast": Kind("loss-broadcast", "loss-broadcast", keeps=False),
    "stale-read": Kind("stale-read", "stale-read", keeps=False),
    "early-overwrite": Kind("early-overwrite", "pinned-buffer-filled-too-early", keeps=False),
    "unsynchronized-access": Kind("unsynchronized-access", "result-used-without-wait", keeps=False),
    "freed-in-use": Kind("freed-in-use", "freed-in-use", keeps=False),
    "stale-autocast": Kind("stale-autocast", "autocast-around-the-loop", keeps=False),
    "late-visible-devices": Kind("late-visible-devices", "visible-devices-too-late"),
    "wrong-timing": Kind("wrong-timing", "step-time-without-wait", keeps=False),
    "pinned, yet blocking": Kind("host-sync", "pinned-but-blocking"),
    "losses read one by one": Kind("host-sync", "loss-item-each-step"),
    "losses added up on the host": Kind("host-sync", SUM),
    "numbers copied": Kind("pageable-copy", "number-moved-each-step"),
    "pageable batches": Kind("pageable-copy", "pageable-batches"),
    "a loader's batches": Kind("pageable-copy", LOADER),
    "created-on-cpu": Kind("created-on-cpu", "made-on-cpu-in-forward"),
    "repeated-copy": Kind("repeated-copy", "constant-moved-each-step"),
    "copy-back-and-forth": Kind("copy-back-and-forth", "there-and-back"),
    "many-small-copies": Kind("many-small-copies", "samples-moved-one-by-one"),
    "growing-memory": Kind("growing-memory", "loss-accumulated-with-graph"),
    "unfused-optimizer": Kind("unfused-optimizer", "optimizer-one-by-one"),
    "availability-without-count": Kind("availability-without-count", "second-device-by-availability"),
    "wait-missing": Kind("wait-missing", "wait_missing.py", 2, keeps=False),
    "unused-parameters": Kind("unused-parameters", "unused_parameters.py", 2, keeps=False),
    "current-device-elsewhere": Kind(
        "current-device-elsewhere",
        RANKS
        + """
dist.init_process_group("nccl")
net = DistributedDataParallel(
    nn.Linear(4, 4).to(rank),
    device_ids=[rank],
)
net(torch.ones(2, 4, device=rank)).sum().backward()
dist.destroy_process_group()
""",
        2,
    ),
    "context-on-other-gpu": Kind(
        "context-on-other-gpu",
        RANKS
        + """
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = nn.Linear(4, 4).cuda()
if rank == 0:
    torch.save(net.state_dict(), "weights.pt")
dist.barrier()
net.load_state_dict(torch.load("weights.pt"))
dist.destroy_process_group()
""",
        2,
    ),
}
BEGIN = "import torch; torch.manual_seed(0)\n"
END = """
import numbers as _numbers
for _name, _value in sorted(globals().items()):
    if _name[0] != "_" and isinstance(_value, (torch.Tensor, _numbers.Number, list)):
        print(_name, [float(_one.detach().sum()) if torch.is_tensor(_one) else _one
                      for _one in (_value if isinstance(_value, list) else [_value])])
"""


def text_of(kind: Kind) -> str:
    """The program, which prints at its end all numbers and sums of tensors that it has."""
    text = kind.program
    if text.endswith(".py"):
        text = (Path(__file__).parents[1] / "ranks" / "programs" / text).read_text()
    elif "\n" not in text:
        text = (corpus.PAGES / f"{text}.md").read_text().partition("```python\n")[2].partition("```")[0]
    return BEGIN + text + (END if kind.ranks == 1 else "")


def run(program: Path, ranks: int) -> tuple[dict, str]:
    """The report of a run, and what the program printed."""
    launch = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, "-m", "windtunnel", "run", "--json", "--memory-history", *launch, str(program)]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    return json.loads(done.stdout), done.stderr


def page_s_program() -> dict[str, Any]:
    """What the page for agents does with an edit."""
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("while edit")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "mend.py", "exec"), names)
    return names


apply = page_s_program()["apply"]


DRAWN = random.Random(0).sample(sorted(KINDS), 5)
"""Those that each change must pass; all of them run weekly."""


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DRAWN else pytest.mark.weekly) for name in KINDS]
)
def test_the_first_edits_mend_the_fault(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind, program = KINDS[name], tmp_path / "program.py"
    program.write_text(text_of(kind))
    report, printed = run(program, kind.ranks)
    assert kind.code in {finding["code"] for finding in report["findings"]}
    applied = []
    while edit := next((finding["edit"] for finding in report["findings"] if finding["edit"]), None):
        assert len(applied) < MOST_EDITS, applied
        apply(edit)
        applied.append(edit)
        report, now = run(program, kind.ranks)
        assert report["run"]["program_exit_code"] == 0, now
        if kind.keeps:
            assert now == printed
    assert not [one for one in report["findings"] if one["code"] == kind.code and one["severity"] != "info"]


LINES = [
    ("host-sync", "    if loss.item() > 3:", None),
    ("wait-missing", "works.append(dist.all_reduce(x, async_op=True))", None),
    ("stale-autocast", "with accelerator.autocast():", None),
    ("pageable-copy", "x = torch.tensor([1, 2], device='cuda')", None),
    ("created-on-cpu", "x = torch.randn(3, 4).to(device)", None),
    ("created-on-cpu", "x = torch.ones(3, 4).to(torch.float16)", None),
    ("created-on-cpu", "x = torch.ones(3, f(4)).to(x.device)", "x = torch.ones(3, f(4), device=x.device)"),
    ("wait-missing", "dist.all_reduce(x, async_op=True)", "dist.all_reduce(x)"),
    ("stale-autocast", "with autocast():", "with autocast(cache_enabled=False):"),
    ("stale-autocast", "with autocast('cuda'), a(b):", "with autocast('cuda', cache_enabled=False), a(b):"),
    ("stale-autocast", "with autocast('cuda', cache_enabled=True):", None),
    ("context-on-other-gpu", "net.load_state_dict(torch.load(p, map_location='cpu'))", None),
    ("context-on-other-gpu", "weights = torch.load(p)", None),
]


@pytest.mark.parametrize(("code", "line", "mended"), LINES)
def test_a_line_is_edited_where_its_form_is_known(code: str, line: str, mended: str | None) -> None:
    edit = edit_of(Finding(code, "warning", "", "", Site("a.py", 3)), lambda site: line)
    assert mended == (None if edit is None else line[: edit.column] + edit.text + line[edit.end_column :])


WHOLE = [
    ("stale-read", "y = x.sum()", "torch.cuda.synchronize()\ny = x.sum()"),
    ("stale-read", "if a:\n    pass\nelif x.sum(): # <\n    pass", None),
    ("stale-read", "while x.sum(): # <\n    pass", None),
    ("stale-read", "if x.sum(): # <\n    pass", "torch.cuda.synchronize()\nif x.sum(): # <\n    pass"),
    ("stale-read", "f(\n    x) # <", "torch.cuda.synchronize()\nf(\n    x) # <"),
    ("stale-read", "a = 1; b = x.sum()", None),
    # Kept with its graph: only where no backward pass can come of it.
    ("growing-memory", "total += loss\nloss.backward()", "total += loss.detach()\nloss.backward()"),
    ("growing-memory", "l = criterion(x, y) # <\nself.total = self.total + l / n",
     "l = criterion(x, y) # <\nself.total = self.total + l.detach() / n"),
    ("growing-memory", "out = net(x) # <\nkept.append(out)", None),
    ("growing-memory", "out = net(x) # <\ntotal += f(out)", None),
    ("growing-memory", "total += loss # <\ntotal.backward()", None),
    ("growing-memory", "out = net(x) # <\nkept.append(out)\nall = torch.stack(kept)\nend(all).backward()", None),
    ("growing-memory", "def f():\n    loss = net(x) # <\n    total += loss\n    return total\nf().backward()", None),
    ("growing-memory", "total += loss # <\nprint(float(total))\nloss.backward()",
     "total += loss.detach() # <\nprint(float(total))\nloss.backward()"),
    # Moved before the loop: only where the loop does nothing else with it.
    ("repeated-copy", "m = f()\nfor x in y:\n    g(m.to(d)) # <",
     "m = f()\nm = m.to(d)\nfor x in y:\n    g(m.to(d)) # <"),
    ("repeated-copy", "m = f()\nfor x in y:\n    g(m.to(d)) # <\n    m[0] = 1", None),
    ("repeated-copy", "m = f()\nfor x in y:\n    g(m.to(x.device)) # <", None),
    ("repeated-copy", "m = f()\nfor x in y:\n    g(m.to(d)) # <\nprint(m)", None),
    ("repeated-copy", "m = f()\ndef step():\n    for x in y:\n        g(m.to(d)) # <", None),
    ("repeated-copy", "for e in r:\n    m = f()\n    for x in y:\n        g(m.cuda()) # <",
     "for e in r:\n    m = f()\n    m = m.cuda()\n    for x in y:\n        g(m.cuda()) # <"),
    # Read behind the loop: only where nothing reads it before.
    ("host-sync", "t = 0\nfor x in y:\n    t += loss.item() # <\nprint(t)",
     "t = 0\nfor x in y:\n    t += loss.detach().double() # <\nt = t.item() if torch.is_tensor(t) else t\nprint(t)"),
    ("host-sync", "t = 0\nfor x in y:\n    t += loss.item() # <\n    print(t)", None),
    ("host-sync", "t = 0\nfor x in y:\n    t += z.item() # <", None),
    ("host-sync", "t = [1]\nfor x in y:\n    t.append(loss.item()) # <", None),
    ("host-sync", "t = []\nfor x in y:\n    t.append(loss.item()) # <",
     "t = []\nfor x in y:\n    t.append(loss.detach()) # <\nt = torch.stack(t).tolist() if t else []"),
    ("pageable-copy", "for i, x in enumerate(y):\n    s = torch.tensor(1 / (i + 1), device=d) # <",
     "for i, x in enumerate(y):\n    s = torch.full((), 1 / (i + 1), device=d) # <"),
    # Pinned: what is surely a tensor, or a loader's batches; without waiting only where nothing writes into them.
    ("pageable-copy", "d = torch.ones(3)\nd[1:].to(device) # <",
     "d = torch.ones(3)\nd[1:].pin_memory().to(device, non_blocking=True) # <"),
    ("pageable-copy", "d = tokenizer(x)\nd.to(device) # <", None),
    ("pageable-copy", "net = Net()\nnet.cuda() # <", None),
    ("pageable-copy", "d = torch.ones(3)\nd.to(torch.float16) # <", None),
    ("pageable-copy", "l = DataLoader(d, 8)\nfor b in l:\n    b.to(device) # <",
     "l = DataLoader(d, 8, pin_memory=True)\nfor b in l:\n    b.to(device) # <"),
    ("pageable-copy", "l, m = DataLoader(d, 8), DataLoader(e, 8)\nfor b in l:\n    b.to(device) # <", None),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x.to(device) # <",
     "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x.to(device, non_blocking=True) # <"),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor b in l:\n    b['x'].cuda() # <",
     "l = DataLoader(d, pin_memory=True)\nfor b in l:\n    b['x'].cuda(non_blocking=True) # <"),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    f(x.to(device), y.cuda()) # <",
     "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    f(x.to(device, non_blocking=True), "
     "y.cuda(non_blocking=True)) # <"),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor b in l:\n    b.to(device) # <", None),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x.to(device) # <\n    x.zero_()", None),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x, y = x.to(device), y.to(device) # <",
     "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x, y = x.to(device, non_blocking=True), "
     "y.to(device, non_blocking=True) # <"),
    ("pageable-copy", "l = DataLoader(d, 8)\nfor b, c in l:\n    b = b.to(device) # <",
     "l = DataLoader(d, 8, pin_memory=True)\nfor b, c in l:\n    b = b.to(device) # <"),
    ("host-sync", "l = DataLoader(d, pin_memory=True)\nfor x, y in l:\n    x, y = z, x.to(device) # <", None),
    ("host-sync", "for i in r:\n    p.fill_(i)\n    p.to(device) # <", None),
    ("host-sync", "net = Net().cuda()", None),
    ("pageable-copy", "s = torch.tensor(values, device=d)", None),
    ("unfused-optimizer", "o = torch.optim.Adam(p, lr=1, foreach=False)", "o = torch.optim.Adam(p, lr=1)"),
    ("late-visible-devices", "import torch\nx = 'cuda:1'\nos.environ['CUDA_VISIBLE_DEVICES'] = '1' # <", None),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "mended"), WHOLE)
def test_a_program_is_edited_where_all_of_it_is_known(code: str, text: str, mended: str | None, tmp_path: Path) -> None:
    text, mended = f"{text}\nimport torch\n", mended and f"{mended}\nimport torch\n"
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines, 1) if line.endswith("# <")), 1)
    path = tmp_path / "a.py"
    path.write_text(text)
    finding = Finding(code, "warning", "Adam updated from pageable memory", "", Site(str(path), at))
    edit = edit_of(finding, lambda site: lines[site.line - 1], lambda file: text)
    if edit is not None:
        apply(edit._asdict())
    assert path.read_text() == (text if mended is None else mended)


HARD = "# \u2028\n\x0c\nimport torch\n名 = '京' ; m = f()\nfor x in y:\n    f('京') ; g(m.to(d))\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_keep_their_line_ends_and_mark(newline: str, mark: str, tmp_path: Path) -> None:
    """gdstyle#24, rustfix#176, skillsaw#315: edits of files with CRLF, a mark, form feeds and wide characters."""
    path = tmp_path / "a.py"
    path.write_bytes((mark + HARD.replace("\n", newline)).encode())
    edit = edit_of(Finding("repeated-copy", "warning", "", "", Site(str(path), 6)), lambda _: "", lambda _: HARD)
    assert edit is not None
    apply(edit._asdict())
    mended = HARD.replace("for x", "m = m.to(d)\nfor x")
    assert path.read_bytes() == (mark + mended.replace("\n", newline)).encode()
    line = "    f('京'); y = torch.tensor(1, device=d)"
    edit = edit_of(
        Finding("pageable-copy", "warning", "", "", Site(str(path), 2)),
        lambda _: line,
        lambda _: f"import torch\n{line[4:]}\n",
    )
    assert edit is not None
    assert (edit.column, edit.end_column) == (12, len(line) - 4)


def test_at_least_fifteen_findings_have_an_edit() -> None:
    assert len({kind.code for kind in KINDS.values()}) >= 15
