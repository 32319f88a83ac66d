"""GPUs, their machine and their processes, as nvidia-smi sees them: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SmiProcess(NamedTuple):
    """A process on a device: its number, the command as it was started, the device memory it uses in MiB."""

    pid: int
    name: str
    used_mib: int


@dataclass(frozen=True)
class SmiDevice:
    """One GPU as nvidia-smi sees it. Memory in MiB, power in watts, clocks in MHz, temperature in degrees Celsius."""

    index: int
    name: str
    uuid: str
    bus_id: str
    memory_total_mib: int
    memory_used_mib: int = 0
    utilization_gpu: int = 0
    utilization_memory: int = 0
    temperature: int = 30
    power_w: float = 40.0
    power_limit_w: float = 250.0
    compute_capability: tuple[int, int] = (7, 0)
    clock_sm_mhz: int = 0
    clock_sm_max_mhz: int = 0
    clock_memory_mhz: int = 0
    pcie_generation: int = 3
    fan_percent: int | None = None
    persistence: bool = False
    ecc: bool = True
    mig: bool = False
    performance_state: int = 0
    memory_reserved_mib: int = 0
    processes: tuple[SmiProcess, ...] = ()
    xid: int = 0  # the last Xid error, 0 for none

    @property
    def uncorrected_errors(self) -> int:
        """Errors of memory that ECC found and could not correct since the driver was loaded."""
        return int(self.xid in (48, 94))

    @property
    def lost(self) -> bool:
        """Whether the GPU has fallen off the bus."""
        return self.xid == 79

    @property
    def memory_free_mib(self) -> int:
        """What nvidia-smi shows as free: the total without what is used and what the driver keeps."""
        return self.memory_total_mib - self.memory_reserved_mib - self.memory_used_mib


@dataclass(frozen=True)
class SmiHost:
    """All devices of a machine, the driver, and the moment that the answer shows ("Sat Nov 12 19:53:16 2022")."""

    devices: tuple[SmiDevice, ...] = ()
    driver_version: str = "460.106.00"
    cuda_version: str = "11.2"
    time: str = "Thu Jan  1 00:00:00 1970"
    timestamp: str = "1970/01/01 00:00:00.000"
