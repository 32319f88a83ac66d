"""The environment variables by which ProcessGroupNCCL is set, read when a group is made, as PyTorch reads them.

The names, their older forms and what counts as a value are those of `ProcessGroupNCCL.hpp` and of `getCvarBool` and
`getCvarInt` (torch/csrc/distributed/c10d/Utils.hpp).
"""

from __future__ import annotations

import os
import re
import warnings
from typing import NamedTuple

TRUE, FALSE = ("y", "yes", "1", "t", "true"), ("n", "no", "0", "f", "false")
NO_HANDLING, TEAR_DOWN, CLEAN_UP_ONLY, SKIP_CLEAN_UP = range(4)
"""`ErrorHandlingMode`: what the watchdog does about an error or a timeout."""
IN_LINE = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"
WHOLE = re.compile(r"\s*[+-]?\d+")


class Settings(NamedTuple):
    """What the variables set for one group.

    `blocking`: the host waits in `wait`, which raises after the timeout; there is no watchdog. `handling` is an
    `ErrorHandlingMode`. `check_nan`: what a rank sends must hold no NaN. `timing`: a collective tells how long it took.
    `warns_of_line`: a plain message in line with collectives is warned of.
    """

    blocking: bool = False
    handling: int = SKIP_CLEAN_UP
    check_nan: bool = False
    timing: bool = False
    warns_of_line: bool = True

    @property
    def times_out(self) -> bool:
        """Whether anything comes of a collective that takes longer than the group's timeout."""
        return self.blocking or self.handling != NO_HANDLING

    @property
    def tears_down(self) -> bool:
        """Whether the watchdog then takes the process down."""
        return not self.blocking and self.handling in (TEAR_DOWN, SKIP_CLEAN_UP)


DEFAULTS = Settings()


def read(detailed: bool) -> Settings:
    """What the environment says now; `detailed` is TORCH_DISTRIBUTED_DEBUG=DETAIL, which needs the timing.

    Raises:
        RuntimeError: a variable has no value of its type.
    """
    desync = _truth("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG") or detailed
    blocking = _truth("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = _number(SKIP_CLEAN_UP, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if desync and handling == NO_HANDLING and not blocking:
        handling = SKIP_CLEAN_UP
    return Settings(
        blocking, handling, _truth("TORCH_NCCL_NAN_CHECK"),
        _truth("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING") or desync,
        _truth(IN_LINE) if IN_LINE in os.environ else True,
    )  # fmt: skip


def records() -> bool:
    """Whether Flight Recorder keeps anything."""
    return _number(2000, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE") > 0


def dumps() -> bool:
    """Whether Flight Recorder's dump is written when a run ends by a timeout."""
    name = "TORCH_NCCL_DUMP_ON_TIMEOUT"
    return records() and (name not in os.environ or _truth(name))


def _given(names: tuple[str, ...]) -> tuple[str, str] | None:
    """The first of the names that is set, and its value."""
    for name in names:
        value = os.environ.get(name)
        if value is not None:
            if name != names[0] and not name.startswith("TORCH_"):
                warnings.warn(f"Environment variable {name} is deprecated; use {names[0]} instead", stacklevel=2)
            return name, value
    return None


def _truth(*names: str) -> bool:
    given = _given(names)
    if given is None:
        return False
    name, value = given
    if value.lower() not in TRUE + FALSE:
        raise RuntimeError(f"Invalid value for environment variable: {name}")
    return value.lower() in TRUE


def _number(otherwise: int, *names: str) -> int:
    given = _given(names)
    if given is None:
        return otherwise
    found = WHOLE.match(given[1])
    if found is None:
        raise RuntimeError(f"Invalid value for environment variable: {given[0]}")
    return int(found[0])
