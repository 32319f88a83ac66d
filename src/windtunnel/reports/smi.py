"""nvidia-smi's answers for emulated GPUs: its table, `-L`, `--query-gpu` and `--query-compute-apps`, as text.

Everything is a function of plain data: `main(argv, host)` gives the text and the exit code that nvidia-smi would give.
The layouts are those of the drivers that people run: before 450, 450 to 529, 530 to 544 and 545 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from windtunnel.reports.parts import smi_query, smi_table
from windtunnel.reports.parts.smi_data import SmiDevice, SmiHost

USAGE = 2
"""nvidia-smi's exit code for an argument it does not know."""
NO_DEVICES = 6
"""nvidia-smi's exit code when no device fits."""
LOST = 15
LOST_TEXT = "Unable to determine the device handle for GPU {}: GPU is lost.  Reboot the system to recover this GPU\n"
"""Its exit code ("the GPU has fallen off the bus", of its manual) and sentence where one of them is lost."""


class Model(Protocol):
    """What `device_of` needs to know of a GPU's model: `windtunnel.gpus.Gpu` has it."""

    @property
    def name(self) -> str: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    @property
    def clock_mhz(self) -> int: ...
    @property
    def memory_clock_mhz(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def pcie_generation(self) -> int: ...
    @property
    def power_limit_w(self) -> int: ...
    def smi_total_mib(self, driver: str) -> int: ...


def device_of(
    model: Model, index: int, uuid: str, driver: str, used_bytes: int = 0, utilization: float = 0.0, devices: int = 1
) -> SmiDevice:
    """A device of that model, as busy as `utilization` (0 to 1) says.

    Power and temperature are modelled: an idle GPU draws about 15 % of its limit, as in the documents' tables, a busy
    one 90 %. What the driver keeps for itself (counted in the total since driver 510) is total minus CUDA's total.
    """
    total = model.smi_total_mib(driver)
    kept = max(0, total - (model.memory_bytes >> 20))
    ecc = "GeForce" not in model.name
    return SmiDevice(
        index,
        model.name,
        uuid,
        bus_id(index, devices),
        total,
        used_bytes >> 20,
        round(100 * utilization),
        round(50 * utilization),
        round(25 + 40 * utilization),
        round(model.power_limit_w * (0.15 + 0.75 * utilization), 2),
        float(model.power_limit_w),
        model.compute_capability,
        model.clock_mhz,
        model.clock_mhz,
        model.memory_clock_mhz,
        model.pcie_generation,
        None if ecc else 30,
        ecc=ecc,
        memory_reserved_mib=kept if kept > 1 else 0,
    )


def bus_id(index: int, devices: int) -> str:
    """The bus id of a device: as on AWS's machines with 4 and 8 GPUs (the documents' 1B to 1E), else one bus each."""
    if devices <= 8:
        return f"00000000:00:{(0x1B if devices <= 4 else 0x17) + index:02X}.0"
    return f"{index >> 8:08X}:{index & 0xFF:02X}:00.0"


def table(host: SmiHost) -> str:
    """The table that nvidia-smi prints without arguments, in the layout of the host's driver."""
    return smi_table.render(host)


def listing(devices: Sequence[SmiDevice]) -> str:
    """`nvidia-smi -L`: one line a device."""
    return "".join(f"GPU {d.index}: {d.name} (UUID: {d.uuid})\n" for d in devices)


HELP = """\
NVIDIA System Management Interface -- v{driver} (EMULATED by windtunnel)

    nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...

    -h,   --help                Print usage information and exit.
    -L,   --list-gpus           Display a list of GPUs connected to the system.
    -i,   --id=                 Target a specific GPU: index, UUID or PCI bus id; several separated by commas.
          --version             Print the versions.
          --query-gpu=          Information about GPUs; see --help-query-gpu.
          --query-compute-apps= Processes: pid, process_name, used_memory, gpu_uuid, gpu_name, gpu_bus_id, timestamp.
          --format=             csv, and with it noheader, nounits; needed by the queries.
    -l,   --loop=               Accepted; the answer is given once.
"""


class _Arguments(NamedTuple):
    action: str = "table"
    query: str = ""
    form: str = ""
    ids: str = ""


def main(argv: Sequence[str], host: SmiHost) -> tuple[str, int]:
    """What nvidia-smi prints for these arguments (without the program's name), and its exit code."""
    arguments = _parse(list(argv))
    if isinstance(arguments, str):
        return f"{arguments}\n", USAGE
    if arguments.action == "help":
        return HELP.format(driver=host.driver_version), 0
    if arguments.action == "fields":
        return smi_query.describe(), 0
    if arguments.action == "version":
        return _version(host), 0
    devices = _select(host.devices, arguments.ids)
    if not devices:
        return "No devices were found\n", NO_DEVICES
    lost = [device for device in devices if device.lost]
    if lost:
        return LOST_TEXT.format(lost[0].bus_id[4:]), LOST
    host = replace(host, devices=tuple(devices))
    if arguments.action == "list":
        return listing(devices), 0
    if arguments.action in ("query-gpu", "query-compute-apps"):
        text = smi_query.run(arguments.action, arguments.query, arguments.form, host)
        return (text, 0) if not text.startswith(smi_query.ERRORS) else (text, USAGE)
    return table(host), 0


_WITHOUT_VALUE = {
    "-h": "help",
    "--help": "help",
    "-L": "list",
    "--list-gpus": "list",
    "--version": "version",
    "--help-query-gpu": "fields",
}
_WITH_VALUE = {
    "-i": "ids",
    "--id": "ids",
    "--query-gpu": "query-gpu",
    "--query-compute-apps": "query-compute-apps",
    "--format": "form",
    "-l": "loop",
    "--loop": "loop",
    "-lms": "loop",
    "--loop-ms": "loop",
}
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."


def _parse(argv: list[str]) -> _Arguments | str:
    """The arguments, or nvidia-smi's complaint about them."""
    found = _Arguments()
    while argv:
        option, equals, value = argv.pop(0).partition("=")
        if option in _WITHOUT_VALUE and not equals:
            found = found._replace(action=_WITHOUT_VALUE[option])
            continue
        key = _WITH_VALUE.get(option)
        if key is None:
            return INVALID
        if not equals:
            if not argv:
                return INVALID
            value = argv.pop(0)
        if key.startswith("query"):
            if found.query:
                return "Only one --query-* switch can be used at a time."
            found = found._replace(action=key, query=value)
        elif key != "loop":
            found = found._replace(**{key: value})
    if found.form and not found.query:
        return INVALID
    return found


def _select(devices: tuple[SmiDevice, ...], ids: str) -> list[SmiDevice]:
    """The devices that `-i` names by index, UUID or bus id; all without it."""
    if not ids:
        return list(devices)
    wanted = [text.strip().lower() for text in ids.split(",")]
    return [d for d in devices if {str(d.index), d.uuid.lower(), d.bus_id.lower(), d.bus_id.lower()[4:]} & set(wanted)]


def _version(host: SmiHost) -> str:
    return (
        f"NVIDIA-SMI version  : {host.driver_version}\n"
        f"DRIVER version      : {host.driver_version}\n"
        f"CUDA Version        : {host.cuda_version}\n"
    )
