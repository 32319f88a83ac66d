"""Autocast with CUDA's lists, on tensors of emulated devices only."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import windtunnel
from windtunnel.seam.torch.kernels import autocast
from windtunnel.session import Session


def test_lists(session: Session) -> None:
    x = torch.randn(4, 8, device="cuda")
    model = nn.Linear(8, 8).cuda()
    target = torch.zeros(4, dtype=torch.long, device="cuda")
    with torch.autocast("cuda"):
        h = model(x)
        assert h.dtype is torch.float16
        assert (h @ h.t()).dtype is torch.float16
        assert torch.relu(h).dtype is torch.float16
        assert F.softmax(h, -1).dtype is torch.float32
        assert F.layer_norm(h, (8,)).dtype is torch.float32
        assert h.sum().dtype is torch.float32
        assert F.cross_entropy(h, target).dtype is torch.float32
        assert torch.cat([h, x]).dtype is torch.float32
        assert torch.exp(h).dtype is torch.float32
        with torch.autocast("cuda", enabled=False):
            assert model(x).dtype is torch.float32
    assert model(x).dtype is torch.float32


def test_bfloat16_and_cpu_tensors(session: Session) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert nn.Linear(4, 4).cuda()(x.cuda()).dtype is torch.bfloat16
        assert model(x).dtype is torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(x).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype is torch.bfloat16
        assert torch.nn.Linear(4, 4).cuda()(x.cuda()).dtype is torch.float32


def test_a_banned_loss(session: Session) -> None:
    x = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_gradient_scaler(session: Session) -> None:
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x = torch.ones(2, 4, device="cuda")
    before = model.weight.detach().clone()
    with torch.autocast("cuda"):
        loss = model(x).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)
    model.weight.grad = torch.full_like(model.weight, float("inf"))
    kept = model.weight.detach().clone()
    scaler.scale(model(x).sum())
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(kept, model.weight)
    assert scaler.get_scale() == 512.0


def test_old_names(session: Session) -> None:
    with pytest.warns(FutureWarning):
        context = torch.cuda.amp.autocast()
    with context:
        assert torch.ones(2, 2, device="cuda").mm(torch.ones(2, 2, device="cuda")).dtype is torch.float16


def test_weights_are_cast_once_a_region(session: Session) -> None:
    model = nn.Linear(1024, 1024, bias=False).cuda()
    x = torch.ones(1, 1024, device="cuda", dtype=torch.float16)
    model(x.float())
    start = torch.cuda.memory_allocated()
    with torch.autocast("cuda"):
        model(x)
        once = torch.cuda.memory_allocated()
        model(x)
        assert torch.cuda.memory_allocated() == once
    assert once - start >= 1024 * 1024 * 2
    assert torch.cuda.memory_allocated() == start


def test_what_only_the_cpu_casts_is_left_alone_on_a_device(session: Session) -> None:
    half = torch.eye(4, device="cuda").half()
    labels = torch.zeros(4, dtype=torch.long, device="cuda")
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="Low precision dtypes not supported"):
            torch.linalg.inv(half)
        assert torch.fft.rfft(torch.ones(2, 8, device="cuda").half()).dtype is torch.complex32
        since = len(session.trace.rows)
        assert F.cross_entropy(half, labels).dtype is torch.float32
        names = [row.signature.name for row in list(session.trace)[since:]]
        assert names == ["aten::_log_softmax", "aten::_to_copy", "aten::nll_loss_forward"]
        casts = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")  # not in torch 2.6
        assert F.rms_norm(half, (4,)).dtype is (torch.float32 if casts else torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.linalg.inv(torch.eye(4).bfloat16()).dtype is torch.float32
        assert F.cross_entropy(torch.eye(4).bfloat16(), torch.zeros(4, dtype=torch.long)).dtype is torch.float32
        assert torch.cat([torch.ones(1).bfloat16(), torch.ones(1)]).dtype is torch.float32
        assert F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), padding="same").dtype is torch.bfloat16


def test_autocast_composites_in_inference_mode(session: Session) -> None:
    half = torch.eye(4, device="cuda").half()
    with torch.autocast("cuda"), torch.inference_mode():
        assert F.cross_entropy(half, torch.zeros(4, dtype=torch.long, device="cuda")).dtype is torch.float32
        assert torch.quantile(half.float(), 0.5).item() == 0.0
        assert F.conv2d(half[None, None], half[None, None, :3, :3], padding="same").dtype is torch.float16


def test_threads_meet_autocast_together(session: Session) -> None:
    barrier, dtypes = threading.Barrier(4), []

    def work() -> None:
        barrier.wait()
        with torch.autocast("cuda"):
            x = torch.ones(2, 2, device="cuda")
            dtypes.append((x @ x).dtype)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dtypes == [torch.float16] * 4


def test_norm_takes_low_precision_as_it_is_and_gives_float32(session: Session) -> None:
    half = torch.ones(4, 4, device="cuda", dtype=torch.half)
    since = len(session.trace)
    with torch.autocast("cuda"):
        found = [torch.ops.aten.norm.Scalar(half), torch.ops.aten.norm.ScalarOpt_dim(half, 2, [0])]
    assert [x.dtype for x in found] == [torch.float32] * 2
    assert [row.signature.name for row in session.trace.since(since)] == ["aten::norm"] * 2


# ------------------------------------------------------------------ passes with and without gradients in one region

Net = nn.Sequential


def policy(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        old = net(x)
    return (net(x) - old.roll(1, 0)).float().square().mean()


def recycled(net: Net, x: torch.Tensor) -> torch.Tensor:
    for turn in range(3):
        with torch.set_grad_enabled(turn == 2):
            x = net(x)
    return x.float().square().mean()


def evaluated_first(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        net(x)
    return net(x).float().square().mean()


def checkpointed(net: Net, x: torch.Tensor) -> torch.Tensor:
    loss = checkpoint(net, x.clone().requires_grad_(), use_reentrant=True).float().square().mean()
    loss.backward()
    return loss


def nested_without(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        net(x)
    with torch.no_grad(), torch.autocast(x.device.type, dtype=torch.bfloat16):
        net(x)
    return net(x).float().square().mean()


def teacher_of_tied_weights(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        teacher = net[0](x)
    return (net[0](x) - teacher.roll(1, 0)).float().square().mean()


def with_history_used_without(net: Net, x: torch.Tensor) -> torch.Tensor:
    loss = net(x).float().square().mean()
    with torch.no_grad():
        assert not net(x).requires_grad
    with torch.inference_mode():
        assert net(x).is_inference()
    return loss


def trained(device: str, passes: Callable[[Net, torch.Tensor], torch.Tensor]) -> tuple[float, list[float | None]]:
    """The loss, and each parameter's sum of gradients."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)), torch.randn(8, 16)
    net, x = net.to(device), x.to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = passes(net, x)
    if loss.requires_grad and passes is not checkpointed:
        loss.backward()
    return loss.item(), [None if p.grad is None else p.grad.abs().sum().item() for p in net.parameters()]


