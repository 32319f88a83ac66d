"""`windtunnel.kernel`: operators of libraries that are not here, described by a few lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from windtunnel.errors import UsageError
from windtunnel.operators import described


@windtunnel.kernel("described_tests::swiglu", like="aten::silu", define=True)
def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * x


@windtunnel.kernel("described_tests::shifted", define="(Tensor(a!) x, int by=1) -> ()")
def shifted(x: torch.Tensor, by: int = 1) -> None:
    x.add_(by)


@windtunnel.kernel(
    "described_tests::product", like="aten::mm", flops=lambda a, b: 2 * a.numel() * b.shape[1], define=True
)
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@windtunnel.kernel("described_tests::two", define="(Tensor x, float eps, Tensor? y=None) -> (Tensor, Tensor)")
def two(x: torch.Tensor, eps: float, y: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return x + eps, x * (2 if y is None else y)


@windtunnel.kernel("described_tests::normed_attention", like="aten::mm", define=True)
def normed_attention(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*[F.rms_norm(x, weight.shape, weight, 1e-5)] * 3)


ops = torch.ops.described_tests


def test_it_is_one_kernel_with_the_functions_values() -> None:
    x, gate = torch.randn(64, 32), torch.randn(64, 32)
    with windtunnel.emulate("A100") as session:
        a, b = x.cuda(), gate.cuda()
        since, before = len(session.trace), torch.cuda.memory_allocated()
        out = ops.swiglu(a, b)
        assert [row.signature.name for row in session.trace.since(since)] == ["described_tests::swiglu"]
        assert torch.cuda.memory_allocated() - before == 64 * 32 * 4
        assert out.is_cuda
        assert out.cpu().equal(swiglu(x, gate))


def test_its_gradient_is_one_kernel_too() -> None:
    x, gate = torch.randn(8, 4), torch.randn(8, 4)
    wanted = [one.clone().requires_grad_() for one in (x, gate)]
    swiglu(*wanted).square().sum().backward()
    with windtunnel.emulate("A100") as session:
        found = [one.cuda().requires_grad_() for one in (x, gate)]
        out = ops.swiglu(*found).square().sum()
        since = len(session.trace)
        out.backward()
        names = [row.signature.name for row in session.trace.since(since)]
        assert names.count("described_tests::swiglu_backward") == 1
        assert not {"aten::silu", "aten::silu_backward"} & set(names)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_its_gradient_may_be_one_that_cuda_has_a_kernel_for() -> None:
    tensors = [torch.randn(2, 3, 8, 16), torch.randn(16)]
    wanted = [one.clone().requires_grad_() for one in tensors]
    normed_attention(*wanted).square().sum().backward()
    with windtunnel.emulate("A100"):
        found = [one.cuda().requires_grad_() for one in tensors]
        ops.normed_attention(*found).square().sum().backward()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_several_results_numbers_and_what_is_left_out() -> None:
    x = torch.randn(4)
    for y in (None, torch.randn(4)):
        wanted, other = x.clone().requires_grad_(), None if y is None else y.clone().requires_grad_()
        sum(two(wanted, 0.5, other), torch.zeros(4)).square().sum().backward()
        with windtunnel.emulate("A100"):
            found = x.cuda().requires_grad_()
            given = None if y is None else y.cuda().requires_grad_()
            first, second = ops.two(found, 0.5, given)
            (first + second).square().sum().backward()
            torch.testing.assert_close(found.grad.cpu(), wanted.grad)
            if given is not None and other is not None:
                torch.testing.assert_close(given.grad.cpu(), other.grad)


def test_what_it_writes_in_place() -> None:
    with windtunnel.emulate("A100"):
        x = torch.zeros(3, device="cuda")
        ops.shifted(x, 2)
        ops.shifted(x)
        assert x.tolist() == [3, 3, 3]


def test_on_the_host_the_function_runs() -> None:
    assert ops.product(torch.ones(2, 3), torch.ones(3, 2)).tolist() == [[3, 3], [3, 3]]
    with windtunnel.emulate("A100"):
        assert ops.product(torch.ones(2, 3), torch.ones(3, 2)).tolist() == [[3, 3], [3, 3]]
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            ops.product(torch.ones(2, 3), torch.ones(3, 2, device="cuda"))


def test_without_data_it_has_shapes_and_a_price() -> None:
    with windtunnel.emulate("A100", no_data=True):
        out = ops.swiglu(torch.empty(5, 7, device="cuda"), torch.empty(5, 7, device="cuda"))
        assert out.shape == (5, 7)
        x = torch.empty(4, device="cuda", requires_grad=True)
        ops.two(x, 0.1)[0].sum().backward()
        assert x.grad.shape == (4,)


def elapsed_us(work: Callable[[], object]) -> float:
    work()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1000


def test_like_a_product_it_costs_what_one_does() -> None:
    with windtunnel.emulate("A100", no_data=True):
        a = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
        assert elapsed_us(lambda: ops.product(a, a)) == pytest.approx(elapsed_us(lambda: a @ a), rel=0.02)


def test_bytes_and_operations_that_are_told() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        x = torch.empty(1000, device="cuda")
        library = torch.library.Library("described_tests", "FRAGMENT")
        library.define("scan(Tensor x, int times) -> Tensor")
        windtunnel.kernel("described_tests::scan", bytes=lambda x, times: times * x.nbytes, flops=7)(
            lambda x, times: torch.empty_like(x)
        )
        ops.scan(x, 3)
        ops.scan(x, 5)
        rows = [row.signature for row in session.trace if row.signature.name == "described_tests::scan"]
        assert [(row.read_bytes + row.written_bytes, row.flops) for row in rows] == [(12_000, 7), (20_000, 7)]


def test_a_description_after_the_first_call_counts() -> None:
    @torch.library.custom_op("described_tests::late", mutates_args=())
    def late(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    with windtunnel.emulate("A100") as session:
        x = torch.ones(3, device="cuda")
        late(x)
        windtunnel.kernel("described_tests::late")(lambda x: x + 1)
        since = len(session.trace)
        assert late(x).tolist() == [2, 2, 2]
        assert next(row.signature.name for row in session.trace.since(since)) == "described_tests::late"
    described.known.pop("described_tests::late")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("swiglu", {}, "an operator's name is like acme::swiglu, without an overload, and not 'swiglu'"),
        ("acme::swiglu.out", {}, "without an overload"),
        ("aten::mm", {}, "aten::mm is PyTorch's own operator"),
        ("acme::x", {"like": "aten::nothing_like_it"}, "is no operator that has a price of its own"),
        ("described_tests::swiglu", {"define": True}, "is defined already: describe it without define="),
    ],
)
def test_what_is_no_description_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        windtunnel.kernel(name, **options)(product)  # type: ignore[arg-type]
    windtunnel.kernel("described_tests::swiglu", like="aten::silu")(swiglu)


PROGRAM = """
import torch
x = torch.ones(64, 64, device="cuda", requires_grad=True)
y = torch.ops.acme.gelu_and_scale(x, 2.0)
y.sum().backward()
print(round(y[0, 0].item(), 4), round(x.grad[0, 0].item(), 4))
"""
KERNELS = """
import torch, windtunnel

