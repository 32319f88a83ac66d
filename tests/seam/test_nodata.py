"""Rehearsal without data: shapes and memory as with data, values only where the user gave them."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.errors import UnsupportedError, UsageError
from windtunnel.trace.operation import Kind


def step(width: int = 64) -> tuple[int, int]:
    """Bytes allocated after, and at the peak of, one training step of a small transformer."""
    torch.cuda.reset_peak_memory_stats()
    layers = [nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 16, width, device="cuda")
    y = torch.randint(0, 10, (8 * 16,), device="cuda")
    nn.functional.cross_entropy(model(x).flatten(0, 1), y).backward()
    optimizer.step()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def test_memory_is_that_of_a_run_with_data() -> None:
    with windtunnel.emulate("V100"):
        allocated, peak = step()
    with windtunnel.emulate("V100", no_data=True):
        without, without_peak = step()
    assert without == allocated
    assert abs(without_peak - peak) <= 0.1 * peak  # attention takes another path without values


def test_the_old_names_of_types_are_those_with_data() -> None:
    """Megatron's Float16Module takes parameters of these types alone."""
    with windtunnel.emulate("V100", no_data=True):
        parameter = nn.Linear(4, 4).to("cuda", torch.bfloat16).weight
        assert parameter.type() == torch.typename(parameter) == "torch.cuda.BFloat16Tensor"
        assert torch.empty(2, device="meta").type() == "torch.meta.FloatTensor"


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy"])
def test_a_loss_takes_the_memory_that_it_takes_with_data(loss: str, reduction: str) -> None:
    def taken() -> tuple[int, int]:
        x, y = torch.rand(64, 64, device="cuda", requires_grad=True), torch.rand(64, 64, device="cuda")
        kept = getattr(nn.functional, loss)(x, y, reduction=reduction)
        return torch.cuda.memory_allocated(), kept.untyped_storage().nbytes()

    with windtunnel.emulate("V100"):
        with_data = taken()
    with windtunnel.emulate("V100", no_data=True):
        assert taken() == with_data


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_optimizers_are_rehearsed_where_pytorch_has_no_meta_kernel_too(optimizer: type) -> None:
    with windtunnel.emulate("V100", no_data=True) as session:
        model = nn.Linear(4, 4).cuda()
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer(model.parameters(), lr=0.1, fused=True).step()
        assert any(record.signature.name.startswith("aten::_fused_") for record in session.trace)


def test_a_model_larger_than_this_machine_fits_where_it_should() -> None:
    with windtunnel.emulate("H200", no_data=True):
        weights = [torch.empty(1 << 30, 8, dtype=torch.bfloat16, device="cuda") for _ in range(8)]
        assert torch.cuda.memory_allocated() == 128 << 30
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 16\.00 GiB"):
            torch.empty(1 << 30, 8, dtype=torch.bfloat16, device="cuda")
        assert all(w.is_cuda and not w.is_meta for w in weights)


def test_reading_a_value_names_the_line() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(3, device="cuda")
        drawn = torch.randint(0, 9, (3,), device="cuda")
        for read in (lambda: drawn.sum().item(), drawn.tolist, drawn.cpu, lambda: bool(x.long()[0] > 0)):
            with pytest.raises(UnsupportedError, match=r"test_nodata.py:\d+, and a rehearsal without data has none"):
                read()
        with pytest.raises(UnsupportedError, match=r"decides a shape by values at .*: keep the shape"):
            torch.unique(x)
        assert "size=(3,)" in repr(x)


def test_the_answer_can_be_given() -> None:
    with windtunnel.emulate("V100", no_data=True, assume=2.0):
        x = torch.ones(3, device="cuda")
        assert x.sum().item() == 2.0
        assert x.tolist() == [2.0] * 3
        assert x.cpu().equal(torch.full((3,), 2.0))
        assert torch.zeros(3).copy_(x).sum().item() == 6.0


def test_copies_with_pinned_memory() -> None:
    with windtunnel.emulate("V100", no_data=True, assume=2.0):
        x = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
        landed = torch.zeros(3, pin_memory=True)
        landed.copy_(x, non_blocking=True)
        assert landed.sum().item() == 0.0
        torch.cuda.synchronize()
        assert landed.sum().item() == 6.0


