"""What CUDA kernels take beyond their results: against sizes recorded on real GPUs, and row by row.

The recorded sizes are facts read from public memory snapshots (tests/conformance/memory/README.md names them): the
shapes and the bytes that one kernel asked for while it ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel
from windtunnel import gpus
from windtunnel.seam.torch import kernels
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.scratch import cublaslt
from windtunnel.seam.torch.scratch.need import Demand
from windtunnel.seam.torch.scratch.reduce import staging
from windtunnel.seam.torch.tags import VERSION
from windtunnel.session import Session

cuda = torch.cuda
MIB = 1 << 20
Work = Callable[[], object]
rows = pytest.mark.rows


@pytest.fixture
def dataless() -> Iterator[Session]:
    """An A100 without data: sizes are the same, and large ones cost nothing."""
    with windtunnel.emulate("A100", no_data=True, assume=0.0) as session:
        yield session


def taken(work: Work) -> tuple[int, int]:
    """How far the peak of `work` is above what it leaves, in bytes, and how many blocks it took in all."""
    cuda.reset_peak_memory_stats()
    before = cuda.memory_stats()["allocation.all.allocated"]
    kept = work()
    count = cuda.memory_stats()["allocation.all.allocated"] - before
    above = cuda.max_memory_allocated() - cuda.memory_allocated()
    del kept
    return above, count


def rounded(*sizes: int) -> int:
    """The bytes of these buffers as blocks."""
    return sum(-(-size // 512) * 512 for size in sizes)


# ---------------------------------------------------------------------------------------------- recorded on real GPUs

GPU_128 = dataclasses.replace(gpus.parse("RTX4090")[0], sm_count=128, max_threads_per_sm=1536)
GPU_48 = dataclasses.replace(GPU_128, sm_count=48)


@pytest.mark.parametrize(
    ("words", "recorded"), [(512, (0, 0)), (1024, (8388608, 32)), (2048, (16777216, 32)), (4096, (33554432, 32))]
)
def test_the_sum_over_a_batchs_rows(words: int, recorded: tuple[int, int]) -> None:
    """The gradient of RMSNorm's weight, float32: Wedsonlin/assignment2-systems, contexts of 128 to 1024 words."""
    assert staging((4, words // 4, 1024), (words * 256, 1024, 1), (0, 1), 4, GPU_128) == recorded


@pytest.mark.parametrize(
    ("elements", "size", "recorded"),
    [(1966080, 4, 576), (1966080, 1, 144), (1048576, 1, 128), (524288, 1, 64), (262144, 1, 32), (131072, 1, 16)],
)
def test_reductions_of_everything(elements: int, size: int, recorded: int) -> None:
    """The mean of an image's floats and `any` of its truths: JasperSolt/EoR_NN."""
    assert staging((elements,), (1,), (0,), size, GPU_48) == (recorded, 4)


def test_the_backward_pass_of_efficient_attention(dataless: Session) -> None:
    """32 heads of 1000 words and 64 numbers, float32: cranberrii/ftcourse took 128000 twice and 8396800 bytes."""
    heads = [torch.empty(1, 32, 1000, 64, device="cuda", requires_grad=True) for _ in range(3)]
    out = F.scaled_dot_product_attention(*heads)
    assert type(out.grad_fn).__name__ == "ScaledDotProductEfficientAttentionBackward0"
    grad = torch.empty_like(out)
    above, _ = taken(lambda: torch.autograd.grad(out, heads, grad, retain_graph=True))
    assert above == rounded(128000, 128000, 8396800)


@pytest.mark.parametrize(("channels", "side", "recorded"), [((16, 32), 128, 51328), ((32, 64), 64, 205056)])
def test_a_convolutions_workspace(dataless: Session, channels: tuple[int, int], side: int, recorded: int) -> None:
    """3 x 3, stride 1, float32: JasperSolt/EoR_NN."""
    layer = nn.Conv2d(*channels, 3, padding="same").cuda()
    images = torch.empty(1, channels[0], side, side, device="cuda")
    assert taken(lambda: layer(images))[0] == rounded(recorded)


def test_one_by_one_convolutions_take_none(dataless: Session) -> None:
    """HugePandaCoder/octree-nca-groupeq."""
    layer = nn.Conv2d(64, 128, 1).cuda()
    images = torch.empty(1, 64, 64, 64, device="cuda")
    assert taken(lambda: layer(images)) == (0, 1)  # the result alone


def test_forward_and_backward_pass_have_a_handle_each(session: Session) -> None:
    """The first `mm` of a backward pass takes a cuBLAS workspace of its own: JasperSolt/EoR_NN, 8519680 bytes."""
    x = torch.ones(8, 8, device="cuda", requires_grad=True)
    loss = (x @ x).sum()
    before = cuda.memory_allocated()
    loss.backward()
    assert cuda.memory_allocated() - before == 8519680 + x.nbytes + 256
    loss = (x @ x).sum()
    loss.backward()
    assert len(torch.cuda.memory_snapshot()) > 0
    torch._C._cuda_clearCublasWorkspaces()
    assert cuda.memory_allocated() < 8519680


# ---------------------------------------------------------------------------------------------- rows


@rows("addmm")
def test_a_bias_in_the_epilogue_takes_cublaslts_workspace(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    call = _addmm(torch.ones(8), torch.ones(4, 8), torch.ones(8, 8))
    assert cublaslt.fuses_bias(call)
    assert cublaslt.addmm(call).sizes == (MIB,)
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    assert cublaslt.addmm(call).sizes == (4 * MIB,)
    own = kernels.deviations().rows["addmm"].need(call).sizes
    assert own == ((4 * MIB,) if VERSION < (2, 12) else ())  # later ones use cuBLAS's
    assert not cublaslt.fuses_bias(_addmm(torch.ones(1), torch.ones(4, 8), torch.ones(8, 1)))


def _addmm(*tensors: torch.Tensor) -> Demand:
    plan = _plan("addmm")
    return Demand(Call(plan, plan.func, tensors, {}), GPU_48)


def test_cublaslts_workspace_is_kept_by_its_handle(session: Session) -> None:
    """Measured on an H100 with PyTorch 2.11: a product takes cuBLAS's workspace, one with a bias also cuBLASLt's."""
    x = torch.ones(16, 16, device="cuda")
    y = x @ x
    held = cuda.memory_allocated()
    assert held == rounded(x.nbytes, y.nbytes) + 8519680
    memory, device = torch.cuda.Stream._state.memory, session.machine.devices[0]
    for _ in range(2):
        memory.lt_workspace(device, device.streams[0])
        assert cuda.memory_allocated() == held + MIB
    torch._C._cuda_clearCublasWorkspaces()
    assert cuda.memory_allocated() == rounded(x.nbytes, y.nbytes)


@rows("_softmax", "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward")
@pytest.mark.parametrize(
    ("work", "copies"),
    [
        (lambda x, g: F.softmax(x, -1), 0),
        (lambda x, g: F.softmax(x.t(), -1), 1),
        (lambda x, g: F.layer_norm(x, (512,)), 0),
        (lambda x, g: F.layer_norm(x.t(), (512,)), 1),
        (lambda x, g: torch.ops.aten._log_softmax_backward_data(g.expand(512, 512), x, 1, torch.float32), 1),
        (lambda x, g: torch.ops.aten._log_softmax_backward_data(g.expand(512, 512), x.t(), 1, torch.float32), 2),
        (lambda x, g: torch.ops.aten.native_layer_norm_backward(
            g.expand(512, 512), x, [512], *x[:2].view(2, 512, 1), None, None, [True, False, False]), 1),
    ],
)  # fmt: skip
def test_softmax_and_norms_copy_what_does_not_lie_in_order(dataless: Session, work: Work, copies: int) -> None:
    """Liger-Kernel's RMS norms on an H100 peak at five tensors, not four. Means, which norms give too, are small."""
    x, gradient = torch.empty(512, 512, device="cuda"), torch.empty((), device="cuda")
    assert taken(lambda: work(x, gradient))[0] // x.nbytes == copies


def test_several_blocks_of_a_topk_share_one_histogram(session: Session) -> None:
    """Measured on an H100 with PyTorch 2.11; a V100 has other multiprocessors, and here as many blocks: one a row."""
    x = torch.ones(1024, 4096, device="cuda")
    before = cuda.memory_allocated()
    found = x.topk(8, 1)
    peak = cuda.max_memory_allocated() - before
    assert peak - sum(one.nbytes for one in found) == (1603072 if VERSION >= (2, 10) else 558592)


def test_an_embeddings_gradient_sorts_many_indices(dataless: Session) -> None:
    weight = torch.empty(1000, 64, device="cuda", requires_grad=True)
    few, many = (torch.empty(n, dtype=torch.long, device="cuda") for n in (3072, 4096))
    for indices, expected in ((few, 0), (many, rounded(*(8 * 4096,) * 6, 8, 8, 4096 * 64 * 4))):
        out = F.embedding(indices, weight)
        grad = torch.empty_like(out)
        assert taken(lambda out=out, grad=grad: torch.autograd.grad(out, weight, grad))[0] == expected


def test_accumulating_index_put_sorts(dataless: Session) -> None:
    table = torch.empty(10000, 8, device="cuda")
    indices = torch.empty(4096, dtype=torch.long, device="cuda")
    values = torch.empty(4096, 8, device="cuda")
    assert taken(lambda: table.index_put_((indices,), values, accumulate=True))[0] == rounded(*(32768,) * 5, 72191)
    assert taken(lambda: table.index_put_((indices,), values))[0] == 0


def test_counting_truths_converts_them(dataless: Session) -> None:
    right = torch.empty(1 << 20, dtype=torch.bool, device="cuda")
    above, _ = taken(lambda: right.sum())
    assert above > 8 << 20


def test_group_norm_keeps_factors(dataless: Session) -> None:
    layer = nn.GroupNorm(4, 256, device="cuda")
    images = torch.empty(8, 256, 16, 16, device="cuda")
    assert taken(lambda: layer(images))[0] == rounded(8 * 256 * 4, 8 * 256 * 4)


def test_a_norm_of_many_tensors_keeps_partial_ones(dataless: Session) -> None:
    tensors = [torch.empty(200_000, device="cuda"), torch.empty(10, device="cuda")]
    above, _ = taken(lambda: torch._foreach_norm(tensors))
    assert above == rounded(2 * 4 * 4)


def test_masks_become_positions(session: Session) -> None:
    x = torch.arange(1000, device="cuda")
    mask = x < 500
    above, _ = taken(lambda: x[mask])
    assert above == rounded(500 * 8)


def test_a_search_for_an_algorithm_takes_much_once(dataless: Session) -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1).cuda()
    images = torch.empty(4, 64, 56, 56, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        first, second = (taken(lambda: layer(images))[0] for _ in range(2))
    assert first > 4 * images.nbytes > second


def test_a_search_makes_do_with_less_memory() -> None:
    with windtunnel.emulate("V100", no_data=True):
        filler = torch.empty(14 << 30, dtype=torch.uint8, device="cuda")
        layer = nn.Conv2d(64, 64, 5, padding=2).cuda()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            out = layer(torch.empty(16, 64, 100, 100, device="cuda"))
        assert filler.numel()
        assert out.shape == (16, 64, 100, 100)


def test_a_search_gives_cached_memory_back(dataless: Session) -> None:
    """run_single_conv of Conv_v8.cpp empties the cache after it tried algorithms, and only then."""
    layer = nn.Conv2d(64, 64, 1).cuda()
    images = torch.empty(4, 64, 56, 56, device="cuda")
    cached = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        del cached
        layer(images)
        assert torch.cuda.memory_reserved() < 64 << 20
        cached = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        del cached
        layer(images)
        assert torch.cuda.memory_reserved() > 64 << 20


def test_rows_name_operators_that_exist() -> None:
    aten = torch.ops.aten
    unknown = {name for name in kernels.deviations().rows if not (hasattr(aten, name) or hasattr(aten, f"{name}_"))}
    assert unknown <= (set() if VERSION >= (2, 13) else {"_foreach_powsum", "_fused_rms_norm_backward"})


# ---------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize(
    ("to_device", "non_blocking", "expected"),
    [(True, False, 0), (True, True, 8 << 10), (False, False, 0), (False, True, 8 << 10)],
)
def test_a_converting_copy_is_staged_where_it_converts(
    session: Session, to_device: bool, non_blocking: bool, expected: int
) -> None:
    """copy_kernel_cuda of Copy.cu: a blocking copy converts on the host, a non_blocking one on the GPU."""
    source = torch.ones(
        1024, dtype=torch.float64 if to_device else torch.float32, device="cpu" if to_device else "cuda"
    )
    wanted = {"device": "cuda" if to_device else "cpu", "dtype": torch.float32 if to_device else torch.float64}
    assert taken(lambda: source.to(non_blocking=non_blocking, **wanted))[0] == expected


def test_what_is_not_contiguous_is_packed_on_the_gpu(session: Session) -> None:
    square = torch.ones(64, 64, device="cuda")
    assert taken(lambda: square.t().cpu())[0] == 0  # dense: copied as it lies
    assert taken(lambda: square[:, ::2].cpu())[0] == 64 * 32 * 4
    assert taken(lambda: torch.empty(64, 64).copy_(square.t()))[0] == 64 * 64 * 4
    assert taken(lambda: square.t().copy_(torch.empty(64, 64)))[0] == 64 * 64 * 4


@pytest.mark.parametrize(("non_blocking", "here", "there"), [(False, 0, 8 + 4), (True, 8, 8)])
def test_gpus_that_are_no_peers_convert_in_buffers(non_blocking: bool, here: int, there: int) -> None:
    """Copy.cu: a non_blocking copy converts on the source's GPU, a blocking one on the destination's."""
    with windtunnel.emulate("2xRTX4090"):
        assert not cuda.can_device_access_peer(0, 1)
        ones = torch.ones(64, 64, device="cuda")
        cuda.reset_peak_memory_stats(1)
        assert taken(lambda: ones.to(1, torch.float64, non_blocking=non_blocking))[0] == 64 * 64 * here
        assert cuda.max_memory_allocated(1) == 64 * 64 * there


def test_peers_convert_in_one_kernel(session: Session) -> None:
    square = torch.ones(64, 64, device="cuda")
    cuda.reset_peak_memory_stats(1)
    half = square.t().to("cuda:1", torch.float16)
    assert cuda.max_memory_allocated(1) == half.nbytes
    assert taken(lambda: square.to("cuda:1", torch.float16))[0] == 0


# ---------------------------------------------------------------------------------------------- the bound


def test_an_operator_without_a_row_widens_the_bound(dataless: Session) -> None:
    square = torch.empty(512, 512, device="cuda")
    torch.linalg.svd(square)
    device = dataless.machine.devices[0]
    assert device.upper_name == "aten::_linalg_svd"
    upper = device.upper_bytes
    assert upper >= cuda.max_memory_allocated() + square.nbytes
    cuda.reset_peak_memory_stats()  # the program's own peaks; a report is of the whole run
    dataless.complete()
    totals = dataless.trace.facts["devices"][0]
    assert totals["peak_at_most_bytes"] == upper > totals["peak_allocated_bytes"]
    assert totals["peak_unsure"] == "aten::_linalg_svd"


def test_known_operators_leave_the_bound_at_the_peak(dataless: Session) -> None:
    layer = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1)).cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    F.cross_entropy(
        layer(torch.empty(32, 64, device="cuda")), torch.empty(32, dtype=torch.long, device="cuda")
    ).backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    dataless.complete()
    totals = dataless.trace.facts["devices"][0]
    assert totals["peak_at_most_bytes"] == totals["peak_allocated_bytes"]
    assert totals["peak_unsure"] == ""
    assert 0 < totals["peak_band"] < 0.2


