"""What CUDA's kernels check, warn of and can compute where the CPU's cannot."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import windtunnel
from windtunnel.errors import UnsupportedError

OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10)
HALF = {"device": "cuda", "dtype": torch.float16}


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with windtunnel.emulate("2xV100"):
        yield


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_say_which_tensors_are_elsewhere(kind: Any) -> None:
    layer = kind(3, 4).cuda()
    with pytest.raises(RuntimeError, match="Input and parameter tensors are not at the same device, found input"):
        layer(torch.ones(2, 1, 3))
    hidden = torch.zeros(1, 1, 4)
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device"):
        layer(torch.ones(2, 1, 3, device="cuda"), (hidden, hidden) if kind is nn.LSTM else hidden)


def test_recurrent_weights_lie_in_one_buffer() -> None:
    layer = nn.LSTM(3, 4).cuda()
    x = torch.ones(2, 1, 3, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)
    with torch.no_grad():
        layer.weight_hh_l0.set_(layer.weight_hh_l0.clone())
    with pytest.warns(UserWarning, match="weights are not part of single contiguous chunk of memory"):
        layer(x)


def test_transforms_say_where_their_window_is() -> None:
    with pytest.raises(RuntimeError, match="stft input and window must be on the same device but got self on cuda:0"):
        torch.stft(torch.ones(64, device="cuda"), 8, window=torch.ones(8), return_complex=True)


def test_what_is_nondeterministic_on_cuda_is_refused(deterministic: None) -> None:
    bag = nn.EmbeddingBag(4, 3, mode="max").cuda()
    out = bag(torch.zeros(1, 2, dtype=torch.long, device="cuda"))
    with pytest.raises(RuntimeError, match="embedding_bag_backward_cuda_max does not have a deterministic"):
        out.sum().backward()
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
        x.put(torch.tensor([0], device="cuda"), torch.ones(1, device="cuda"), accumulate=True)


def test_cublas_wanted_a_workspace_for_determinism(deterministic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", raising=False)
    x = torch.ones(2, 2, device="cuda")
    if OLD:
        with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8 or CUBLAS_WORKSPACE_CONFIG=:16:8"):
            x @ x
    else:
        assert (x @ x).sum().item() == 8


def test_cublas_with_a_fixed_workspace(deterministic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    x = torch.ones(2, 2, device="cuda")
    assert (x @ x).sum().item() == 8


KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x[0], torch.tensor([1, -1, 0], device=x.device)),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2], device=x.device)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, reduction="sum"),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None], (1, 2, 2)),
    "round": lambda x: torch.round(x, decimals=1),
    "trace": torch.trace,
    "polygamma": lambda x: torch.polygamma(1, x),
    "rrelu": lambda x: F.rrelu(-x, training=True),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_half_precision_is_computed_where_cuda_can(kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([[0.5, 1.25, 2.0], [1.5, 0.75, 0.25], [3.0, 1.0, 2.5]], **HALF, requires_grad=True)
    out = kernel(x)
    assert (out.dtype, out.is_cuda) == (torch.float16, True)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float16
    if kernel is not KERNELS["rrelu"]:
        assert torch.equal(out.detach().cpu(), kernel(x.detach().cpu().float()).half())


def test_writing_in_place_in_half_precision() -> None:
    x = torch.tensor([1.26], **HALF)
    assert x.round_(decimals=1) is x
    assert x.item() == pytest.approx(1.3, abs=1e-3)


def test_cudas_exponential_distribution_has_no_zero() -> None:
    assert (torch.empty(1 << 16, **HALF).exponential_() > 0).all()


def test_cudnns_grid_sampler_by_name() -> None:
    images = torch.rand(2, 1, 4, 4, device="cuda")
    grid = torch.rand(2, 4, 4, 2, device="cuda", requires_grad=True)
    out = torch.cudnn_grid_sampler(images, grid)
    assert torch.equal(out, F.grid_sample(images, grid, align_corners=True))
    out.sum().backward()
    with pytest.raises(RuntimeError, match="expected grid and input to have same batch size"):
        torch.cudnn_grid_sampler(images[:1], grid)


def test_the_state_of_a_private_pool_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="private pool cannot be saved"):
        torch._C._cuda_getCheckpointState(0, (0, 1))  # type: ignore[attr-defined]


def test_a_warning_of_cpp_names_the_programs_line() -> None:
    out = torch.empty(5, device="cuda")

    def resize() -> int:
        frame = inspect.currentframe()
        assert frame is not None
        line = frame.f_lineno + 1
        torch.arange(0, 3, device="cuda", out=out)
        return line

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        line = resize()
    told = next(w for w in found if re.search("number of elements in the out tensor", str(w.message)))
    assert (os.path.basename(told.filename), told.lineno) == (os.path.basename(__file__), line)


def test_vitals_know_that_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_VITAL", "ON")
    vitals = getattr(torch, "read_vitals", lambda: "CUDA.used\t\t true")
    torch.ones(1, device="cuda")
    assert "CUDA.used\t\t true" in vitals()


def test_packed_sequences_keep_their_lengths_on_the_host() -> None:
    x = torch.rand(4, 3, 2, device="cuda", requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2, 1])
    assert (packed.data.is_cuda, packed.batch_sizes.is_cpu) == (True, True)
    out, _ = nn.LSTM(2, 3).cuda()(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
    assert (padded.is_cuda, lengths.is_cpu, lengths.tolist()) == (True, True, [4, 2, 1])
    padded.sum().backward()
    assert x.grad is not None
    assert x.grad.is_cuda
    with pytest.raises(RuntimeError, match="'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0"):
        torch._VF._pack_padded_sequence(x, torch.tensor([4, 2, 1], device="cuda"), False)  # type: ignore[attr-defined]
