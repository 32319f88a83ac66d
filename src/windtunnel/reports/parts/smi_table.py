"""nvidia-smi's table in the layouts of its drivers, to the character."""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.reports.parts.smi_data import SmiDevice, SmiHost, SmiProcess


class Layout(NamedTuple):
    """Widths of one layout: of its three columns, the fields in them, and of the process table's last two."""

    since: int
    columns: tuple[int, int, int]
    header: tuple[int, int]  # of "NVIDIA-SMI x" and "Driver Version: x"
    name: int
    longest_name: int
    titles: tuple[str, ...]
    draw: int
    cap: int
    bus_lead: int
    used: int
    total: int
    has_mig: bool
    process_titles: tuple[str, ...]
    pid: int
    process_name: int
    process_memory: int
    rule: str  # how the line under the header begins
    blank: int  # spaces between the two tables


_OLD_TITLES = (
    "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
    "|                               |                      |               MIG M. |",
)
_WIDE_TITLES = (
    "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                      |               MIG M. |",
)
_WIDER_TITLES = (
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
)
_ANCIENT_PROCESSES = (
    "| Processes:                                                       GPU Memory |",
    "|  GPU       PID   Type   Process name                             Usage      |",
)
_OLD_PROCESSES = (
    "| Processes:                                                                  |",
    "|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |",
    "|        ID   ID                                                   Usage      |",
)
_WIDE_PROCESSES = (
    "| Processes:                                                                            |",
    "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |",
    "|        ID   ID                                                             Usage      |",
)
_WIDER_PROCESSES = (
    "| Processes:                                                                              |",
    "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |",
    "|        ID   ID                                                               Usage      |",
)
_WIDEST_PROCESSES = (
    _WIDER_PROCESSES[0],
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
    _WIDER_PROCESSES[2],
)
_ANCIENT = Layout(
    0, (31, 22, 22), (12, 12), 18, 18, _OLD_TITLES[:2], 7, 4, 1, 10, 8, False, _ANCIENT_PROCESSES, 9, 42, 9, "|", 79
)
_OLD = _ANCIENT._replace(
    since=450, titles=_OLD_TITLES, has_mig=True, process_titles=_OLD_PROCESSES, process_name=28, process_memory=12
)
_WIDE = _OLD._replace(
    since=530,
    columns=(41, 22, 22),
    header=(22, 12),
    name=29,
    longest_name=27,
    titles=_WIDE_TITLES,
    draw=17,
    process_titles=_WIDE_PROCESSES,
    process_name=38,
    blank=89,
)
_WIDER = _WIDE._replace(
    since=545,
    columns=(41, 24, 22),
    header=(22, 14),
    titles=_WIDER_TITLES,
    draw=16,
    cap=5,
    bus_lead=3,
    used=11,
    total=9,
    process_titles=_WIDER_PROCESSES,
    process_name=40,
)
_WIDEST = _WIDER._replace(since=555, process_titles=_WIDEST_PROCESSES, pid=15, process_name=32, process_memory=14)
_LAYOUTS = (_ANCIENT, _OLD, _WIDE, _WIDER, _WIDEST, _WIDEST._replace(since=575, rule="+"))


def layout_of(driver: str) -> Layout:
    """The layout of a driver such as "460.106.00"."""
    branch = int(driver.split(".")[0])
    return max((layout for layout in _LAYOUTS if layout.since <= branch), key=lambda layout: layout.since)


def render(host: SmiHost) -> str:
    """The whole table with its time, as nvidia-smi prints it."""
    layout = layout_of(host.driver_version)
    width = sum(layout.columns) + 2
    line, double = _rules(layout)
    edge = f"+{'-' * width}+"
    lines = [f"{host.time:<31}", edge, _header(host, layout)]
    lines += [f"{layout.rule}{line[1:]}", *layout.titles, double]
    for device in host.devices:
        lines += [*_device(device, layout), line]
    lines += [" " * layout.blank, edge, *layout.process_titles, f"|{'=' * width}|"]
    processes = [(device, process) for device in host.devices for process in device.processes]
    lines += [_process(device, process, layout) for device, process in processes]
    if not processes:
        lines.append(f"|  {'No running processes found':<{width - 2}}|")
    return "\n".join([*lines, edge]) + "\n"


def _rules(layout: Layout) -> tuple[str, str]:
    single = "+".join("-" * width for width in layout.columns)
    return f"+{single}+", "|" + "+".join("=" * width for width in layout.columns) + "|"


def _header(host: SmiHost, layout: Layout) -> str:
    first, second = layout.header
    return (
        f"| NVIDIA-SMI {host.driver_version:<{first}} Driver Version: {host.driver_version:<{second}} "
        f"CUDA Version: {host.cuda_version:<8} |"
    )


def _device(device: SmiDevice, layout: Layout) -> list[str]:
    name = device.name
    if len(name) > layout.longest_name:
        name = name[: layout.longest_name - 3] + "..."
    fan = "N/A" if device.fan_percent is None else f"{device.fan_percent}%"
    state = f"{device.temperature}C    P{device.performance_state}"
    draw, cap = f"{device.power_w:.0f}W", f"{device.power_limit_w:.0f}W"
    used, total = f"{device.memory_used_mib}MiB", f"{device.memory_total_mib}MiB"
    persistence = "On" if device.persistence else "Off"
    lines = [
        f"|{device.index:>4}  {name:<{layout.name}}  {persistence:<3}{_gap(layout)}|"
        f"{'':{layout.bus_lead}}{device.bus_id} {'Off':>3} |{device.uncorrected_errors if device.ecc else 'N/A':>21} |",
        f"| {fan:>3}   {state:>9}{draw:>{layout.draw}} / {cap:>{layout.cap}} |"
        f"{used:>{layout.used}} / {total:>{layout.total}} |{device.utilization_gpu:>7}% {'Default':>12} |",
    ]
    if layout.has_mig:
        mig = "N/A" if device.compute_capability < (8, 0) or not device.ecc else "Enabled" if device.mig else "Disabled"
        first, second, _ = layout.columns
        lines.append(f"|{'':{first}}|{'':{second}}|{mig:>21} |")
    return lines


def _gap(layout: Layout) -> str:
    """What is left of the first column after the index, the name and "Off"."""
    return " " * (layout.columns[0] - 4 - 2 - layout.name - 2 - 3)


def _process(device: SmiDevice, process: SmiProcess, layout: Layout) -> str:
    name = process.name
    if len(name) > layout.process_name:
        name = "..." + name[3 - layout.process_name :]
    memory = f"{process.used_mib}MiB"
    instances = "   N/A  N/A " if layout.has_mig else " "
    return (
        f"|{device.index:>5}{instances}{process.pid:>{layout.pid}}{'C':>7}   "
        f"{name:<{layout.process_name}}{memory:>{layout.process_memory}} |"
    )
