"""nvidia-smi's queries: `--query-gpu` and `--query-compute-apps` as CSV."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.reports.parts.smi_data import SmiDevice, SmiHost, SmiProcess

ERRORS = ('Field "', "Unknown format", 'Option "--format')
"""How the texts of a refused query begin."""

Get = Callable[["SmiDevice", "SmiHost"], object]
_FIELDS: dict[str, tuple[str, Get]] = {
    "timestamp": ("", lambda d, h: h.timestamp),
    "driver_version": ("", lambda d, h: h.driver_version),
    "count": ("", lambda d, h: len(h.devices)),
    "name": ("", lambda d, h: d.name),
    "index": ("", lambda d, h: d.index),
    "uuid": ("", lambda d, h: d.uuid),
    "serial": ("", lambda d, h: None),
    "pci.bus_id": ("", lambda d, h: d.bus_id),
    "pci.domain": ("", lambda d, h: f"0x{d.bus_id.split(':')[0][-4:]}"),
    "pci.bus": ("", lambda d, h: f"0x{d.bus_id.split(':')[1]}"),
    "pci.device": ("", lambda d, h: f"0x{d.bus_id.split(':')[2].split('.')[0]}"),
    "pcie.link.gen.current": ("", lambda d, h: d.pcie_generation),
    "pcie.link.gen.max": ("", lambda d, h: d.pcie_generation),
    "pcie.link.width.current": ("", lambda d, h: 16),
    "pcie.link.width.max": ("", lambda d, h: 16),
    "display_mode": ("", lambda d, h: "Disabled"),
    "display_active": ("", lambda d, h: "Disabled"),
    "persistence_mode": ("", lambda d, h: "Enabled" if d.persistence else "Disabled"),
    "vbios_version": ("", lambda d, h: None),
    "pstate": ("", lambda d, h: f"P{d.performance_state}"),
    "fan.speed": ("%", lambda d, h: d.fan_percent),
    "memory.total": ("MiB", lambda d, h: d.memory_total_mib),
    "memory.reserved": ("MiB", lambda d, h: d.memory_reserved_mib),
    "memory.used": ("MiB", lambda d, h: d.memory_used_mib),
    "memory.free": ("MiB", lambda d, h: d.memory_free_mib),
    "compute_mode": ("", lambda d, h: "Default"),
    "compute_cap": ("", lambda d, h: "{}.{}".format(*d.compute_capability)),
    "utilization.gpu": ("%", lambda d, h: d.utilization_gpu),
    "utilization.memory": ("%", lambda d, h: d.utilization_memory),
    "utilization.encoder": ("%", lambda d, h: 0),
    "utilization.decoder": ("%", lambda d, h: 0),
    "ecc.mode.current": ("", lambda d, h: "Enabled" if d.ecc else None),
    "ecc.errors.uncorrected.volatile.total": ("", lambda d, h: d.uncorrected_errors if d.ecc else None),
    "ecc.errors.corrected.volatile.total": ("", lambda d, h: 0 if d.ecc else None),
    "mig.mode.current": (
        "",
        lambda d, h: None if d.compute_capability < (8, 0) else "Enabled" if d.mig else "Disabled",
    ),
    "temperature.gpu": ("", lambda d, h: d.temperature),
    "temperature.memory": ("", lambda d, h: None),
    "power.management": ("", lambda d, h: "Enabled"),
    "power.draw": ("W", lambda d, h: f"{d.power_w:.2f}"),
    "power.limit": ("W", lambda d, h: f"{d.power_limit_w:.2f}"),
    "enforced.power.limit": ("W", lambda d, h: f"{d.power_limit_w:.2f}"),
    "power.default_limit": ("W", lambda d, h: f"{d.power_limit_w:.2f}"),
    "power.max_limit": ("W", lambda d, h: f"{d.power_limit_w:.2f}"),
    "clocks.current.graphics": ("MHz", lambda d, h: d.clock_sm_mhz),
    "clocks.current.sm": ("MHz", lambda d, h: d.clock_sm_mhz),
    "clocks.current.memory": ("MHz", lambda d, h: d.clock_memory_mhz),
    "clocks.max.graphics": ("MHz", lambda d, h: d.clock_sm_max_mhz),
    "clocks.max.sm": ("MHz", lambda d, h: d.clock_sm_max_mhz),
    "clocks.max.memory": ("MHz", lambda d, h: d.clock_memory_mhz),
}
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
}
_APP_FIELDS: dict[str, tuple[str, Callable[[SmiDevice, SmiHost, SmiProcess], object]]] = {
    "timestamp": ("", lambda d, h, p: h.timestamp),
    "gpu_name": ("", lambda d, h, p: d.name),
    "gpu_bus_id": ("", lambda d, h, p: d.bus_id),
    "gpu_uuid": ("", lambda d, h, p: d.uuid),
    "pid": ("", lambda d, h, p: p.pid),
    "process_name": ("", lambda d, h, p: p.name),
    "used_gpu_memory": ("MiB", lambda d, h, p: p.used_mib),
}
_APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}


def run(kind: str, query: str, form: str, host: SmiHost) -> str:
    """The answer to a query as CSV, or nvidia-smi's complaint about it (which begins with one of `ERRORS`)."""
    words = [word.strip().lower() for word in form.split(",")]
    if "csv" not in words:
        return "Option \"--format=csv\" is missing. Please run 'nvidia-smi --help' for help.\n"
    for word in words:
        if word not in ("csv", "noheader", "nounits"):
            return f'Unknown format "{word}": csv, noheader and nounits are known.\n'
    apps = kind == "query-compute-apps"
    known: dict[str, tuple[str, Callable[..., object]]] = {**_APP_FIELDS} if apps else {**_FIELDS}
    aliases = _APP_ALIASES if apps else _ALIASES
    asked = [field.strip() for field in query.split(",")]
    keys = []
    for field in asked:
        key = aliases.get(field, field)
        if key not in known:
            return f'Field "{field}" is not a valid field to query.\n\n'
        keys.append(key)
    rows: list[tuple[object, ...]] = (
        [(d, host, p) for d in host.devices for p in d.processes] if apps else [(d, host) for d in host.devices]
    )
    lines = [] if "noheader" in words else [", ".join(_title(f, known[k][0]) for f, k in zip(asked, keys, strict=True))]
    unit = "nounits" not in words
    lines += [", ".join(_value(known[key], row, unit) for key in keys) for row in rows]
    return "".join(f"{line}\n" for line in lines)


def _title(field: str, unit: str) -> str:
    return f"{field} [{unit}]" if unit else field


def _value(field: tuple[str, Callable[..., object]], row: tuple[object, ...], with_unit: bool) -> str:
    unit, get = field
    value = get(*row)
    if value is None:
        return "[N/A]"
    return f"{value} {unit}" if unit and with_unit else str(value)


def describe() -> str:
    """`--help-query-gpu`: the fields that a query may ask for."""
    lines = ['List of valid properties to query for the switch "--query-gpu=":', ""]
    other: dict[str, list[str]] = {}
    for alias, key in _ALIASES.items():
        other.setdefault(key, []).append(alias)
    for field in _FIELDS:
        lines.append(" or ".join(f'"{name}"' for name in (field, *other.get(field, []))))
    return "\n".join(lines) + "\n"
