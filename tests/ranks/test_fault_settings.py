"""Faults on purpose by the marker of pytest and by the settings of a project."""

from __future__ import annotations

import pytest

from understudy import faults, settings
from understudy.errors import FileFormatError

pytest_plugins = ["pytester"]


def test_a_table_and_a_text_say_the_same(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[[tool.understudy.fault]]\nname = "die"\nrank = 1\nstep = 7\n')
    assert settings.read(tmp_path)["fault"] == ["die:rank=1,step=7"]
    file.write_text('[tool.understudy]\nfault = ["nan:step=2", "slow"]\n')
    assert settings.read(tmp_path)["fault"] == ["nan:step=2", "slow"]
    file.write_text("[tool.understudy]\nfault = [3]\n")
    with pytest.raises(FileFormatError, match="fault must be"):
        settings.read(tmp_path)


def test_every_fault_is_listed_and_says_what_it_does():
    assert list(faults.all_faults()) == [
        "bit-flip", "data-worker-dies", "die", "disk-full", "hang", "nan", "oom", "slow", "slow-data", "xid",
    ]  # fmt: skip
    assert all(kind.__doc__ for kind in faults.all_faults().values())


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("mm", "aten::mm", True),
        ("mm", "aten::addmm", False),
        ("*mm", "aten::addmm", True),
        ("aten::mm", "aten::mm", True),
        ("all_reduce", "c10d::allreduce_", True),
        ("broadcast", "c10d::allreduce_", False),
    ],
)
def test_operators_by_name(pattern, name, fits):
    assert faults.matches(pattern, name) == fits


@pytest.mark.long
def test_the_marker_gives_a_test_its_fault(pytester):
    pytester.makepyfile(
        """
        import pytest
        import torch


        @pytest.mark.fault("nan", operation="ones")
        def test_with():
            assert torch.ones(4, device="cuda").isnan().sum().item() == 1


        def test_without(cuda_device):
            assert torch.ones(4, device="cuda").isnan().sum().item() == 0


        @pytest.mark.fault(3)
        def test_wrong():
            pass
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    done.assert_outcomes(passed=2, errors=1)
