"""Out of memory beside a loaded checkpoint: who holds it, and what gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from windtunnel.session import Session

MIB = 1 << 20


@pytest.fixture
def checkpoint(session: Session, tmp_path: Path) -> Path:
    """A trained layer with weights of 8 MiB and its optimizer's states, on a GPU of which little may be used."""
    net = nn.Linear(1024, 2048, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    path = tmp_path / "state.pt"
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    del net, optimizer
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(64 * MIB / torch.cuda.get_device_properties(0).total_memory)
    return path


def run_out(session: Session) -> str:
    """Message and advice of what is found once memory has run out."""
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
    (finding,) = (one for one in session.findings() if one.code == "out-of-memory")
    return f"{finding.message}; {finding.advice}"


def resume(path: Path, place: str | None) -> tuple[object, nn.Module, torch.optim.Optimizer]:
    net = nn.Linear(1024, 2048, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    state = torch.load(path, map_location=place)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state, net, optimizer


def test_a_checkpoint_that_stays_on_the_gpu_is_named(session: Session, checkpoint: Path) -> None:
    kept = resume(checkpoint, None)
    said = run_out(session)
    # The optimizer takes the loaded states themselves (`Optimizer.load_state_dict`): the weights are there twice.
    assert "the checkpoint that `torch.load` put there at tests/seam/test_loaded.py:43" in said
    assert "still holds 8.00 MiB" in said
    assert 'map_location="cpu"' in said
    assert "`del`" in said
    assert "--memory-history" not in said
    assert kept


@pytest.mark.parametrize("place", ["cpu", None])
def test_one_that_is_gone_or_on_the_host_is_not(session: Session, checkpoint: Path, place: str | None) -> None:
    state, *kept = resume(checkpoint, place)
    if place is None:
        del state
    assert "torch.load" not in run_out(session)
    assert kept


def test_weights_that_a_model_took_over_are_its_own(session: Session, checkpoint: Path) -> None:
    net = nn.Linear(1024, 2048, bias=False, device="meta")
    net.load_state_dict(torch.load(checkpoint)["model"], assign=True)
    assert "torch.load" not in run_out(session)
    assert net.weight.is_cuda


def test_memory_that_ends_while_it_is_loaded(session: Session, checkpoint: Path) -> None:
    held = [torch.empty(36 * MIB, dtype=torch.uint8, device="cuda")]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.load(checkpoint)
    (finding,) = (one for one in session.findings() if one.code == "out-of-memory")
    assert 'map_location="cpu"' in finding.advice
    assert held