def test_host_tensors_keep_their_values() -> None:
    with windtunnel.emulate("V100", no_data=True):
        host = torch.arange(3.0)
        there = host.cuda() * 2
        assert there.shape == (3,)
        assert host.sum().item() == 3.0


def test_it_does_not_go_with_measured_host_time() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        windtunnel.emulate("V100", no_data=True, host_time="measured").__enter__()


@pytest.mark.parametrize("ask", [torch.equal, torch.allclose])
def test_tensors_that_are_compared_are_alike(ask: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        x = torch.randn(3, device="cuda")
        assert ask(x, x * 2)
        torch.testing.assert_close(x, x * 2)
        assert not torch.equal(x, x[:2])
        assert ask(torch.ones(2), torch.ones(2))
    assert sorted(message for message, _ in assumed(session)) == [
        "assumed: the tensors that `torch.equal` or `allclose` compares are alike",
        "assumed: what a library looked at = True, what is compared is close",
    ]
    with windtunnel.emulate("A100", no_data=True, assume=0):
        x = torch.ones(3, device="cuda")
        assert not ask(x, x)


def test_known_integers_are_compared() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        tokens = torch.tensor([1, 5, 2], device="cuda")
        assert torch.equal(tokens, torch.tensor([1, 5, 2], device="cuda"))
        assert not torch.equal(tokens, tokens + 1)
    assert not assumed(session)


def test_bincount_has_the_size_that_is_named() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        experts = torch.randint(0, 8, (64,), device="cuda")
        assert torch.bincount(experts, minlength=8).shape == (8,)
        weights = torch.randn(64, device="cuda")
        assert torch.bincount(experts, weights, minlength=8).dtype is torch.float32
        known = torch.tensor([1, 5, 2], device="cuda")
        assert torch.bincount(known).tolist() == [0, 1, 1, 0, 0, 1]
        assert torch.bincount(known, minlength=8).shape == (8,)
        chosen = torch.topk(torch.randn(8, 4, device="cuda"), 2).indices
        assert torch.bincount(chosen.flatten(), minlength=4).tolist() == [4, 4, 4, 4]
        with pytest.raises(UnsupportedError, match=r"decides a shape by values at .*: give `minlength`"):
            experts.bincount()
    messages = [message for message, _ in assumed(session)]
    assert "assumed: no value that `torch.bincount` counts reaches its `minlength` = 8" in messages


def test_what_composites_make_goes_where_their_inputs_are() -> None:
    with windtunnel.emulate("A100", no_data=True):
        x = torch.randn(4, 5, device="cuda")
        assert torch.quantile(x, 0.5).is_cuda
        assert torch.quantile(x, torch.tensor([0.1, 0.9], device="cuda"), dim=1).shape == (2, 4)


def assumed(session: windtunnel.Session) -> list[tuple[str, int]]:
    """What the report says was assumed, and how often."""
    return [(one.message, one.times) for one in session.findings() if one.code == "assumed-value"]


@pytest.mark.parametrize("assume", [None, 1])
def test_no_gradient_overflows(assume: int | None) -> None:
    with windtunnel.emulate("A100", no_data=True, assume=assume) as session:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(2, 4, device="cuda")).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(optimizer.state) == 2  # the steps were taken
    assert session.trace.facts["devices"][0]["peak_allocated_bytes"] > 0
    ((message, times),) = assumed(session)
    assert "found_inf = 0" in message
    assert times == 2


def test_losses_are_finite() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        loss = torch.randn(8, device="cuda").square().mean()
        assert math.isfinite(loss.item())
        assert torch.isfinite(loss)
        assert not torch.isnan(loss)
        assert not (loss.isnan() | loss.isinf()).any().item()
        nn.utils.clip_grad_norm_([nn.Parameter(torch.ones(2, device="cuda"))], 1.0, error_if_nonfinite=True)
    assert {message.partition(",")[0] for message, _ in assumed(session)} == {
        "assumed: a number that the program read = 1.0",
        "assumed: a test for NaN or infinity gave True",
        "assumed: a test for NaN or infinity gave False",
    }


