"""The options of an emulation are a public interface: their names change on purpose only."""

from dataclasses import fields

from windtunnel import settings
from windtunnel.cli import _options
from windtunnel.options import Options

NAMES = [
    "gpus",
    "cuda_version",
    "seed",
    "clock",
    "async_copies",
    "host_time",
    "host_factor",
    "no_data",
    "assume",
    "share_gpus",
    "stacks",
    "memory_history",
    "compat",
    "curves",
    "host",
    "network",
    "jitter",
    "host_memory_limit",
    "overcommit",
    "stop_after",
    "stuck_after",
    "check_kernels",
    "cuda_compiler",
    "faults",
    "without",
    "kernels",
]


def test_the_options_are_these() -> None:
    assert [field.name for field in fields(Options)] == NAMES


def test_the_command_line_sets_each_of_them() -> None:
    assert sorted(_options.FIELDS.values()) == sorted(NAMES)


def test_each_can_be_set_in_pyproject() -> None:
    assert {name.replace("_", "-") for name in _options.FIELDS} <= set(settings.NAMES)