def _plan(name: str):
    from windtunnel.seam.torch.plans.plan import Plan

    return Plan(getattr(torch.ops.aten, name).default)


def test_workspace_sizes_can_be_asked_and_set(session: Session) -> None:
    if VERSION >= (2, 13):
        assert torch.backends.cuda.cublas_workspace_size() == 8519680
        assert torch.backends.cuda.cublaslt_workspace_size() == MIB
    torch._C._cuda_setCublasWorkspaceSize(4 * MIB)
    x = torch.ones(4, 4, device="cuda")
    y = x @ x
    assert cuda.memory_allocated() == rounded(x.nbytes, y.nbytes) + 4 * MIB


@pytest.mark.parametrize(("kind", "size"), [(nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)])
@pytest.mark.parametrize("no_data", [False, True])
def test_recurrent_layers_keep_what_cudnn_keeps(kind: type[nn.RNNBase], size: int, no_data: bool) -> None:
    """pytorch#2895 prints it for 25,000 steps x texts; nothing is kept without training."""
    with windtunnel.emulate("V100", no_data=no_data):
        layer = kind(123, 320, 4).cuda()
        words = torch.ones(20, 25, 123, device="cuda")
        out = layer(words)
        blocks = [block for segment in cuda.memory_snapshot() for block in segment["blocks"]]
        live = [block["requested_size"] for block in blocks if block["state"] == "active_allocated"]
        assert live.count(size // 50) == 1
        out[0].sum().backward()
        del out
        before = cuda.memory_allocated()
        with torch.no_grad():
            given = layer.eval()(words)
        states = 2 if kind is nn.LSTM else 1
        assert cuda.memory_allocated() - before == given[0].nbytes + states * 128_000


def test_recurrent_layers_widen_the_bound(session: Session) -> None:
    """What is published of cuDNN's workspace are a few sizes."""
    layer = nn.LSTM(16, 32, 2).cuda()
    layer(torch.ones(5, 4, 16, device="cuda"))[0].sum().backward()
    device = session.machine.devices[0]
    assert "rnn" in device.upper_name
    assert device.upper_bytes > cuda.max_memory_allocated()


# ---------------------------------------------------------------------------------------------- factors of products


@rows("mm", "bmm", "baddbmm")
@pytest.mark.parametrize(
    ("work", "copied"),
    [
        (lambda wide, _: wide.mm(wide.t()), ()),
        (lambda wide, _: wide[:, ::2].mm(wide[:, ::2].t()), (128 * 32, 128 * 32)),
        (lambda wide, one: one.expand(128, 64).mm(wide.t()), (128 * 64,)),
        (lambda wide, _: wide[:1].expand(128, 64).mm(wide.t()), (128 * 64,)),
        (lambda wide, one: torch.addmm(one.expand(128), wide, one.expand(64, 128)), (64 * 128,)),
        (lambda wide, _: wide.expand(4, 128, 64).bmm(wide.t().expand(4, 64, 128)), ()),
        (lambda wide, one: one.expand(4, 128, 64).bmm(wide.t().expand(4, 64, 128)), (4 * 128 * 64,)),
        (lambda wide, one: torch.baddbmm(one, wide[None], one.expand(1, 64, 128)), (64 * 128,)),
    ],
)
def test_factors_that_lie_in_no_line_are_copied_for_cublas(dataless: Session, work, copied: tuple[int, ...]) -> None:
    """`prepare_matrix_for_cublas` and its kin of aten/src/ATen/native/cuda/Blas.cpp."""
    wide, one = torch.ones(128, 64, device="cuda"), torch.ones((), device="cuda")
    work(wide, one)  # takes cuBLAS's workspace
    above, count = taken(lambda: work(wide, one))
    assert above == rounded(*(4 * size for size in copied))
    assert count == len(copied) + 1


def test_the_gradient_of_a_sum_behind_a_layer_is_copied_for_both_products(dataless: Session) -> None:
    """BERT's training in huggingface/transformers#28802, whose loss is the sum of its logits: 3,629 MB, and 3,573
    without the copies."""
    layer, x = nn.Linear(64, 4096, bias=False, device="cuda"), torch.ones(512, 64, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    layer.weight.grad = x.grad = None
    loss = layer(x).sum()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    loss.backward()
    gradient, of_x, of_weight = 4 * 512 * 4096, 4 * 512 * 64, 4 * 64 * 4096
    assert cuda.max_memory_allocated() - before == pytest.approx(gradient + of_x + of_weight, abs=2048)