@windtunnel.kernel("acme::gelu_and_scale", like="aten::gelu", define=True)
def gelu_and_scale(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.nn.functional.gelu(x) * scale
"""


def windtunnel_run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "A100", *options, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.long
def test_a_file_that_describes_them_runs_before_the_program(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(KERNELS)
    done = windtunnel_run(tmp_path, "--kernels", "acme.py")
    x = torch.ones((), requires_grad=True)
    y = F.gelu(x) * 2
    y.backward()
    assert done.stdout == f"{y.item():.4f} {x.grad.item():.4f}\n", done.stderr


@pytest.mark.long
def test_a_file_that_is_wrong_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    assert "there is no file" in windtunnel_run(tmp_path, "--kernels", "missing.py").stderr
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    done = windtunnel_run(tmp_path, "--kernels", "wrong.py")
    assert done.returncode == 2
    assert "wrong.py describes kernels and raised ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.long
def test_tests_have_what_the_project_describes(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(KERNELS)
    (tmp_path / "pyproject.toml").write_text('[tool.windtunnel]\nkernels = ["acme.py"]\n')
    test = 'import torch\n\ndef test_it():\n    x = torch.ones(4, device="cuda")\n'
    (tmp_path / "test_it.py").write_text(test + "    assert torch.ops.acme.gelu_and_scale(x, 2.0).is_cuda\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpus", "A100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
