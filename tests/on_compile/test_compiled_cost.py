"""What compiled programs cost on emulated devices: Inductor's kernels and Inductor's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.reports.parts import compiled
from windtunnel.session import Session
from windtunnel.trace.operation import Kind


def launched(session: Session, since: int) -> list[str]:
    """The kernels since a row."""
    return [record.signature.name for record in list(session.trace)[since:] if record.kind == Kind.KERNEL]


def step(module: nn.Module, run: nn.Module, x: Tensor) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    run(x).sum().backward()


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256)).cuda()


def test_elementwise_work_is_one_kernel(session: Session) -> None:
    fused = torch.compile(lambda x, y: F.gelu(x * 2 + y).sin())
    x, y = torch.randn(2, 1 << 20, device="cuda").unbind()
    fused(x, y)
    before = len(session.trace)
    fused(x, y)
    (kernel,) = [record for record in list(session.trace)[before:] if record.kind == Kind.KERNEL]
    assert kernel.signature.name.startswith("triton_poi_fused")
    assert (kernel.signature.read_bytes, kernel.signature.written_bytes) == (8 << 20, 4 << 20)
    assert ("nodes", 1) in kernel.signature.detail


def test_random_numbers_of_several_layers_cost_the_same(session: Session) -> None:
    """One kernel serves them all, and gets the number of its seed among its arguments."""
    fused = torch.compile(lambda x, w: F.dropout(F.dropout(F.dropout(x @ w) @ w) @ w))
    x = torch.randn(256, 256, device="cuda")
    fused(x, x)
    before = len(session.trace)
    fused(x, x)
    kernels = [record.signature for record in list(session.trace)[before:] if record.kind == Kind.KERNEL]
    dropouts = [(one.read_bytes, one.written_bytes) for one in kernels if "dropout" in one.name]
    assert len(dropouts) == 3
    assert len(set(dropouts)) == 1


def test_products_are_the_librarys(session: Session) -> None:
    module = layers()
    compiled = torch.compile(module)
    x = torch.randn(64, 256, device="cuda")
    step(module, compiled, x)
    before = len(session.trace)
    compiled(x)
    names = launched(session, before)
    assert sum(name.startswith("aten::") for name in names) == 2
    assert sum(name.startswith("triton_") for name in names) == 2


def test_attention_takes_the_kernel_that_its_masks_layout_allows(session: Session) -> None:
    """A mask whose rows are one element each, as BERT's in Transformers, leaves plain math; so it does uncompiled."""

    def attend(x: Tensor, row: Tensor) -> Tensor:
        mask = (row >= 0)[:, None].expand(2, 1, 64, 64) if row.dim() == 1 else row >= 0
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x = torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.half)
    for mask, is_fused in ((torch.arange(64, device="cuda"), False), (torch.ones(64, 64, device="cuda"), True)):
        for run in (attend, torch.compile(attend)):
            run(x, mask)
            before = len(session.trace)
            run(x, mask)
            names = launched(session, before)
            assert any("dot_product" in name and name.startswith("aten::") for name in names) is is_fused
            assert ("aten::bmm" in names) is not is_fused


def test_the_peak_is_below_that_of_the_uncompiled_program(session: Session) -> None:
    module = layers()
    compiled = torch.compile(module)
    x = torch.randn(4096, 256, device="cuda")
    peaks = []
    for run in (module, compiled):
        step(module, run, x)
        torch.cuda.reset_peak_memory_stats()
        step(module, run, x)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < peaks[0]


def test_buffers_are_given_back(session: Session) -> None:
    chain = torch.compile(lambda x, w: ((x @ w).relu() @ w).sum())
    x, w = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    out = chain(x, w)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        out = chain(x, w)
    assert torch.cuda.memory_allocated() == before
    size = 4 << 20
    assert before + 2 * size <= torch.cuda.max_memory_allocated() <= before + 2 * size + (1 << 20)
    del out


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_without_data_all_is_as_with(mode: str) -> None:
    seen = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data) as session:
            module = layers()
            compiled = torch.compile(module, mode=mode)
            x = torch.randn(64, 256, device="cuda")
            step(module, compiled, x)  # while it is compiled, PyTorch's logs look at values
            torch.cuda.synchronize()
            begin, rows = session.trace.end_ns(), len(session.trace)
            for _ in range(3):
                step(module, compiled, x)
            torch.cuda.synchronize()
            stats = torch.cuda.memory_stats()
            peaks = [stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")]
            seen.append((launched(session, rows), peaks, session.trace.end_ns() - begin))
    assert seen[0] == seen[1]


def test_replays_cost_the_host_one_launch(session: Session) -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))).cuda().eval()
    times = []
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(module, mode=mode)
        x = torch.randn(8, 64, device="cuda")
        with torch.no_grad():
            wanted = module(x)
            for _ in range(3):
                found = compiled(x)
            torch.testing.assert_close(found, wanted)
            before = time.perf_counter()  # the emulated host's clock
            compiled(x)
            times.append(time.perf_counter() - before)
    assert times[1] < 0.5 * times[0]


