"""`torch.compiler.*` and `torch._dynamo.*` as programs use them, on emulated devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_compiled_cost import launched
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import windtunnel
from windtunnel.session import Session


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


def graph_breaks(session: Session) -> int:
    return [note.code for note in session.trace.notes].count("graph-break")


def test_a_program_learns_that_it_is_compiled(session: Session) -> None:
    def forward(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling() else x

    assert torch.compile(forward, fullgraph=True)(ones(2)).tolist() == [2.0, 2.0]
    assert forward(ones(2)).tolist() == [1.0, 1.0]


def test_what_is_disabled_runs_between_two_graphs(session: Session) -> None:
    seen: list[str] = []

    @torch.compiler.disable
    def outside(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return x * 3

    run = torch.compile(lambda x: outside(x + 1).sin())
    torch.testing.assert_close(run(ones(2)), (3 * (ones(2) + 1)).sin())
    assert seen == ["cuda"]
    assert graph_breaks(session) == 1


def scaled(x: Tensor) -> Tensor:
    return x * 3


def constant() -> int:
    return 7


torch.compiler.allow_in_graph(scaled)
torch.compiler.assume_constant_result(constant)


def test_functions_that_are_taken_into_a_graph_as_they_are(session: Session) -> None:
    run = torch.compile(lambda x: scaled(x) + constant(), fullgraph=True)
    assert run(ones(2)).tolist() == [10.0, 10.0]


def unknown(x: Tensor) -> Tensor:
    """What Dynamo must not look into."""
    raise AssertionError("the substitute stands in its place")


@torch.compiler.substitute_in_graph(unknown)
def known(x: Tensor) -> Tensor:
    return x + 5


def test_a_function_that_stands_for_another(session: Session) -> None:
    assert torch.compile(lambda x: unknown(x), fullgraph=True)(ones(2)).tolist() == [6.0, 6.0]


def test_backends_are_listed_and_any_of_them_compiles(session: Session) -> None:
    assert "inductor" in torch.compiler.list_backends()
    for backend in ("eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs"):
        run = torch.compile(lambda x: (x * x).sum(), backend=backend)
        for turn in range(4):
            x = (ones(3) * turn).requires_grad_()
            run(x).backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0 * turn] * 3, backend
        torch.compiler.reset()


def test_reset_and_stances(session: Session) -> None:
    counter = CompileCounter()
    run = torch.compile(lambda x: x + 1, backend=counter, dynamic=False)
    run(ones(2))
    torch.compiler.reset()
    run(ones(2))
    assert counter.frame_count == 2
    with torch.compiler.set_stance("force_eager"):
        assert run(ones(3)).tolist() == [2.0] * 3
    assert counter.frame_count == 2
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        run(ones(4))
    with torch.compiler.set_stance("eager_on_recompile"):
        assert run(ones(4)).is_cuda
    assert counter.frame_count == 2


def test_replays_between_marked_steps(session: Session) -> None:
    run = torch.compile(lambda x: (x * 2).relu() @ x, mode="reduce-overhead")
    for turn in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        x = ones(4, 4) * (turn + 1)
        torch.testing.assert_close(run(x), (x * 2).relu() @ x)


def test_functions_of_numpy_are_computed_on_the_device(session: Session) -> None:
    @torch.compiler.wrap_numpy
    def squares(x: np.ndarray) -> np.ndarray:
        return np.sum(x**2, axis=0)

    compiled = torch.compile(squares, fullgraph=True)
    x = ones(4, 3)
    compiled(x)
    before = len(session.trace)
    out = compiled(x)
    assert (out.device.type, out.tolist()) == ("cuda", [4.0] * 3)
    assert [name.startswith("triton_") for name in launched(session, before)] == [True]


def test_artifacts_of_the_cache_hold_nothing_of_an_emulated_gpu(session: Session) -> None:
    torch.compile(lambda x: x.sin() + 1)(ones(8))
    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        _, found = saved
        assert not found.inductor_artifacts
        assert not found.aot_autograd_artifacts
        torch.compiler.load_cache_artifacts(saved[0])


def test_a_library_that_turns_caches_on_gets_no_kernels_of_another_run() -> None:
    import torch._functorch.config
    import torch._inductor.config

    before = torch._inductor.config.fx_graph_cache, torch._functorch.config.enable_autograd_cache
    seen = []
    for no_data in (False, True):
        torch._dynamo.reset()
        with windtunnel.emulate("A100", no_data=no_data) as session:
            torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = True
            x = torch.ones(64, device="cuda", requires_grad=True)
            torch.compile(lambda x: (x.sin() + 2).mean(-1))(x).backward()
            seen.append([row.signature.name for row in session.trace if row.signature.name.startswith("triton_")])
    assert seen[0]
    assert seen[0] == seen[1]
    assert (torch._inductor.config.fx_graph_cache, torch._functorch.config.enable_autograd_cache) == before


def test_sizes_that_are_marked_are_compiled_once(session: Session) -> None:
    counter = CompileCounter()
    run = torch.compile(lambda x: (x * 2).sum(), backend=counter)
    for rows in (3, 5, 7):
        x = ones(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert run(x).item() == 8.0 * rows
    assert counter.frame_count == 1
    static = torch.compile(lambda x: x + 1, dynamic=False)
    x = ones(2)
    torch._dynamo.mark_static(x)
    assert static(x).tolist() == [2.0, 2.0]


def test_blocks_that_are_alike_are_compiled_once(session: Session) -> None:
    """Regional compilation: `Module.compile` of each block, inside a model that runs eagerly."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(self.up(x).relu())

    model = nn.Sequential(*(Block() for _ in range(3))).cuda()
    x, counter = torch.randn(4, 8, device="cuda", requires_grad=True), CompileCounter()
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for block in model:
        block.compile(backend=counter)
    found = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch.testing.assert_close(found, wanted)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, torch.tensor(0.1), capturable=True),
    ],
    ids=["sgd", "adamw"],
)
def test_an_optimizers_step_is_few_kernels(session: Session, make: Callable[[object], torch.optim.Optimizer]) -> None:
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
        optimizer = make(model.parameters())
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            model(ones(2, 8)).square().sum().backward()
            before = len(session.trace)
            step()
        results.append(list(model.parameters()))
        kernels = launched(session, before)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert sum(name.startswith("triton_for_fused") for name in kernels) >= 1
    assert len(kernels) <= 2


