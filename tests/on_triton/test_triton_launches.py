"""Launches of Triton kernels: what counts where, graphs, tuning, timing, arguments, refusals."""

from __future__ import annotations

import warnings

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from understudy import emulate
from understudy.errors import UnsupportedError
from understudy.seam.torch.triton.base import check_version
from understudy.session import Session
from understudy.trace.operation import Kind


@pytest.fixture
def session():
    with emulate("2xA100") as session:
        yield session


def rows(session: Session, kernel: str):
    return [row for row in session.trace if row.signature.name == f"triton::{kernel}"]


def codes(session: Session) -> set[str]:
    return {finding.code for finding in session.findings() if finding.severity != "info"}


@triton.jit
def scaled(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, factor * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def halved(x):
    return x * 0.5


@triton.jit
def mean_of_two(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, halved(tl.load(x_ptr + at) + tl.load(y_ptr + at)))


def test_before_and_after_an_emulation_kernels_are_tritons_own():
    run = triton.runtime.jit.JITFunction.run
    with emulate("V100") as session:
        x = torch.ones(8, device="cuda")
        mean_of_two[(1,)](x, x.clone(), BLOCK=8)
        assert len(rows(session, "mean_of_two")) == 1
        assert triton.runtime.jit.JITFunction.run is not run
    assert triton.runtime.jit.JITFunction.run is run
    assert "__bool__" not in vars(triton.runtime.jit.JITFunction)
    assert tl.load.__module__ == "triton.language.core"


def test_a_kernel_changes_nothing_in_the_programs_names(session):
    names = set(globals())
    x = torch.ones(8, device="cuda")
    mean_of_two[(1,)](x, x, BLOCK=8)
    assert set(globals()) == names


def test_traffic_is_counted_in_sectors(session):
    x, out = torch.ones(4096, device="cuda"), torch.empty(128, device="cuda")

    @triton.jit
    def gather(x_ptr, out_ptr, step, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at * step))

    gather[(1,)](x, out, 32, BLOCK=128)
    (row,) = rows(session, "gather")
    assert (row.signature.read_bytes, row.signature.written_bytes) == (128 * 32, 128 * 4)
    assert row.value == 128 * 32 + 128 * 4


def test_more_programs_than_fit_at_once_take_longer(session):
    x = torch.rand(1 << 20, device="cuda")
    out = torch.empty_like(x)
    scaled[(8192,)](x, out, x.numel(), 2.0)
    scaled[(8,)](x, out, 1024, 2.0)
    large, small = rows(session, "scaled")
    assert large.end_ns - large.start_ns > 2 * (small.end_ns - small.start_ns)
    assert torch.equal(out, 2 * x)


def test_a_launch_in_a_graph_runs_at_each_replay(session):
    x, out = torch.ones(300, device="cuda"), torch.zeros(300, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scaled[(3,)](x, out, 300, 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        scaled[(3,)](y, out, 300, 2.0)
    assert out[0].item() == 2  # nothing ran while it was captured
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * (value + 1)] * 300
    replayed = [row for row in rows(session, "scaled") if row.kind == Kind.KERNEL]
    assert len(replayed) == 3


def test_streams_that_do_not_wait_race(session):
    x = torch.ones(1024, device="cuda")
    out = torch.empty_like(x)
    side = torch.cuda.Stream()
    scaled[(8,)](x, out, 1024, 2.0)
    with torch.cuda.stream(side):
        scaled[(8,)](out, x, 1024, 2.0)
    assert "unsynchronized-access" in codes(session)


def test_an_autotuned_kernel_is_computed_once(session):
    computed = []

    @triton.autotune([triton.Config({"BLOCK": size}, num_warps=4) for size in (16, 256)], key=["n"])
    @triton.heuristics({"EVEN": lambda meta: meta["n"] % meta["BLOCK"] == 0})
    @triton.jit
    def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at) if EVEN else tl.load(x_ptr + at, mask=at < n)
        tl.atomic_add(out_ptr + at, x, mask=at < n)

    x, out = torch.rand(5000, device="cuda"), torch.zeros(5000, device="cuda")
    tuned[lambda meta: (computed.append(meta["BLOCK"]) or triton.cdiv(5000, meta["BLOCK"]),)](x, out, 5000)
    assert torch.equal(out, x)  # and not a multiple of it
    assert len(rows(session, "tuned")) == 1
    assert sorted(set(computed)) == [16, 256]
    assert set(tuned.configs_timings) == set(tuned.configs)
    assert codes(session) == set()


def test_do_bench_gives_the_modelled_time(session):
    x = torch.rand(1 << 16, device="cuda")
    out = torch.empty_like(x)
    measured = triton.testing.do_bench(lambda: scaled[(512,)](x, out, 1 << 16, 2.0))
    launched = rows(session, "scaled")
    assert len(launched) == 2
    assert measured >= 1e-6 * (launched[1].end_ns - launched[1].start_ns)
    quantiles = triton.testing.do_bench(lambda: scaled[(512,)](x, out, 1 << 16, 2.0), quantiles=[0.5, 0.2, 0.8])
    assert quantiles == pytest.approx(3 * [measured], rel=0.01)
    in_graph = triton.testing.do_bench_cudagraph(lambda: scaled[(512,)](x, out, 1 << 16, 2.0))
    assert in_graph <= measured