def test_autotuning_is_answered(session: Session) -> None:
    multiply = torch.compile(lambda x, y: (x @ y).relu(), mode="max-autotune-no-cudagraphs")
    x, y = torch.randn(2, 512, 512, device="cuda").unbind()
    torch.testing.assert_close(multiply(x, y), (x @ y).relu())


def test_the_history_of_memory_ends_no_graph() -> None:
    with windtunnel.emulate("A100", memory_history=True) as session, warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using `torch.compile")  # ... when there are global hooks on modules
        nn.Linear(8, 8).cuda()(torch.randn(8, 8, device="cuda"))  # a module that runs before anything is compiled
        module = layers()
        run = torch.compile(module, fullgraph=True)
        with torch.no_grad():
            run(torch.randn(64, 256, device="cuda"))
    allocated = [one for one in session.trace.memory_actions() if one.action == "alloc"]
    assert sum(one.size_bytes == 1 << 20 for one in allocated if one.category == "parameter") == 2
    assert {Path(one.site.file).name for one in allocated} == {Path(__file__).name}  # of no generated file
    assert not [note for note in session.trace.notes if note.code == "graph-break"]


def test_generated_code_lies_in_a_folder_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with windtunnel.emulate("A100"):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device="cuda"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["windtunnel"]


@pytest.mark.parametrize("name", ["aot_compile", "aoti_compile_and_package"])
def test_a_library_of_gpu_code_is_refused(session: Session, name: str) -> None:
    exported = torch.export.export(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))
    with pytest.raises(UnsupportedError, match=rf"torch._inductor.{name} compiles a library of GPU code"):
        getattr(torch._inductor, name)(exported, (torch.ones(1, 2, device="cuda"),))


def test_code_that_dynamo_would_save_is_refused(session: Session) -> None:
    module = torch.compile(nn.Linear(2, 2).cuda(), fullgraph=True)
    with pytest.raises(UnsupportedError, match=r"aot_compile_fullgraph saves code for a GPU"):
        module.forward.aot_compile(((torch.ones(1, 2, device="cuda"),), {}))


def test_a_draft_of_an_export_is_refused_on_a_gpu_alone(session: Session) -> None:
    with pytest.raises(UnsupportedError, match=r"draft_export computes .* export the model with torch.export.export"):
        torch.export.draft_export(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))
    drafted = torch.export.draft_export(nn.Linear(2, 2), (torch.ones(1, 2),))
    assert drafted.module()(torch.ones(1, 2)).shape == (1, 2)


def test_one_emulation_leaves_nothing_to_the_next() -> None:
    increase = torch.compile(lambda x: x + 1, backend="aot_eager")
    for gpus in ("A100", "H100"):
        with windtunnel.emulate(gpus):
            assert increase(torch.zeros(2, device="cuda")).is_cuda
    assert not increase(torch.zeros(2)).is_cuda


def _kernel_bytes(session: Session, function: Callable[..., Tensor], *args: Tensor) -> tuple[int, int, int]:
    """(bytes read, written, read again) of the one kernel that a function compiles to."""
    compiled = torch.compile(function)
    compiled(*args)
    before = len(session.trace)
    compiled(*args)
    (kernel,) = [record for record in list(session.trace)[before:] if record.kind == Kind.KERNEL]
    again = dict(kernel.signature.detail)["again"]
    assert isinstance(again, int)
    return kernel.signature.read_bytes, kernel.signature.written_bytes, again


def test_a_slice_costs_the_sectors_that_it_touches(session: Session) -> None:
    x, y = torch.randn(1024, 64, device="cuda"), torch.randn(1024, 64, device="cuda")
    assert _kernel_bytes(session, lambda x, y: x[:, 3:4] + y, x, y) == (1024 * 32 + 4 * y.numel(), 4 * y.numel(), 0)
    assert _kernel_bytes(session, lambda x, y: x[:, :8] + y[:, 8:16], x, y) == (2 * 1024 * 32, 1024 * 32, 0)


def test_overlapping_windows_are_read_once(session: Session) -> None:
    x = torch.randn(1 << 16, device="cuda")
    read, written, _ = _kernel_bytes(session, lambda x: x[:-2] + x[1:-1] + x[2:], x)
    assert 4 * x.numel() <= read <= 4 * x.numel() + 64
    assert written == 4 * (x.numel() - 2)


def test_a_value_that_a_dimension_repeats_is_read_once(session: Session) -> None:
    x, row = torch.randn(512, 256, device="cuda"), torch.randn(256, device="cuda")
    assert _kernel_bytes(session, lambda x, row: x * row, x, row) == (4 * (x.numel() + 256), 4 * x.numel(), 0)


def test_a_row_that_is_looked_up_once_is_read_once(session: Session) -> None:
    """Every row of the product looks the same embedding up: what all of them read is that and the matrix."""
    table, matrix = torch.ones(1000, 256, device="cuda"), torch.ones(512, 256, device="cuda")
    token = torch.zeros(1, dtype=torch.int64, device="cuda")
    read, _, _ = _kernel_bytes(session, lambda m, t, i: (m * (t[i] * 2)).sum(1), matrix, table, token)
    assert read == 4 * (512 * 256 + 256) + 8


def test_long_rows_are_read_again_in_the_second_loop(session: Session) -> None:
    short, long = torch.randn(256, 512, device="cuda"), torch.randn(1024, 8192, device="cuda")
    norm = partial(F.layer_norm, normalized_shape=(8192,))
    assert _kernel_bytes(session, partial(F.softmax, dim=-1), short) == (4 * short.numel(), 4 * short.numel(), 0)
    assert _kernel_bytes(session, norm, long) == (4 * long.numel(), 4 * long.numel(), 4 * long.numel())


def test_without_data_a_graph_may_make_tensors_itself() -> None:
    with windtunnel.emulate("A100", no_data=True):
        compiled = torch.compile(lambda x: x * torch.arange(8, device="cuda").cos())
        y = compiled(torch.randn(4, 8, device="cuda"))
        assert (y.device.type, y.shape) == ("cuda", (4, 8))


def test_a_program_that_never_imported_inductor_ends_with_complete_records(tmp_path: Path) -> None:
    """Dynamo is emptied when the process ends, and Python imports nothing of threads by then."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\n"
        "one = torch.ones(2, device='cuda')\n"
        "print(torch.cond(one.sum() > 0, lambda x: x + 1, lambda x: x - 1, (one,)).tolist())\n"
        "print('torch._inductor.compile_fx' in sys.modules)\n"
    )
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "A100", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[2.0, 2.0]", "False"]
    assert "INCOMPLETE" not in done.stderr
    assert "Traceback" not in done.stderr


def test_autocast_s_state_ends_no_graph(session: Session) -> None:
    """Programs ask for it in their forward pass, as timm's and transformers' do: a constant to Dynamo."""

    def forward(x: Tensor) -> Tensor:
        y = x * 2
        return y.half() if torch.is_autocast_enabled("cuda") else y

    compiled = torch.compile(forward, fullgraph=True)
    x = torch.ones(8, device="cuda")
    assert compiled(x).dtype == torch.float32
    with torch.autocast("cuda", torch.float16):
        assert compiled(x).dtype == torch.float16


def test_the_report_counts_graphs_kernels_and_breaks(session: Session) -> None:
    module = layers()

    def forward(x: Tensor) -> Tensor:
        y = module(x)
        if y.sum() > 0:
            y = y * 2
        return y.sin() + 1

    run = torch.compile(forward)
    x = torch.randn(64, 256, device="cuda")  # the same one twice: another may take the other branch
    for _ in range(2):
        run(x).sum().backward()
    found = compiled.measure(session.trace)
    assert found is not None
    assert (len(found.graphs), found.breaks) == (4, 1)
    first = found.graphs[0]
    assert first.kernels - first.generated == 2  # the products
    assert first.nodes > first.generated
    assert first.operators > first.nodes
    assert found.compile_ns > 10**8
    explained = torch._dynamo.explain(forward)(x)
    assert (explained.graph_count, explained.graph_break_count) == (2, 1)


def test_zeros_for_results_that_the_loss_leaves_out_are_the_gpus(session: Session) -> None:
    """Logits beside the loss, as nanoGPT returns them: their gradient is a kernel and none of the host's time."""
    model = nn.Linear(512, 512).cuda()

    @torch.compile
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        results = model(x)
        return results, results.mean()

    x = torch.randn(65536, 512, device="cuda")
    for _ in range(2):
        loss = step(x)[1]
        torch.cuda.synchronize()
        since, begun = len(session.trace.rows), time.perf_counter()
        loss.backward()
        spent_s = time.perf_counter() - begun
    assert "aten::zeros" in launched(session, since)
    assert spent_s < 0.005  # zeros of 128 MiB take the host 15 ms
