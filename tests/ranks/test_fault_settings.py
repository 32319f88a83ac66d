"""Faults on purpose by the marker of pytest and by the settings of a project."""

from __future__ import annotations

import pytest

from windtunnel import faults, settings
from windtunnel.errors import FileFormatError, UsageError

pytest_plugins = ["pytester"]


def test_a_table_and_a_text_say_the_same(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[[tool.windtunnel.fault]]\nname = "die"\nrank = 1\nstep = 7\n')
    assert settings.read(tmp_path)["fault"] == ["die:rank=1,step=7"]
    file.write_text('[tool.windtunnel]\nfault = ["nan:step=2", "slow"]\n')
    assert settings.read(tmp_path)["fault"] == ["nan:step=2", "slow"]
    file.write_text("[tool.windtunnel]\nfault = [3]\n")
    with pytest.raises(FileFormatError, match="fault must be"):
        settings.read(tmp_path)


def test_every_fault_is_listed_and_says_what_it_does():
    assert list(faults.all_faults()) == [
        "bit-flip", "data-worker-dies", "die", "disk-full", "hang", "nan", "oom", "slow", "slow-data", "xid",
    ]  # fmt: skip
    assert all(kind.__doc__ for kind in faults.all_faults().values())


def test_a_death_in_the_middle_of_a_collective():
    (middle,) = faults.parse(["die:rank=1,at=transfer,operation=all_reduce"])
    assert middle.due(faults.Moment("transfer", "c10d::allreduce_", 1, 1, 0))
    assert not middle.due(faults.Moment("operator", "c10d::allreduce_", 1, 1, 0))
    with pytest.raises(UsageError, match="at of the fault 'die' cannot be 'end': it must be call or transfer"):
        faults.parse(["die:at=end"])
    with pytest.raises(UsageError, match="cannot raise an error at=transfer"):
        faults.parse(["die:at=transfer,error=lost"])


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