PASSES = (
    policy, recycled, evaluated_first, checkpointed, nested_without, teacher_of_tied_weights, with_history_used_without
)  # fmt: skip


@pytest.mark.parametrize("passes", PASSES)
def test_gradients_after_a_pass_without_them_are_the_cpus(passes: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
    loss, gradients = trained("cpu", passes)
    with windtunnel.emulate("A100"):
        found_loss, found = trained("cuda", passes)
    assert found_loss == pytest.approx(loss, rel=1e-2)
    assert [one is None for one in found] == [one is None for one in gradients]
    assert [one for one in found if one is not None] == pytest.approx([g for g in gradients if g is not None], rel=0.05)


def test_before_pytorch_165068_a_cast_without_gradients_stays_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocast, "keeps_casts_with_history", lambda: False)
    with windtunnel.emulate("A100"):
        loss, gradients = trained("cuda", policy)
        assert (loss > 0, gradients) == (True, [None] * 4)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            trained("cuda", lambda net, x: evaluated_first(net, x.requires_grad_() * 1))


def test_inference_mode_keeps_no_casts(session: Session) -> None:
    model = nn.Linear(1024, 1024, bias=False).cuda()
    x = torch.ones(1, 1024, device="cuda", dtype=torch.float16)
    with torch.autocast("cuda"):
        with torch.inference_mode():
            model(x)
        start = torch.cuda.memory_allocated()
        with torch.no_grad():
            model(x)
        assert torch.cuda.memory_allocated() - start >= 1024 * 1024 * 2


# ------------------------------------------------------------------ casts that are older than their weights


class Plain(torch.optim.Optimizer):
    """Writes through `.data`, past autograd's count of versions, as many an optimizer of research code does."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.add_(p.grad.data, alpha=-self.param_groups[0]["lr"])


def by(kind: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[[nn.Module], None]:
    def step(net: nn.Module) -> None:
        kind(net.parameters(), lr=0.1, **options).step()

    return step


def swapped(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.copy_(p.data * 2)


def through_a_view(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.view(-1)[:4] += 1


def loaded(net: nn.Module) -> None:
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})


def clipped(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.01, 0.01)


def written_as_it_was(net: nn.Module) -> None:
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})


def dropped(net: nn.Module) -> None:
    clipped(net)
    torch.clear_autocast_cache()


def left_alone(net: nn.Module) -> None:
    torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)]).step()


CHANGES = [
    by(torch.optim.SGD), by(torch.optim.AdamW, fused=True), by(torch.optim.Adam, foreach=False), by(Plain), loaded,
    clipped, swapped, through_a_view,
]  # fmt: skip


def codes_after(change: Callable[[nn.Module], None], data: bool = True, **options: bool) -> list[tuple[str, int]]:
    """The findings on autocast, each with how many weights it is about."""
    with windtunnel.emulate("A100", no_data=not data) as session:
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda(), torch.ones(4, 8, device="cuda")
        with torch.autocast("cuda", **options):
            for _ in range(3):
                net(x).square().sum().backward()
                change(net)
    return [(found.code, found.times) for found in session.findings() if found.code == "stale-autocast"]


@pytest.mark.parametrize("change", CHANGES)
def test_casts_from_before_a_change_are_found(change: Callable[[nn.Module], None]) -> None:
    assert codes_after(change) == [("stale-autocast", 4)]


@pytest.mark.parametrize(("change", "times"), [(by(torch.optim.SGD), 4), (left_alone, 0)])
def test_without_data_a_write_counts(change: Callable[[nn.Module], None], times: int) -> None:
    assert sum(count for _, count in codes_after(change, data=False)) == times


@pytest.mark.parametrize("change", [written_as_it_was, dropped, left_alone])
def test_casts_that_are_as_new_are_no_finding(change: Callable[[nn.Module], None]) -> None:
    assert codes_after(change) == []


def test_without_the_cache_nothing_is_stale() -> None:
    assert codes_after(by(torch.optim.SGD), cache_enabled=False) == []


def test_the_line_is_the_outermost_regions(session: Session) -> None:
    net, x = nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
    line = test_the_line_is_the_outermost_regions.__code__.co_firstlineno + 3
    with torch.autocast("cuda"):
        for _ in range(2):
            with torch.autocast("cuda", enabled=False):
                net(x)
            net(x)
            clipped(net)
    found = [finding for finding in session.findings() if finding.code == "stale-autocast"]
    assert [(finding.site.line, finding.device) for finding in found] == [(line, 0)]