@pytest.mark.parametrize("way", ["context", "setting"])
def test_compiled_autograd_is_one_graph_of_the_backward_pass(session: Session, way: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).cuda()
    x = torch.randn(4, 8, device="cuda")
    model(x).square().sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    for _ in range(2):
        model.zero_grad()
        loss = model(x).square().sum()
        before = len(session.trace)
        if way == "context":
            with torch._dynamo.compiled_autograd._enable(torch.compile):
                loss.backward()
        else:
            with torch._dynamo.config.patch(compiled_autograd=True):
                torch.compile(lambda loss: loss.backward())(loss)
        kernels = launched(session, before)
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], wanted, rtol=1e-4, atol=1e-4)
    assert any(name.startswith("triton_") for name in kernels)


def test_an_exported_model_runs_and_compiles_on_the_device(session: Session) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
    x = torch.randn(3, 4, device="cuda")
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    for rows in (3, 5):
        x = torch.randn(rows, 4, device="cuda")
        torch.testing.assert_close(exported.module()(x), model(x))
        torch.testing.assert_close(torch.compile(exported.module())(x), model(x))


def test_a_cache_limit_and_what_is_compiled_for_the_host_are_pytorchs_own() -> None:
    with windtunnel.emulate("A100"), warnings.catch_warnings():
        counter = CompileCounter()
        run = torch.compile(lambda x, n: x * n, backend=counter, dynamic=False)
        with torch._dynamo.config.patch(recompile_limit=2):
            for n in range(5):
                assert run(ones(1), n).item() == float(n)
        assert counter.frame_count == 2
