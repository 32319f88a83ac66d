"""`cumsum` and `cumprod` in half precision, thread by thread as ScanUtils.cuh has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session

Tensor = torch.Tensor
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
SCANS = pytest.mark.parametrize("name", ["cumsum", "cumprod"])
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cumsum": torch.add, "cumprod": torch.mul}


def scanned(row: Tensor, threads: int, name: str) -> list[float]:
    """`tensor_kernel_scan_innermost_dim_impl` for one row."""
    combine, neutral = COMBINE[name], torch.tensor(float(name == "cumprod"), dtype=row.dtype)
    total, found = neutral, []
    for start in range(0, len(row), 2 * threads):
        part = list(row[start : start + 2 * threads])
        buffer = part + [neutral] * (2 * threads - len(part))
        buffer[0] = combine(buffer[0], total)
        step = 1
        while step <= threads:
            for thread in range(threads):
                into = thread // step * 2 * step + step + thread % step
                buffer[into] = combine(buffer[into], buffer[thread // step * 2 * step + step - 1])
            step *= 2
        found += [value.item() for value in buffer[: len(part)]]
        total = buffer[-1]
    return found


@HALVES
@SCANS
@pytest.mark.parametrize(("rows", "size", "threads"), [(2, 100, 64), (40, 70, 32), (600, 9, 16)])
def test_rows_are_scanned_as_by_a_block(
    session: Session, rows: int, size: int, threads: int, name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    values = torch.rand(rows, size).add(0.5).to(dtype)
    found = getattr(values.cuda(), name)(1)
    assert found.dtype is dtype
    for row in (0, rows - 1):
        assert found[row].tolist() == scanned(values[row], threads, name)


@HALVES
@SCANS
def test_columns_go_one_by_one(session: Session, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.rand(2, 50, 3).add(0.5).to(dtype)
    expected = [values[:, 0]]
    for column in values.unbind(1)[1:]:
        expected.append(COMBINE[name](expected[-1], column))
    assert torch.equal(getattr(values.cuda(), name)(1).cpu(), torch.stack(expected, 1))


def test_ones_stop_where_one_more_is_lost(session: Session) -> None:
    ones = torch.ones(4096, 2, dtype=torch.bfloat16, device="cuda")
    assert ones.cumsum(0)[-1].tolist() == [256.0, 256.0]
    assert ones.cumsum(0, dtype=torch.float32)[-1].tolist() == [4096.0, 4096.0]
    assert (ones > 0).cumsum(0, dtype=torch.bfloat16)[-1].tolist() == [256.0, 256.0]


def test_one_long_row_is_as_inexact_as_reported(session: Session) -> None:
    """pytorch/pytorch#180150: 5.6 on a GPU and 0.5 on the CPU; the order within CUB's tiles is not known."""
    torch.manual_seed(0)
    values = torch.randn(500_000, dtype=torch.float16)
    off = (values.cuda().cumsum(0).cpu().double() - values.double().cumsum(0)).abs().max().item()
    assert 2.5 < off < 11


def test_results_go_where_they_are_asked_for(session: Session) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16, device="cuda")
    out = torch.empty(0, dtype=torch.float16, device="cuda")
    assert torch.cumsum(values, 1, out=out) is out
    assert out.tolist() == [[1.0, 3.0], [3.0, 7.0]]
    assert values.cumsum_(0).tolist() == values.tolist() == [[1.0, 2.0], [4.0, 6.0]]
    assert torch.tensor(2.0, dtype=torch.float16, device="cuda").cumsum(0).item() == 2.0
    assert torch.empty(0, 3, dtype=torch.float16, device="cuda").cumsum(0).shape == (0, 3)
    with pytest.raises(IndexError):
        values.cumsum(2)
