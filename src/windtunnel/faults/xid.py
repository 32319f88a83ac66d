"""The fault `xid`: a GPU that fails."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.errors import UsageError
from windtunnel.faults import Fault, Hands

ERRORS = {
    13: ("unspecified launch failure", "cudaErrorLaunchFailure"),
    31: ("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
    48: ("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable"),
    74: ("uncorrectable NVLink error detected during the execution", "cudaErrorNvlinkUncorrectable"),
    79: ("unknown error", "cudaErrorUnknown"),
    94: ("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable"),
    119: ("unknown error", "cudaErrorUnknown"),
}
"""What CUDA says after NVIDIA's Xid of that number. The numbers are those of NVIDIA's catalogue of Xid errors (48 and
94 ECC, 74 NVLink, 79 fallen off the bus, 119 the GPU's own processor), the texts those of CUDA's runtime."""


class Xid(Fault):
    """The GPU fails with an Xid, `code`: 48 (ECC) by default; also 13, 31, 74, 79 (fallen off the bus), 94 and 119.

    CUDA says so when the host next waits for the device, and at every call from then on: only a new process goes on.
    NVML and nvidia-smi count what ECC could not correct, and refuse to speak of a GPU that has fallen off the bus.
    """

    name: ClassVar = "xid"
    options: ClassVar = {"code": 48}

    def strike(self, hands: Hands) -> None:
        """Lose the device."""
        code = self.value["code"]
        if code not in ERRORS:
            known = ", ".join(map(str, ERRORS))
            raise UsageError(f"code of the fault 'xid' cannot be {code}: it must be one of {known}")
        hands.lose_device(code, *ERRORS[code])
