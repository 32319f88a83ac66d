"""What a fix saves, by replay: the promise is held to the same program with the fix applied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.analysis.fixes import period
from windtunnel.analysis.savings import Savings
from windtunnel.session import Session

STEPS = 12
emulate = partial(windtunnel.emulate, host="reference")  # on a slower one these small steps wait for nothing else


def train(data: object, *, pinned: bool, read: bool, foreach: bool | None, width: int = 64) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, foreach=foreach)
    for _ in range(STEPS):
        x = torch.empty(256, width, pin_memory=pinned).to("cuda", non_blocking=pinned)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        float(loss) if read else loss.detach()


def run(**options: object) -> Session:
    with emulate("V100", no_data=True, assume=0.0) as session:
        train(None, **{"pinned": True, "read": False, "foreach": None, **options})  # type: ignore[arg-type]
    return session


def step_ns(session: Session) -> float:
    return Savings(session.trace.canonical()).before.length_ns


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("unfused-optimizer", {"foreach": False}),
        ("pageable-copy", {"pinned": False, "width": 4096}),
        ("host-sync", {"read": True, "width": 512}),
    ],
)
def test_a_promise_is_kept(code: str, options: dict[str, object]) -> None:
    slow = run(**options)
    fixed = run(width=options.get("width", 64))
    promised = next(one for one in slow.findings() if one.code == code).saved_share
    assert promised is not None
    saved = 1.0 - step_ns(fixed) / step_ns(slow)
    assert saved > 0.002
    assert saved / 1.5 < promised < 1.5 * saved


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x / 512


def layers(x: torch.Tensor) -> torch.Tensor:
    return NETS["linear"](x)


def convolved(x: torch.Tensor) -> torch.Tensor:
    return NETS["convolution"](x)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    return NETS["linear"](x).cpu().cuda()


NETS: dict[str, torch.nn.Module] = {}


@pytest.mark.parametrize(
    ("work", "shape", "train", "rounds"),
    [
        (product, (512, 512), False, 800),
        (layers, (512, 1024), False, 200),
        (layers, (512, 1024), True, 100),
        (there_and_back, (512, 1024), False, 500),
        (convolved, (64, 64, 32, 32), True, 100),
    ],
)
def test_what_autocast_saves_is_promised(
    work: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], train: bool, rounds: int
) -> None:
    def session(half: bool) -> Session:
        with emulate("V100", no_data=True, assume=0.0) as session:
            NETS["linear"] = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(3))).cuda()
            NETS["convolution"] = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3)).cuda()
            optimizer = torch.optim.SGD([one for net in NETS.values() for one in net.parameters()], lr=0.1)
            x = torch.randn(*shape, device="cuda")
            for _ in range(rounds):
                with torch.set_grad_enabled(train), torch.autocast("cuda", torch.float16, enabled=half):
                    y = work(x)
                x = y if work is product else x
                if train:
                    y.square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return session

    slow, fast = session(half=False), session(half=True)
    promised = next(one for one in slow.findings() if one.code == "low-tensor-core-use").saved_share
    assert promised is not None
    assert promised == pytest.approx(1.0 - step_ns(fast) / step_ns(slow), rel=0.2)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_captured_step_has_a_fused_optimizer(kind: type[torch.optim.Optimizer]) -> None:
    def session(captured: bool) -> Session:
        with emulate("V100", no_data=True, assume=0.0) as session:
            net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).cuda()
            options = {"fused": True} | ({"capturable": True} if kind is torch.optim.Adam else {})
            optimizer = kind(net.parameters(), lr=0.01, **(options if captured else {}))
            x = torch.randn(64, 64, device="cuda")

            def step() -> None:
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()

            for _ in range(90):
                step()
            if captured:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
                first = len(session.trace)
                for _ in range(60):
                    graph.replay()
                session.complete()
                session.trace.facts["first"] = first
        return session

    slow, fast = session(captured=False), session(captured=True)
    promised = next(one for one in slow.findings() if one.code == "launch-bound").saved_share
    assert promised is not None
    steps = [row[6] for row in list(fast.trace.canonical().rows)[fast.trace.facts["first"] :] if row[0] == 0]
    replayed_ns = (steps[-1] - steps[0]) / 59.5
    assert promised == pytest.approx(1.0 - replayed_ns / step_ns(slow), rel=0.1)


def test_the_optimizer_that_counts_no_steps_is_one_kernel_when_fused() -> None:
    def session(fused: bool) -> Session:
        with emulate("V100", no_data=True, assume=0.0) as session:
            net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).cuda()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=fused or None)
            x = torch.randn(64, 64, device="cuda")
            for _ in range(100):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        return session

    slow, fast = session(fused=False), session(fused=True)
    found = next(one for one in slow.findings() if one.code == "unfused-optimizer")
    assert "SGD updated 12 tensors with 3 kernels in each of 100 steps" in found.message
    assert found.saved_share == pytest.approx(1.0 - step_ns(fast) / step_ns(slow), rel=0.05)


def test_without_a_change_the_replay_is_the_run() -> None:
    session = run()
    trace = session.trace.canonical()
    steps = [row for row in trace.rows if row[0] == 10]
    assert step_ns(session) == pytest.approx((steps[-1][4] - steps[0][4]) / (len(steps) - 1), rel=0.02)


def selects(x: torch.Tensor) -> torch.Tensor:
    x = x @ x
    return x + x[x > 0].mean()


def selects_on_the_device(x: torch.Tensor) -> torch.Tensor:
    x = x @ x
    positive = x > 0
    return x + torch.where(positive, x, 0).sum() / positive.sum()


KEPT: list[torch.Tensor] = []
BUFFER: list[torch.Tensor] = []


def keeps(x: torch.Tensor) -> torch.Tensor:
    x = x @ x @ x @ x
    KEPT.append(x.cpu())
    return x


def keeps_in_pinned_memory(x: torch.Tensor) -> torch.Tensor:
    x = x @ x @ x @ x
    BUFFER[len(KEPT)].copy_(x, non_blocking=True)
    KEPT.append(BUFFER[len(KEPT)])
    return x


def moves_a_number(x: torch.Tensor) -> torch.Tensor:
    return (x @ x) * torch.tensor(0.01, device="cuda")


def makes_a_number(x: torch.Tensor) -> torch.Tensor:
    return (x @ x) * torch.full((), 0.01, device="cuda")


class Shifted(nn.Module):
    def __init__(self, there: bool) -> None:
        super().__init__()
        self.there = there

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(512, 512, device=x.device) if self.there else torch.zeros(512, 512).to(x.device)
        return x @ x + zeros


@pytest.mark.parametrize(
    ("code", "slow", "fast"),
    [
        ("host-sync", selects, selects_on_the_device),
        ("host-sync", keeps, keeps_in_pinned_memory),
        ("pageable-copy", moves_a_number, makes_a_number),
        ("created-on-cpu", Shifted(there=False), Shifted(there=True)),
    ],
)
def test_a_promise_is_what_the_fix_launches(
    code: str, slow: Callable[[torch.Tensor], torch.Tensor], fast: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def session(step: Callable[[torch.Tensor], torch.Tensor]) -> Session:
        with emulate("V100") as session:
            x = torch.zeros(512, 512, device="cuda")
            BUFFER[:] = torch.empty(20, 512, 512).pin_memory()
            for _ in range(20):
                x = step(x) / 512
            KEPT.clear()
            BUFFER.clear()
        return session

    before, after = session(slow), session(fast)
    promised = next(one for one in before.findings() if one.code == code).saved_share
    assert promised is not None
    # What L2 holds of the operands of a kernel that the fix puts in is not known before it runs.
    assert promised == pytest.approx(1.0 - step_ns(after) / step_ns(before), rel=0.15)


def test_streams_are_edges_of_a_graph() -> None:
    def session(captured: bool) -> Session:
        with emulate("V100") as session:
            x, other = torch.ones(64, 64, device="cuda"), torch.cuda.Stream()

            def step() -> None:
                y = x @ x
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    (y + y) @ x
                torch.cuda.current_stream().wait_stream(other)
                x @ x

            x @ x  # makes cuBLAS's handle, which a capture may not
            if captured:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
            for _ in range(520):
                graph.replay() if captured else step()
        return session

    slow, fast = session(captured=False), session(captured=True)
    promised = next(one for one in slow.findings() if one.code == "launch-bound").saved_share
    assert promised is not None
    assert promised == pytest.approx(1.0 - step_ns(fast) / step_ns(slow), rel=0.1)


def test_two_tensors_of_one_shape_are_told_apart_in_half_precision() -> None:
    def session(half: bool) -> Session:
        with emulate("V100", no_data=True, assume=0.0) as session, torch.no_grad():
            net = nn.Linear(512, 512).cuda()
            x, mask = torch.randn(512, 512, device="cuda"), torch.ones(512, 512)
            for _ in range(1100):
                with torch.autocast("cuda", torch.float16, enabled=half):
                    x = net(x) * mask.to("cuda")
        return session

    slow, fast = session(half=False), session(half=True)
    promised = next(one for one in slow.findings() if one.code == "low-tensor-core-use").saved_share
    assert promised is not None
    assert promised == pytest.approx(1.0 - step_ns(fast) / step_ns(slow), rel=0.1)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_loader_without_workers_pins_in_the_program_s_own_time(size: int) -> None:
    def session(pinned: bool) -> Session:
        data = torch.utils.data.TensorDataset(torch.zeros(1, size).expand(200 * 64, size))
        with emulate("V100") as session:
            net = nn.Linear(size, 8).cuda()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            for (x,) in torch.utils.data.DataLoader(data, batch_size=64, pin_memory=pinned):
                optimizer.zero_grad()
                net(x.to("cuda", non_blocking=pinned)).square().mean().backward()
                optimizer.step()
        return session

    slow, fast = session(pinned=False), session(pinned=True)
    promised = Savings(slow.trace.canonical()).of([one for one in slow.findings() if one.fix == "pin"])
    assert promised is not None
    assert promised.share == pytest.approx(1.0 - step_ns(fast) / step_ns(slow), rel=0.3)


@pytest.mark.parametrize(
    ("names", "expected"), [("", 1), ("a", 1), ("aaaa", 1), ("abcabcab", 3), ("aabaab", 3), ("abcd", 4)]
)
def test_the_period_of_a_loop(names: str, expected: int) -> None:
    assert period(names) == expected


def test_one_kernel_a_round_gains_nothing_by_a_graph() -> None:
    with emulate("V100", no_data=True, assume=0.0) as session:
        x = torch.zeros(8, device="cuda")
        for _ in range(2100):
            x = x + 1
    found = next(one for one in session.findings() if one.code == "launch-bound")
    assert found.saved_share == 0.0
