"""The variables of ProcessGroupNCCL, read as PyTorch reads them, and what its watchdog says."""

from __future__ import annotations

import pytest

from windtunnel.ranks import watchdog
from windtunnel.ranks.calls import Group, Operation
from windtunnel.seam.torch.distributed import nccl_settings
from windtunnel.seam.torch.distributed.nccl_settings import Settings


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("BLOCKING_WAIT", "ASYNC_ERROR_HANDLING", "DESYNC_DEBUG", "ENABLE_TIMING", "NAN_CHECK"):
        for prefix in ("NCCL_", "TORCH_NCCL_"):
            monkeypatch.delenv(prefix + name, raising=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Settings()),
        ({"TORCH_NCCL_BLOCKING_WAIT": "Yes"}, Settings(blocking=True)),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, Settings(handling=0)),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DESYNC_DEBUG": "1"}, Settings(timing=True)),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_ASYNC_ERROR_HANDLING": "2"}, Settings(handling=1)),
        ({"TORCH_NCCL_NAN_CHECK": "t", "TORCH_NCCL_ENABLE_TIMING": "1"}, Settings(check_nan=True, timing=True)),
    ],
)
def test_what_the_variables_say(monkeypatch, given, expected):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert nccl_settings.read(detailed=False) == expected


def test_an_old_name_is_taken_with_a_warning(monkeypatch):
    monkeypatch.setenv("NCCL_BLOCKING_WAIT", "1")
    with pytest.warns(UserWarning, match="NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead"):
        assert nccl_settings.read(detailed=False).blocking


@pytest.mark.parametrize("name", ["TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"])
def test_a_value_of_another_kind_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(RuntimeError, match=f"Invalid value for environment variable: {name}"):
        nccl_settings.read(detailed=False)


@pytest.mark.parametrize(
    ("settings", "times_out", "tears_down"),
    [
        (Settings(), True, True),
        (Settings(blocking=True), True, False),
        (Settings(handling=nccl_settings.NO_HANDLING), False, False),
        (Settings(handling=nccl_settings.CLEAN_UP_ONLY), True, False),
    ],
)
def test_what_comes_of_a_timeout(settings, times_out, tears_down):
    assert (settings.times_out, settings.tears_down) == (times_out, tears_down)


def test_the_words_of_the_watchdog():
    operation = Operation("all_gather_into_tensor", ((8, 4),), ("float32",), (32,))
    assert watchdog.timeout(1, 7, operation, Group("default_pg", (0, 1)), (600_000, 600_030)) == (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=32, "
        "NumelOut=64, Timeout(ms)=600000) ran for 600030 milliseconds before timing out."
    )
