"""Launches of Triton kernels: what counts where, graphs, tuning, timing, arguments, refusals."""

from __future__ import annotations

import warnings

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from windtunnel import emulate
from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.triton.base import check_version
from windtunnel.seam.torch.triton.interpreter import Interpreter
from windtunnel.session import Session
from windtunnel.trace.operation import Kind


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


def test_a_driver_that_a_library_makes_is_the_emulated_one(session):
    from triton.backends.nvidia.driver import CudaDriver, libcuda_dirs

    assert CudaDriver.is_active()
    assert libcuda_dirs() == []
    assert CudaDriver().get_current_target().arch == triton.runtime.driver.active.get_current_target().arch


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


def test_a_launch_returns_the_compiled_kernel(session, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.ones(8, device="cuda")
    before = torch.cuda.memory_allocated()
    y = x.clone()
    launched = mean_of_two[(1,)](x, y, BLOCK=8)
    del y
    assert torch.cuda.memory_allocated() == before
    assert 0 < launched.n_regs < 64
    assert (launched.n_spills, launched.metadata.num_warps) == (0, 4)
    assert ".target sm_80" in launched.asm["ptx"]


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


def test_annotated_arguments_have_their_types(session):
    @triton.jit
    def squared(out_ptr, number: tl.int64, share: tl.float32, plain):
        tl.store(out_ptr, number * number)
        tl.store(out_ptr + 1, (plain * plain).to(tl.int64))
        tl.store(out_ptr + 2, (share / 2).to(tl.int64))

    out = torch.empty(3, dtype=torch.int64, device="cuda")
    squared[(1,)](out, 100_000, 5, 100_000)
    assert out.tolist() == [10**10, 1410065408, 2]  # and plain arguments overflow, since they have 32 bits
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        squared[(1,)](out, 2.5, 5.0, 1)


def test_what_does_not_fit_in_shared_memory_is_refused_as_by_triton(session):
    @triton.jit
    def square(x_ptr, out_ptr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        x = tl.load(x_ptr + at)
        tl.atomic_add(out_ptr + at, tl.dot(x, x))

    x, out = torch.rand(256, 256, device="cuda"), torch.zeros(256, 256, device="cuda")
    refused = r"out of resource: shared memory, Required: 524288, Hardware limit: 166912"
    with pytest.raises(triton.runtime.errors.OutOfResources, match=refused):
        square[(1,)](x, out, SIZE=256)
    assert not out.any()  # nothing ran
    sizes = [triton.Config({"SIZE": size}) for size in (256, 64)]
    tuned = triton.autotune(sizes, key=[])(square)
    tuned[(1,)](x, out)
    assert tuned.best_config.kwargs == {"SIZE": 64}
    assert tuned.configs_timings[sizes[0]] == [float("inf")] * 3


def test_device_print_writes_as_cuda(session, capsys):
    @triton.jit
    def printed(x_ptr, BLOCK: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        tl.device_print("x", x)
        print("twice", x * 2, tl.program_id(0))
        tl.device_print("bits: ", tl.program_id(0) + 10, hex=True)

    printed[(2,)](torch.arange(2, device="cuda").float(), BLOCK=2)
    assert capsys.readouterr().out.splitlines()[:6] == [
        "pid (0, 0, 0) idx (0) x: 0.000000",
        "pid (0, 0, 0) idx (1) x: 1.000000",
        "pid (0, 0, 0) idx (0) twice: (operand 0) 0.000000",
        "pid (0, 0, 0) idx (1) twice: (operand 0) 2.000000",
        "pid (0, 0, 0) idx () twice: (operand 1) 0",
        "pid (0, 0, 0) idx () bits: 0x0000000a",
    ]


@pytest.mark.parametrize("debug", [False, True])
def test_assertions_end_the_context_if_the_kernel_is_compiled_for_debugging(debug):
    @triton.jit
    def small(x_ptr, BLOCK: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        tl.device_assert(x < 3, "x is too large")
        assert x < 100, "never"

    with emulate("A100") as session:
        small[(1,)](torch.arange(4, device="cuda"), BLOCK=4, debug=debug)
        if not debug:
            torch.cuda.synchronize()
            assert codes(session) == set()
            return
        with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered") as caught:
            torch.cuda.synchronize()
        assert any("Assertion `x is too large` failed" in note for note in caught.value.__notes__)
    assert "device-assert" in codes(session)


def test_atomics_on_blocks_of_descriptors_and_bfloat16(session):
    @triton.jit
    def summed(x_ptr, out_ptr, count_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
        x = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
        out = tl.make_tensor_descriptor(out_ptr, shape=[BM - 1, N], strides=[N, 1], block_shape=[BM, BN])
        out.atomic_add([0, 0], x.load([tl.program_id(0) * BM, 0]))
        tl.atomic_add(count_ptr + tl.arange(0, BM), tl.full([BM], 0.5, tl.bfloat16))

    x, out = torch.rand(12, 8, device="cuda"), torch.zeros(3, 8, device="cuda")
    counts = torch.zeros(4, dtype=torch.bfloat16, device="cuda")
    summed[(3,)](x, out, counts, 12, 8, BM=4, BN=8)
    torch.testing.assert_close(out, x.view(3, 4, 8).sum(0)[:3])
    assert counts.tolist() == [1.5] * 4
    assert codes(session) == set()


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
    @torch.library.triton_op("windtunnel_tests::double", mutates_args={})
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


def test_a_triton_that_calls_its_interpreter_otherwise_is_refused_before_anything_runs(monkeypatch):
    def create_masked_load(self, ptrs, policy, mask, other):
        """As a version might have it that does not exist yet."""

    create_masked_load.__module__ = "triton.runtime.interpreter"
    builder = triton.runtime.interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "create_masked_load", create_masked_load)
    with pytest.raises(UnsupportedError, match=r"create_masked_load\(ptrs, policy, mask, other\), which emulated"):
        Interpreter().check()


def test_this_triton_calls_its_interpreter_as_is_known():
    Interpreter().check()


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.2.0")
    with pytest.raises(UnsupportedError, match=r"kernels of Triton 3\.2\.0: pip install .triton>=3\.7"):
        check_version()


@triton.jit
def first_of(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


WRITES = {
    "a slice": lambda x: x[:50].fill_(1.0),
    "a copy of the host's": lambda x: x[:50].copy_(torch.rand(50)),
    "two slices": lambda x: (x[25:50].zero_(), x[:25].normal_()),
    "through data": lambda x: x.data[:50].fill_(1.0),
    "assigned": lambda x: x.__setitem__(slice(0, 50), torch.ones(50, device="cuda")),
    "after a kernel": lambda x: (first_of[(1,)](torch.rand(64, device="cuda"), x, 10, BLOCK=64), x[10:50].fill_(2.0)),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_operators_write_of_empty_memory_is_known_to_the_byte(session, write):
    out = torch.zeros(64, device="cuda")
    for count, wanted in ((50, set()), (51, {"triton-uninitialized"})):
        x = torch.empty(64, device="cuda")
        WRITES[write](x)
        first_of[(1,)](x, out, count, BLOCK=64)
        assert codes(session) == wanted


def test_columns_that_nobody_wrote(session):
    out = torch.zeros(64, device="cuda")
    x = torch.empty(8, 8, device="cuda")
    x[:, :7] = 1.0
    first_of[(1,)](x, out, 7, BLOCK=64)
    assert codes(session) == set()
    first_of[(1,)](x, out, 8, BLOCK=64)
    assert codes(session) == {"triton-uninitialized"}


def test_writes_that_are_not_told_apart_count_for_all(session):
    out = torch.zeros(64, device="cuda")
    for write in (
        lambda x: x.index_put_((torch.tensor([1], device="cuda"),), torch.ones(1, device="cuda")),
        lambda x: torch._foreach_copy_([x[:32], x[32:]], [out[:32], out[32:]]),
        lambda x: torch.add(out, 1, out=x),
    ):
        x = torch.empty(64, device="cuda")
        write(x)
        first_of[(1,)](x, out, 64, BLOCK=64)
    x = torch.empty(64, device="cuda")
    x[:10] = 1.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x[10:].fill_(2.0)
    graph.replay()
    first_of[(1,)](x, out, 64, BLOCK=64)
    assert codes(session) == set()


def test_the_same_value_by_two_programs_hides_no_other_value(session):
    @triton.jit
    def by_pairs(out_ptr):
        tl.store(out_ptr, tl.program_id(0) // 2)

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for programs, severity in ((2, "warning"), (3, "error")):
        by_pairs[(programs,)](out)
        found = [finding.severity for finding in session.findings() if finding.code == "triton-write-conflict"]
        assert found == [severity]


@triton.jit
def shifted_rows(x_ptr, out_ptr, rows, D: tl.constexpr, B: tl.constexpr):
    x_at = tl.make_block_ptr(x_ptr, (rows, D), (D, 1), (0, 0), (B, D), (1, 0))
    out_at = tl.make_block_ptr(out_ptr, (rows, D), (D, 1), (0, 0), (B, D), (1, 0))
    x = tl.load(tl.advance(x_at, (B, 0)), boundary_check=(0,), padding_option="zero")
    tl.store(out_at, x, boundary_check=(0,))


def test_block_pointers_are_what_this_version_of_triton_has(session):
    x, out = torch.rand(6, 8, device="cuda"), torch.ones(6, 8, device="cuda")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
        shifted_rows[(1,)](x, out, 6, D=8, B=4)
        torch.testing.assert_close(out[:4], torch.cat([x[4:], torch.zeros(2, 8, device="cuda")]))
    else:  # Triton's own words; triton-lang/triton#10833 removed them
        with pytest.raises(NotImplementedError, match="Block pointers have been removed"):
            shifted_rows[(1,)](x, out, 6, D=8, B=4)


@pytest.mark.parametrize("cache", ["", ".ca", ".cg"])
@pytest.mark.parametrize("eviction", ["", "evict_first", "evict_last"])
def test_hints_for_the_cache_change_no_value(session, cache, eviction):
    @triton.jit
    def copied(x_ptr, out_ptr, n, CACHE: tl.constexpr, EVICTION: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=-1.0, cache_modifier=CACHE, eviction_policy=EVICTION)
        tl.store(out_ptr + at, x)

    x, out = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    copied[(1,)](x, out, 5, CACHE=cache, EVICTION=eviction, BLOCK=8)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -1.0, -1.0]


def fp8_scaled(m, n, k, gpu):
    """A product of FP8 numbers with a power of two for each 32, and the same by PyTorch."""

    @triton.jit
    def product(a_ptr, b_ptr, sa_ptr, sb_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
        rows, columns, depth, blocks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
        a = tl.load(a_ptr + rows[:, None] * K + depth[None, :])
        b = tl.load(b_ptr + depth[:, None] * N + columns[None, :])
        sa = tl.load(sa_ptr + rows[:, None] * (K // 32) + blocks[None, :])
        sb = tl.load(sb_ptr + columns[:, None] * (K // 32) + blocks[None, :])
        out = tl.dot_scaled(a, sa, "e4m3", b, sb, "e5m2")
        tl.store(out_ptr + rows[:, None] * N + columns[None, :], out)

    with emulate(gpu) as session:
        a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(k, n, device="cuda").to(torch.float8_e5m2)
        sa, sb = (torch.randint(120, 134, (side, k // 32), dtype=torch.uint8, device="cuda") for side in (m, n))
        out = torch.zeros(m, n, device="cuda")
        product[(1,)](a, b, sa, sb, out, m, n, k)
        wide = [torch.exp2(scale.double() - 127).repeat_interleave(32, 1) for scale in (sa, sb)]
        expected = (a.double() * wide[0]) @ (b.double() * wide[1].T)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    return session


@pytest.mark.parametrize(("gpu", "precision"), [("H100", "bf16"), ("B200", "fp8")])
def test_scaled_products_are_computed_and_counted(gpu, precision):
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
        with pytest.raises(UnsupportedError, match="dot_scaled"):
            fp8_scaled(32, 16, 64, gpu)
        return
    session = fp8_scaled(32, 16, 64, gpu)
    (row,) = rows(session, "product")
    assert row.signature.flops == 2 * 32 * 16 * 64
    assert dict(row.signature.detail)["precision"] == precision
