"""A kernel of the program's own in ranks, in plans, priced again on another GPU, on a stream of its own, compiled and
differentiated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from windtunnel.trace.trace import Trace

PROGRAM = r'''
import argparse
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=1 << 16)
rows = parser.parse_args().rows
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
scale = torch.cuda._compile_kernel(
    r"""extern "C" __global__ void scale(const float *x, float *y, double by, int n) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = by * x[i];
    }""",
    "scale",
)


@torch.library.custom_op("mine::scale", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    y = torch.empty_like(x)
    scale(grid=(264, 1, 1), block=(256, 1, 1), args=[x, y, by, x.numel()])
    return y


scaled.register_fake(lambda x, by: torch.empty_like(x))
scaled.register_autograd(
    lambda context, gradient: (scaled(gradient.contiguous(), context.by), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)
x = torch.full((rows, 64), 1.0 + rank, device="cuda", requires_grad=True)
function = torch.compile(lambda x: scaled(x.relu(), 2.0).sum(), backend="aot_eager")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = scaled(x.detach(), 3.0)
torch.cuda.current_stream().wait_stream(side)
loss = function(x)
loss.backward()
dist.all_reduce(y)
torch.cuda.synchronize()
if VALUES:
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert torch.equal(y, torch.full_like(x, 3.0 * world * (world + 1) / 2))
    assert loss.item() == 2.0 * (1 + rank) * rows * 64
dist.destroy_process_group()
'''


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windtunnel", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_ranks_launch_a_kernel_which_is_priced_again_on_another_gpu(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("VALUES = True\n" + PROGRAM)
    words = ("--gpus", "2xH100", "--nproc-per-node", "2", "--fail-on", "error", "--trace", "run.trace", "program.py")
    ran(tmp_path, "run", *words)
    times = []
    for gpu in ("H100", "T4"):
        ran(tmp_path, "retime", "run.trace", "--gpu", gpu, "--trace", f"{gpu}.trace")
        rows = [row for row in Trace.load(tmp_path / f"{gpu}.trace") if row.signature.name == "cuda::scale"]
        assert len(rows) == 3  # rank 0's
        times.append(sum(row.end_ns - row.start_ns for row in rows))
    assert 2 < times[1] / times[0] < 20  # 320 GB/s instead of 3,350, and less in L2


def test_a_plan_rehearses_it_on_several_gpus(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("VALUES = False\n" + PROGRAM)
    done = ran(tmp_path, "plan", "--gpus", "2xT4,2xH100", "--vary=--rows=65536", "--json", "program.py")
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows] == ["fits", "fits"], [row["why"] for row in rows]
