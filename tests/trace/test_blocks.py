"""What is computed a block at a time does not depend on where blocks end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from windtunnel.judgement import judge
from windtunnel.reports import html, json, text
from windtunnel.trace import rows
from windtunnel.trace.operation import Kind, Lane, Role, Signature, Site
from windtunnel.trace.trace import Held, Trace

NAMES = ("aten::mm", "aten::add", "cudnn_rnn", "aten::_fused_adam_", "Memcpy HtoD (Pageable -> Device)")
NAMES += ("Memcpy DtoH (Device -> Pinned)", "Tensor.tolist", "cudaDeviceSynchronize", "first use: cuBLAS")
PROGRAM = (
    "y = net(x)\nloss.backward()\noptimizer.step()\nprint(loss.item())\nt = time.time()\nseconds = time.time() - t\n"
)
KINDS = [Kind.KERNEL] * 8 + [Kind.COPY, Kind.COPY, Kind.COLLECTIVE, Kind.SYNCHRONIZE, Kind.SYNCHRONIZE]
KINDS += [Kind.CLOCK_READ, Kind.HOST, Kind.STEP, Kind.QUEUE, Kind.BATCH]


def drawn(dice: random.Random, folder: Path) -> Trace:
    """A trace of anything at all, in which times mostly go forward."""
    trace = Trace()
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    trace.folder = str(folder)
    gpu = {"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16 << 30, "compute_capability": [7, 0]}
    gpu |= {"peak_flops": {"fp32": 15.7e12, "fp16": 125e12}, "memory_bandwidth_bytes_per_s": 900e9}
    trace.facts["gpus"] = [gpu, gpu]
    for name in NAMES:
        details = (("ranks", 2), ("non_blocking", dice.randrange(2)), ("source", 1), ("destination", 1))
        trace.signatures.number(
            Signature(name, ((8, 8),), ("float32",), 1, dice.choice((0, 1 << 24)), 64, detail=details)
        )
    lanes = [trace.lanes.number(Lane(*lane)) for lane in ((0, 0), (0, 1), (1, 0), (-1, 0), (0, 0, 1))]
    sites = [trace.sites.number(Site("train.py", line)) for line in range(1, 7)]
    roles = [trace.roles.number(Role("net", "aten::_foreach_add_", "")), 0]
    now, ends = 0, dict.fromkeys([lane[:2] for lane in trace.lanes], 0)
    for _ in range(dice.randrange(1, 300)):
        now += dice.choice((0, 3_000, 9_000, 200_000))
        kind = dice.choice(KINDS)
        lane = dice.choice([one for one in lanes if kind > Kind.COLLECTIVE or trace.lanes[one].device >= 0])
        stream = trace.lanes[lane][:2]
        start = max(now, ends[stream]) + dice.choice((0, 0, 5_000))
        end = ends[stream] = start + dice.choice((0, 1_000, 8_000, 60_000))
        row = kind, lane, dice.randrange(len(NAMES)), dice.choice(sites), now, start, end, dice.randrange(1 << 17)
        trace.rows.append(row)
        for _ in range(dice.randrange(3)):
            held = Held(dice.randrange(8), dice.randrange(512), dice.choice(roles)).packed()
            where = dice.choice((0, 0, 0, 1, 2, 2)), dice.randrange(2), 0, 512 * dice.randrange(40)
            trace.memory.append((*where, dice.randrange(1 << 20), now, dice.choice(sites), held))
    return trace


@pytest.mark.parametrize("seed", range(4))
def test_reports_do_not_depend_on_the_size_of_blocks(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for size in (7, 10_000):
        monkeypatch.setattr(rows, "BLOCK", size * rows.WIDTH)
        monkeypatch.setattr(rows, "OPEN", 2 * size * rows.WIDTH)
        trace = drawn(random.Random(seed), tmp_path).canonical()
        findings = judge([trace])
        said.append([text.render(trace, findings), json.render(trace, findings), html.render(trace, findings)])
    assert all(one == said[-1] for one in said)
