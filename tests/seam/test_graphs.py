"""CUDA graphs: capture, replay, private pools, graphed callables, and what a capture refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.seam.torch.tags import VERSION
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
FAILED_BEFORE = "CUDA error: operation failed due to a previous error during capture"


def captured(work: Callable[[], object], **options: object) -> tuple[torch.cuda.CUDAGraph, object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        out = work()
    return graph, out


def test_a_capture_runs_nothing(session: Session) -> None:
    x = torch.zeros(4, device="cuda")
    kernels = sum(record.kind == Kind.KERNEL for record in session.trace)
    _, y = captured(lambda: x.add_(1) * 2)
    assert sum(record.kind == Kind.KERNEL for record in session.trace) == kernels
    assert x.tolist() == [0.0] * 4
    assert y.tolist() == [0.0] * 4
    assert y.is_cuda


def test_a_replay_runs_it_on_the_same_memory(session: Session) -> None:
    x = torch.zeros(4, device="cuda")
    graph, y = captured(lambda: x.add_(1) * 2)
    pointer = y.data_ptr()
    for count in (1, 2, 3):
        graph.replay()
        assert x.tolist() == [float(count)] * 4
        assert y.tolist() == [2.0 * count] * 4
    x.fill_(10)
    graph.replay()
    assert y.tolist() == [22.0] * 4
    assert y.data_ptr() == pointer


def test_views_slices_and_lists_are_found_again(session: Session) -> None:
    x = torch.arange(6.0, device="cuda")

    def work() -> tuple[torch.Tensor, ...]:
        grid = x.view(2, 3)
        made = torch.cat([grid[0], grid[1] * 10])
        made[1:3].zero_()
        torch._foreach_add_([made[:1], made[5:]], 100.0)
        return made, made.t().contiguous()[::2], torch.stack(made.split(3))

    graph, (made, every_second, stacked) = captured(work)
    x += 1
    graph.replay()
    assert made.tolist() == [101.0, 0.0, 0.0, 40.0, 50.0, 160.0]
    assert every_second.tolist() == [101.0, 0.0, 50.0]
    assert stacked.tolist() == [[101.0, 0.0, 0.0], [40.0, 50.0, 160.0]]


def test_numbers_are_baked_in_and_tensors_are_not(session: Session) -> None:
    x, scale = torch.ones(2, device="cuda"), torch.full((), 3.0, device="cuda")
    number = torch.tensor(5.0)
    graph, y = captured(lambda: x * scale + number)
    scale.fill_(4.0)
    number.fill_(50.0)
    graph.replay()
    assert y.tolist() == [9.0, 9.0]


def test_each_replay_draws_anew_and_goes_on_after_the_seed(session: Session) -> None:
    torch.manual_seed(7)
    eager = [torch.rand(3, device="cuda").tolist() for _ in range(2)]
    torch.manual_seed(7)
    graph, x = captured(lambda: torch.rand(3, device="cuda"))
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(x.tolist())
    assert drawn == eager


def test_a_replay_is_one_launch_of_the_host(session: Session) -> None:
    x = torch.zeros(64, device="cuda")

    def work() -> None:
        for _ in range(50):
            x.add_(1)

    def host_ns(run: Callable[[], object]) -> int:
        torch.cuda.synchronize()
        before = session.machine.host.now_ns
        run()
        return session.machine.host.now_ns - before

    graph, _ = captured(work)
    assert host_ns(graph.replay) * 10 < host_ns(work)
    assert x.tolist() == [100.0] * 64


def test_a_graph_holds_the_kernels_of_the_same_work_done_eagerly(session: Session) -> None:
    """What the emulation keeps for itself during a capture (memory as it was) is no work of the graph."""
    x = torch.zeros(64, device="cuda")

    def work() -> None:
        x.add_(1)
        x.mul_(2).sub_(1)

    before = len(session.trace)
    work()
    eager = [row.signature.name for row in list(session.trace)[before:]]
    graph, _ = captured(work)
    before = len(session.trace)
    graph.replay()
    replayed = [row.signature.name for row in list(session.trace)[before:] if row.kind == Kind.KERNEL]
    assert replayed == eager == ["aten::add_", "aten::mul_", "aten::sub_"]


def test_whole_network_training_steps_as_eager_ones_do(session: Session) -> None:
    def train(graphed: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
        x, target = torch.randn(32, 8, device="cuda"), torch.randn(32, 1, device="cuda")

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if not graphed:
            return [step().item() for _ in range(4)]
        graph, loss = captured(step)
        losses = []
        for _ in range(4):
            graph.replay()
            losses.append(loss.item())
        return losses

    assert train(graphed=True) == pytest.approx(train(graphed=False), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_graphed_callables_are_drop_ins(training: bool, session: Session) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).cuda().train(training)
    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).cuda().train(training)
    plain.load_state_dict(model.state_dict())
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(5, 4, device="cuda"),))
    for _ in range(2):
        x = torch.randn(5, 4, device="cuda")
        model.zero_grad(set_to_none=True)  # the next backward writes where these gradients are
        plain.zero_grad(set_to_none=True)
        one, other = graphed(x), plain(x)
        torch.testing.assert_close(one, other)
        one.square().sum().backward()
        other.square().sum().backward()
    for left, right in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)


def test_a_scaler_steps_outside_the_graph(session: Session) -> None:
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(5, 4, device="cuda"),))
    before = model.weight.detach().clone()
    scaler.scale(graphed(torch.ones(5, 4, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)


def test_an_optimizer_must_say_that_it_can_be_captured(session: Session) -> None:
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)


# ------------------------------------------------------------------------------------------ memory


def test_a_graph_has_a_pool_of_its_own(session: Session) -> None:
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    graph, x = captured(lambda: torch.ones(1 << 20, device="cuda") + 1)
    assert torch.cuda.memory_reserved() > reserved
    graph.replay()
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > reserved
    graph.reset()
    del graph  # before PyTorch 2.13 the generator keeps what graphs draw through until then
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_graphs_draw_through_memory_of_the_device(session: Session) -> None:
    torch.cuda.init()
    before = torch.cuda.memory_stats()["active.all.current"]
    graphs = [captured(lambda: None)[0] for _ in range(3)]
    found = torch.cuda.memory_stats()["active.all.current"] - before
    assert found == (2 * 3 if VERSION >= (2, 13) else 2)  # a seed and an offset
    graphs.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["active.all.current"] == before


def test_default_generators_are_a_tuple_from_the_first_use_on(session: Session) -> None:
    """`torch/csrc/cuda/Module.cpp` puts it there when CUDA is initialized."""
    assert torch.cuda.default_generators == ()
    torch.cuda.init()
    assert isinstance(torch.cuda.default_generators, tuple)
    assert len(torch.cuda.default_generators) == torch.cuda.device_count()


def test_generators_places_can_be_exchanged_in_a_graph(session: Session) -> None:
    torch.cuda.init()
    generator = torch.cuda.default_generators[0]
    generator.manual_seed(3)
    old, new = generator.graphsafe_get_state(), generator.clone_state()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(new)

    def work() -> list[torch.Tensor]:
        generator.graphsafe_set_state(new)
        first = torch.rand(3, device="cuda")
        generator.graphsafe_set_state(old)
        return [first, torch.rand(3, device="cuda"), torch.rand(3, device="cuda")]

    with torch.cuda.graph(graph):
        first, second, third = work()
    graph.replay()
    assert (new.get_offset(), old.get_offset(), generator.get_offset()) == (4, 8, 8)
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    stranger = torch.Generator("cuda")
    with pytest.raises(RuntimeError, match="generator not in capture mode"):
        captured(lambda: (generator.graphsafe_set_state(stranger), torch.rand(3, device="cuda")))


def test_what_a_capture_drops_is_used_again_in_it(session: Session) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()

    def work() -> torch.Tensor:
        x = torch.ones(1 << 20, device="cuda")
        for _ in range(20):
            x = x + 1
        return x

    torch.cuda.reset_peak_memory_stats()
    graph, x = captured(work)
    assert torch.cuda.max_memory_allocated() - before <= 3 * x.nbytes
    assert torch.cuda.memory_allocated() - before == x.nbytes + 2 * 512  # what it draws random numbers through
    graph.replay()
    assert x[0].item() == 21.0


def test_graphs_of_one_pool_use_the_same_bytes(session: Session) -> None:
    pool = torch.cuda.graph_pool_handle()
    a = torch.ones(1000, device="cuda")
    first, (b, c) = captured(lambda: (a + 1, a + 2), pool=pool)
    results = [b]
    second, e = captured(lambda: results[0] + 3, pool=pool)
    address = b.data_ptr()
    results.clear()
    del b
    third, f = captured(lambda: c + 4, pool=pool)
    assert f.data_ptr() == address
    for graph in (first, second, third):
        graph.replay()
    assert (e[0].item(), f[0].item()) == (5.0, 7.0)
    for graph in (first, third, second):  # not in the order of their captures
        graph.replay()
    assert (e[0].item(), f[0].item()) == (10.0, 7.0)


def test_a_capture_leaves_what_another_graph_wrote_into_their_pool(session: Session) -> None:
    pool = torch.cuda.graph_pool_handle()
    first, x = captured(lambda: torch.ones(4, device="cuda"), pool=pool)
    first.replay()
    _, y = captured(lambda: x.add_(1) * 2, pool=pool)
    assert x.tolist() == [1.0] * 4
    assert y.tolist() == [0.0] * 4


def test_graphs_share_a_pool_that_is_named(session: Session) -> None:
    handle = torch.cuda.graph_pool_handle()
    first, x = captured(lambda: torch.ones(4, device="cuda"), pool=handle)
    second, y = captured(lambda: x + 1, pool=first.pool())
    assert first.pool() == second.pool()
    first.replay()
    second.replay()
    assert y.tolist() == [2.0] * 4


def test_memory_that_was_freed_after_the_capture_is_missed(session: Session) -> None:
    kept = [torch.ones(4, device="cuda")]
    graph, _ = captured(lambda: kept[0] * 2)
    kept.clear()
    with pytest.raises(RuntimeError, match="detected 1 dead tensor"):
        graph.replay()


# ------------------------------------------------------------------------------------------ copies and streams


def test_pinned_copies_are_read_when_the_graph_runs(session: Session) -> None:
    host, back = torch.ones(4, pin_memory=True), torch.zeros(4, pin_memory=True)
    device = torch.zeros(4, device="cuda")

    def work() -> None:
        device.copy_(host, non_blocking=True)
        device.mul_(3)
        back.copy_(device, non_blocking=True)

    graph, _ = captured(work)
    assert back.tolist() == [0.0] * 4
    host.fill_(5)
    graph.replay()
    assert back.tolist() == [0.0] * 4  # late, as every such copy is
    torch.cuda.synchronize()
    assert back.tolist() == [15.0] * 4


def test_side_streams_join_the_capture(session: Session) -> None:
    x = torch.ones(4, device="cuda")
    side = torch.cuda.Stream()

    def work() -> torch.Tensor:
        left = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            right = x * 5
        torch.cuda.current_stream().wait_stream(side)
        return left + right

    graph, y = captured(work)
    graph.replay()
    assert y.tolist() == [7.0] * 4
    assert not [finding for finding in session.findings() if finding.code == "unsynchronized-access"]


def test_what_a_stream_of_its_own_does_happens_once(session: Session) -> None:
    x, kept, side = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.full((8,), 7.0, device="cuda").mul(2)  # leaves memory: a capture lets nothing be allocated beside it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        inside = x + 1
        with torch.cuda.stream(side):
            outside = torch.full((8,), 7.0, device="cuda").mul(2)
            kept.add_(3)
    torch.cuda.synchronize()
    assert (inside[0].item(), outside[0].item(), kept[0].item()) == (0, 14, 3)
    x.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert (inside[0].item(), outside[0].item(), kept[0].item()) == (5, 14, 3)


def test_a_replay_is_ordered_as_one_operation(session: Session) -> None:
    x = torch.ones(4, device="cuda")
    graph, y = captured(lambda: x + 1)
    torch.cuda.synchronize()
    graph.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        y.sum()
    (finding,) = [finding for finding in session.findings() if finding.code == "unsynchronized-access"]
    assert Path(finding.site.file).name == Path(__file__).name


def test_capturing_is_known(session: Session) -> None:
    assert not torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        assert torch.cuda.is_current_stream_capturing()
        assert stream.is_capturing() if hasattr(torch.cuda.Stream, "is_capturing") else True
        torch.ones(1, device="cuda")
    assert not torch.cuda.is_current_stream_capturing()


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: print(x),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: x.copy_(torch.ones(4, pin_memory=True)),
    ],
    ids=["item", "nonzero", "mask", "print", "device", "stream", "blocking copy"],
)
def test_what_waits_cannot_be_captured(work: Callable[[torch.Tensor], object], session: Session) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError) as caught:
        captured(lambda: work(x))
    assert str(caught.value).startswith(FAILED_BEFORE)
    assert str(caught.value.__context__).startswith(NOT_PERMITTED)
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 4


def test_pageable_memory_cannot_be_captured(session: Session) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="previous error") as caught:
        captured(lambda: x.copy_(torch.zeros(4)))
    assert "unless the CPU tensor is pinned" in str(caught.value.__context__)


def test_a_generator_must_be_registered(session: Session) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    with pytest.raises(RuntimeError, match="generator not in capture mode"):
        captured(lambda: torch.rand(3, device="cuda", generator=generator))
    torch.cuda.set_stream(torch.cuda.default_stream())
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        x = torch.rand(3, device="cuda", generator=generator)
    graph.replay()
    first = x.tolist()
    graph.replay()
    assert x.tolist() != first


def test_the_default_stream_cannot_be_captured(session: Session) -> None:
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


def test_misuse_of_a_graph_raises_as_pytorch_does(session: Session) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match=r"pool\(\) without a preceding successful capture"):
        graph.pool()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        torch.ones(1, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="same stream"):
            graph.capture_end()
        graph.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: None)


def test_a_graph_can_be_looked_at(session: Session, tmp_path: Path) -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        x.add_(1).mul_(2)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert "aten::add_" in text
    assert "node_0 -> node_1" in text


def test_a_second_emulation_captures_on_a_stream_of_its_own() -> None:
    for _ in range(2):
        with windtunnel.emulate("V100"):
            x = torch.zeros(2, device="cuda")
            graph, y = captured(lambda x=x: x + 1)
            graph.replay()
            assert y.tolist() == [1.0, 1.0]


def test_graphs_need_no_data() -> None:
    with windtunnel.emulate("V100", no_data=True) as session:
        x = torch.zeros(1 << 20, device="cuda")
        graph, y = captured(lambda: x.add_(1) * 2)
        before = len(session.trace)
        graph.replay()
        torch.cuda.synchronize()
        assert [record.kind for record in session.trace][before:] == [Kind.KERNEL, Kind.KERNEL, Kind.SYNCHRONIZE]
        assert y.shape == x.shape


def test_steps_of_a_replayed_graph_are_steps(session: Session) -> None:
    w = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    w.grad = torch.ones_like(w)
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    graph.replay()
    steps = [record.value for record in session.machine.trace if record.kind == Kind.STEP]
    assert steps == [1, 2, 3]


def test_a_step_with_sparse_gradients_is_replayed(session: Session) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True).cuda()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    rows = torch.tensor([0, 1, 0], device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        table(rows).sum().backward()
        optimizer.step()

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = table.weight.detach().clone()
    rows.copy_(torch.tensor([3, 3, 4], device="cuda"))
    graph.replay()
    assert (before - table.weight)[:, 0].tolist() == pytest.approx([0, 0, 0, 1, 0.5])


def test_coalescing_is_refused_while_capturing(session: Session) -> None:
    indices, values = torch.tensor([[0, 1, 0]], device="cuda"), torch.ones(3, device="cuda")
    sparse = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=False)
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        sparse.coalesce()


if hasattr(torch.accelerator, "Graph"):

    def test_the_accelerators_graph(session: Session) -> None:
        graph, x = torch.accelerator.Graph(), torch.zeros(2, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), graph:
            x.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert x.tolist() == [1, 1]
        other = torch.accelerator.Graph(pool=graph.pool())
        with pytest.raises(RuntimeError, match="non-default stream"):
            other.capture_begin()