def test_what_was_written_over_is_known_no_more() -> None:
    with windtunnel.emulate("A100", no_data=True):
        found = torch.isnan(torch.ones(2, device="cuda"))
        found |= torch.ones(2, device="cuda") > 0
        with pytest.raises(UnsupportedError, match="reads values"):
            bool(found.any())


def masked() -> tuple[list[torch.Size], int]:
    """The shapes of what full masks pick, and the peak of memory."""
    x = torch.ones(4, 3, device="cuda", requires_grad=True)
    mask = x > 0
    picked = x[mask]
    picked.sum().backward()
    x.detach()[mask] = picked.detach() * 2
    rows = x[:, mask[0]]
    shapes = [picked.shape, mask.nonzero().shape, torch.masked_select(x, mask).shape, rows.shape]
    return [*shapes, torch.where(mask)[0].shape, x.grad.shape], torch.cuda.max_memory_allocated()


def test_masks_are_full() -> None:
    with windtunnel.emulate("A100") as real:
        with_data = masked()
    with windtunnel.emulate("A100", no_data=True) as rehearsed:
        without = masked()
    assert without == with_data
    rows = [[row.signature.name for row in run.trace if row.kind == Kind.KERNEL] for run in (real, rehearsed)]
    assert rows[0] == rows[1]
    assert ("assumed: index selects all of 12 elements", 1) in assumed(rehearsed)


def test_masks_of_the_host_have_values() -> None:
    with windtunnel.emulate("A100", no_data=True):
        x = torch.ones(4, device="cuda")
        assert x[torch.tensor([True, False, True, False])].shape == (2,)


LIBRARY = """
def find_packed_sequence_indices(mask):
    return None if (mask[:, -1] == 0).all() else mask


def of_its_own(mask):
    return (mask[:, -1] == 0).all().item()
"""


def test_what_a_library_looks_at_is_assumed_or_its_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "transformers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "masking_utils.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    masking = importlib.import_module("transformers.masking_utils")
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)
    with windtunnel.emulate("A100", no_data=True) as session:
        mask = torch.randint(0, 2, (2, 8), device="cuda")
        assert masking.find_packed_sequence_indices(mask) is None
        with pytest.raises(UnsupportedError, match=r"test_nodata\.py:\d+ \(in transformers/masking_utils\.py:7\), and"):
            masking.of_its_own(mask)
    monkeypatch.delitem(sys.modules, "transformers.masking_utils")
    (finding,) = [one for one in session.findings() if one.code == "assumed-value"]
    assert "no sequences are packed" in finding.message


def test_a_truth_can_be_given() -> None:
    with windtunnel.emulate("A100", no_data=True, assume=False) as session:
        assert not (torch.rand(1, device="cuda") > 0)
    assert assumed(session) == [("assumed: what the program read = False, as --assume says", 1)]


def layouts(dims: int, dtype: torch.dtype) -> list[tuple[int, ...]]:
    """Strides of convolutions' results and gradients where the images, the weight or neither have channels last."""
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    plain = torch.ones(2, 8, *(6,) * dims, device="cuda", dtype=dtype)
    weight = torch.ones(16, 8, *(3,) * dims, device="cuda", dtype=dtype)
    found = []
    for images in (plain, plain.to(memory_format=last), plain.to(memory_format=last)[:, :8]):
        for kernel in (weight, weight.to(memory_format=last)):
            x, w = images.detach().requires_grad_(), kernel.detach().requires_grad_()
            convolve = torch.conv2d if dims == 2 else torch.conv3d
            out = convolve(x, w, padding=1)
            out.sum().backward()
            assert x.grad is not None
            assert w.grad is not None
            found += [out.stride(), x.grad.stride(), w.grad.stride()]
    return found


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_convolutions_lie_in_memory_as_with_data(dims: int, dtype: torch.dtype) -> None:
    with windtunnel.emulate("A100"):
        there = layouts(dims, dtype)
    with windtunnel.emulate("A100", no_data=True):
        assert layouts(dims, dtype) == there