def test_the_driver_says_which_gpu_it_is(session):
    active = triton.runtime.driver.active
    assert active.get_active_torch_device() == torch.device("cuda", 0)
    assert active.get_current_target().arch == 80
    assert active.utils.get_device_properties(0)["multiprocessor_count"] == 108


def test_a_kernel_compiled_beforehand_says_its_registers(session, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.ones(8, device="cuda")
    compiled = mean_of_two.warmup(x, x, BLOCK=8, grid=(1,))
    compiled._init_handles()
    assert 0 < compiled.n_regs < 64
    assert compiled.metadata.target.arch == 80


def test_a_kernel_compiled_beforehand_is_launched_with_what_was_compiled_in(session, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y, other = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    compiled = mean_of_two.warmup(x, x, BLOCK=64, num_warps=8, grid=(1,))
    compiled[(1, 1, 1)](x, y, 64)
    mean_of_two[(1,)](x, other, BLOCK=64, num_warps=8)
    assert torch.equal(y, other)
    assert y.any()
    beforehand, directly = rows(session, "mean_of_two")
    assert beforehand.signature == directly.signature
    with pytest.raises(UnsupportedError, match="on the current stream"):
        compiled[(1, 1, 1)](x, y, 64, stream=torch.cuda.Stream().cuda_stream)


def test_products_are_priced_at_the_rate_of_their_type(session):
    @triton.jit
    def square(x_ptr, out_ptr, N: tl.constexpr):
        at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        x = tl.load(x_ptr + at)
        tl.store(out_ptr + at, tl.dot(x, x).to(x.dtype))

    for dtype in (torch.float16, torch.float32):
        x = torch.rand(64, 64, device="cuda", dtype=dtype)
        out = torch.empty_like(x)
        square[(1,)](x, out, N=64)
        torch.testing.assert_close(out, (x.float() @ x.float()).to(dtype))
    half, single = rows(session, "square")
    assert half.signature.flops == single.signature.flops == 2 * 64**3
    assert (half.signature.dtypes, single.signature.dtypes) == (("float16",), ("float32",))
    assert ("tf32", 1) in single.signature.detail


def test_tensors_elsewhere_are_refused_as_on_a_gpu(session):
    host, other = torch.ones(8), torch.ones(8, device="cuda:1")
    for tensor in (host, other):
        with pytest.raises(
            ValueError, match=r"Pointer argument \(at 0\) cannot be accessed from Triton \(cpu tensor\?\)"
        ):
            mean_of_two[(1,)](tensor, torch.ones(8, device="cuda"), BLOCK=8)
    with pytest.raises(KeyError, match="Keyword argument BLOK was specified but unrecognised"):
        scaled[(1,)](torch.ones(8, device="cuda"), torch.ones(8, device="cuda"), 8, 1.0, BLOK=8)


def test_descriptors_and_tuples(session):
    @triton.jit
    def copy_tiles(source, target_ptr, sizes, BM: tl.constexpr, BN: tl.constexpr):
        row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
        target = tl.make_tensor_descriptor(
            target_ptr, shape=[sizes[0], sizes[1]], strides=[sizes[1], 1], block_shape=[BM, BN]
        )
        target.store([row, column], source.load([row, column]))

    x, out = torch.rand(40, 32, device="cuda"), torch.empty(40, 32, device="cuda")
    copy_tiles[(3, 2)](TensorDescriptor.from_tensor(x, [16, 16]), out, tuple(x.shape), BM=16, BN=16)
    assert torch.equal(out, x)
    assert codes(session) == set()


def test_pointers_from_memory_lead_to_live_tensors(session):
    @triton.jit
    def add_all(pointers_ptr, out_ptr, count, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for index in range(count):
            x_ptr = tl.load(pointers_ptr + index).to(tl.pointer_type(tl.float32))
            total += tl.load(x_ptr + at)
        tl.store(out_ptr + at, total)

    tensors = [torch.rand(16, device="cuda") for _ in range(3)]
    pointers = torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")
    out = torch.empty(16, device="cuda")
    add_all[(1,)](pointers, out, 3, BLOCK=16)
    torch.testing.assert_close(out, sum(tensors))


def test_bfloat16_is_rounded_as_on_a_gpu(session):
    @triton.jit
    def mixed(x_ptr, y_ptr, sum_ptr, narrow_ptr, total_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
        tl.store(sum_ptr + at, x + y)
        tl.store(narrow_ptr + at, (x.to(tl.float32) * 1.01).to(tl.bfloat16))
        tl.store(total_ptr, tl.max(x, axis=0))

    x, y = (torch.randn(256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found, narrow, most = torch.empty_like(x), torch.empty_like(x), torch.empty(1, device="cuda", dtype=torch.bfloat16)
    mixed[(1,)](x, y, found, narrow, most, BLOCK=256)
    assert torch.equal(found, x + y)
    assert torch.equal(narrow, (x.float() * 1.01).bfloat16())
    assert torch.equal(most[0], x.max())


def test_functions_of_libdevice_and_of_the_programs_own_reductions(session):
    @triton.jit
    def larger(a, a_at, b, b_at):
        first = a >= b
        return tl.where(first, a, b), tl.where(first, a_at, b_at)

    @triton.jit
    def curious(x_ptr, out_ptr, best_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at)
        tl.store(out_ptr + at, libdevice.tanh(x))
        best, where = tl.reduce((x, at), 0, larger)
        tl.store(best_ptr, best + where)
        tl.store(out_ptr + BLOCK + at, tl.associative_scan(x, 0, most))

    @triton.jit
    def most(a, b):
        return tl.maximum(a, b)

    x = torch.randn(64, device="cuda")
    out, best = torch.empty(128, device="cuda"), torch.empty(1, device="cuda")
    curious[(1,)](x, out, best, BLOCK=64)
    torch.testing.assert_close(out[:64], torch.tanh(x))
    torch.testing.assert_close(out[64:], torch.cummax(x, 0).values)
    torch.testing.assert_close(best[0], x.max() + x.argmax())


def test_what_means_something_else_in_python_means_what_triton_means(session):
    @triton.jit
    def window(x_ptr, out_ptr, low, high, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        assert BLOCK > 1000  # left out, as without debugging
        tl.store(out_ptr + at, tl.load(x_ptr + at), mask=(at >= low) and (at < high))

    @triton.jit
    def chained(x_ptr, n):
        at = tl.arange(0, 16)
        tl.store(x_ptr + at, 1.0, mask=0 <= at < n)

    @triton.jit
    def undecided(x_ptr, n):
        at = tl.arange(0, 16)
        if at < n:
            tl.store(x_ptr + at, 1.0)

    x, out = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    window[(1,)](x, out, 3, 7, BLOCK=16)
    assert out.tolist() == [0.0] * 3 + [1.0] * 4 + [0.0] * 9
    with pytest.raises(ValueError, match="simultaneous multiple comparison is not supported"):
        chained[(1,)](x, 8)
    with pytest.raises(ValueError, match="Boolean value of Tensor with more than one value is ambiguous"):
        undecided[(1,)](x, 8)


def test_inline_assembler_is_refused(session):
    @triton.jit
    def assembled(x_ptr):
        x = tl.load(x_ptr)
        tl.store(x_ptr, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.int32, True, 1))

    with pytest.raises(UnsupportedError, match=r"'assembled' uses inline_asm \(.*test_triton_launches.py:\d+\)"):
        assembled[(1,)](torch.ones(1, dtype=torch.int32, device="cuda"))


def test_memory_that_is_not_mapped_ends_the_context():
    with emulate("A100"):
        x, out = torch.ones(8, device="cuda"), torch.empty(8, device="cuda")

        @triton.jit
        def far(x_ptr, out_ptr):
            tl.store(out_ptr, tl.load(x_ptr + 100_000_000))

        far[(1,)](x, out)
        with pytest.raises(RuntimeError, match="CUDA error: an illegal memory access was encountered") as caught:
            torch.cuda.synchronize()
        assert any("'x_ptr'" in note and "test_triton_launches.py" in note for note in caught.value.__notes__)


def test_a_rehearsal_without_data_prices_a_few_programs():
    with emulate("A100", no_data=True) as session:
        x = torch.empty(1 << 30, device="cuda")
        out = torch.empty_like(x)
        scaled[(1 << 20,)](x, out, x.numel(), 2.0, BLOCK=1024)
        (row,) = rows(session, "scaled")
        assert row.value == 2 * 4 * (1 << 30)


def test_a_trace_says_the_same_without_and_with_the_variable(session, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    kernel = triton.jit(scaled.fn)
    monkeypatch.undo()
    x, out = torch.ones(300, device="cuda"), torch.empty(300, device="cuda")
    scaled[(3,)](x, out, 300, 2.0)
    kernel[(3,)](x, out, 300, 2.0)
    first, second = rows(session, "scaled")
    assert first.signature == second.signature
    assert not [row for row in session.trace if row.kind == Kind.COPY]
    assert "copy-back-and-forth" not in codes(session)


def test_operators_of_the_librarys_own(session):
    @torch.library.triton_op("understudy_tests::double", mutates_args={})
    def double(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(scaled)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), 2.0)
        return out

    x = torch.rand(200, device="cuda")
    assert torch.equal(double(x), 2 * x)
    assert len(rows(session, "scaled")) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.compile(double)(x), 2 * x)


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.2.0")
    with pytest.raises(UnsupportedError, match=r"kernels of Triton 3.7 or newer, and this is 3\.2\.0"):
        check_version()
