"""Autocast with CUDA's lists, on tensors of emulated devices only."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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
