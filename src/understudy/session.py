"""An emulation as one object: it composes machine, seam and checks, for `understudy run`, pytest and programs."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from understudy import checks, gpus, live, reports
from understudy.cost.model import CostModel
from understudy.errors import InstallError, UsageError
from understudy.gpus import versions
from understudy.gpus.gpu import Gpu
from understudy.machine.alloc_conf import Settings, parse
from understudy.machine.allocator import CachingAllocator
from understudy.machine.device import Device
from understudy.machine.host_allocator import HostAllocator
from understudy.machine.machine import Machine
from understudy.machine.plan_cache import PlanCache
from understudy.seam.patching import Patches
from understudy.trace.finding import Finding
from understudy.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """How to emulate. The names are those of `understudy run`'s options.

    `gpus` is a spec such as "2xV100"; `cuda_version` "X.Y" or None for the documents' 11.2 (or the first that knows
    the GPUs); `clock` "virtual" or "real"; `async_copies` "late" or "clock"; `host_time` "modelled" or "measured".
    """

    gpus: str = "2"
    cuda_version: str | None = None
    seed: int = 0
    clock: str = "virtual"
    async_copies: str = "late"
    host_time: str = "modelled"
    no_data: bool = False
    stacks: bool = False


class Session:
    """A running (or ended) emulation: its `trace`, its `machine`, and what can be said of them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.models: tuple[Gpu, ...] = gpus.parse(options.gpus)
        wanted = options.cuda_version
        self.cuda_version = versions.parse_version(wanted) if wanted else versions.default_cuda(self.models)
        self.trace = Trace()
        self.settings = parse(_alloc_conf())
        self.machine = build_machine(self.models, self.cuda_version, self.trace, self.settings)
        self.machine.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        self._installations: list[Any] = []
        self._patches = Patches()
        self._write_facts()

    # ------------------------------------------------------------------ begin and end

    def begin(self) -> None:
        """Install the emulation into PyTorch.

        Raises:
            InstallError: PyTorch is missing, or used CUDA already, or is emulated already.
        """
        try:
            from understudy.seam.torch.install import Installation
            from understudy.seam.torch.state import State
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise InstallError(
                "PyTorch is not installed: pip install 'understudy[torch]' brings what the emulation needs"
            ) from error
        from understudy.seam import clock
        from understudy.seam.sites import Sites

        sites = Sites(self.trace.sites, self.options.stacks)
        state = State(
            self.machine,
            HostAllocator(self.settings, self.machine.host_events()),
            sites,
            self.cuda_version,
            self.options.async_copies == "clock",
        )
        installation = Installation(state)
        installation.install()
        self._installations.append(installation)
        if self.options.clock == "virtual":
            self._patches.apply(clock.patches(self.machine, lambda: state.local.host, sites))

    def end(self) -> None:
        """Put everything back and complete the trace."""
        self._patches.restore()
        while self._installations:
            self._installations.pop().uninstall()
        self.complete()

    def complete(self) -> None:
        """Write the totals of the devices into the trace."""
        self.trace.facts["devices"] = [_totals(device) for device in self.machine.devices]
        self.trace.facts["gpus"] = [_describe(device.gpu) for device in self.machine.devices]
        band = self.machine.band()
        self.trace.facts["band"] = None if band is None else round(band, 3)

    # ------------------------------------------------------------------ what can be said of it

    def findings(self) -> list[Finding]:
        """What the checks find in the trace so far, gravest first."""
        self.complete()
        return checks.run(self.trace.canonical())

    def report(self, path: str | Path) -> None:
        """Write a report in the format of the suffix of `path`."""
        self.complete()
        trace = self.trace.canonical()
        reports.write(Path(path), trace, checks.run(trace))

    def _write_facts(self) -> None:
        facts = self.trace.facts
        facts["options"] = asdict(self.options)
        facts["gpus"] = [_describe(gpu) for gpu in self.models]
        facts["devices"] = []
        facts["cuda_version"] = list(self.cuda_version)
        facts["program"] = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
        facts["rank"] = int(os.environ.get("RANK", "0") or 0)
        facts["versions"] = _versions()


def build_machine(models: tuple[Gpu, ...], cuda_version: tuple[int, int], trace: Trace, settings: Settings) -> Machine:
    """A machine of these GPUs, with allocators that follow PYTORCH_CUDA_ALLOC_CONF."""
    machine = Machine(trace, [])
    agents = iter(range(1, 1 << 62))
    for index, gpu in enumerate(models):
        driver = live.device_memory(index, len(models), gpu.memory_bytes, os.environ.get("UNDERSTUDY_RUN_DIR"))
        allocator = CachingAllocator(index, driver, settings, machine.events_of(index))
        plan_cache = PlanCache(cuda_version)
        cost = CostModel(gpu, cuda_version)
        context = versions.context_bytes(gpu, cuda_version)
        machine.devices.append(Device(index, gpu, cost, allocator, driver, plan_cache, lambda: next(agents), context))
    return machine


def _alloc_conf() -> str:
    """The allocator's settings in the environment; the newer name wins, as in PyTorch."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


@contextmanager
def emulate(gpus: str | int = "2", **options: Any) -> Iterator[Session]:
    """Emulate GPUs for what runs inside the `with` block.

    Args:
        gpus: a spec such as "2xV100", "V100:2", "A100,H100" or "2".
        options: further fields of `Options`.

    Raises:
        UsageError: an option or a GPU that does not exist.
        InstallError: this process used CUDA already, or an emulation is active.
    """
    session = Session(_options({"gpus": str(gpus), **options}))
    session.begin()
    try:
        yield session
    finally:
        session.end()


def _options(values: dict[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
    return Options(**values)


def install_from_environment() -> Session | None:
    """Begin the emulation that UNDERSTUDY_RUN describes, once a process; None where it describes none."""
    text = os.environ.get("UNDERSTUDY_RUN")
    if not text or _RUNNING:
        return _RUNNING[0] if _RUNNING else None
    session = Session(_options(json.loads(text)))
    session.begin()
    _RUNNING.append(session)
    folder = os.environ.get("UNDERSTUDY_RUN_DIR")
    atexit.register(_leave, session, folder, os.getpid())
    return session


_RUNNING: list[Session] = []


def _leave(session: Session, folder: str | None, process: int) -> None:
    if os.getpid() != process:
        return
    session.end()
    if folder and os.path.isdir(folder):
        session.trace.save(os.path.join(folder, f"{process}.trace"))


def _describe(gpu: Gpu) -> dict[str, Any]:
    return {
        "key": gpu.key,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "compute_capability": list(gpu.compute_capability),
        "sm_count": gpu.sm_count,
        "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "peak_flops": dict(gpu.peak_flops),
    }


def _totals(device: Device) -> dict[str, Any]:
    while device.frees:
        device.allocator.free(device.frees.popleft())
    stats: Any = device.allocator.memory_stats()
    return {
        "memory_bytes": device.gpu.memory_bytes,
        "peak_allocated_bytes": stats["allocated_bytes"]["all"]["peak"],
        "peak_reserved_bytes": stats["reserved_bytes"]["all"]["peak"],
        "allocated_bytes": stats["allocated_bytes"]["all"]["current"],
        "reserved_bytes": stats["reserved_bytes"]["all"]["current"],
        "context_bytes": device.context_bytes if device.context else 0,
        "retries": stats["num_alloc_retries"],
        "out_of_memory": stats["num_ooms"],
    }


def _versions() -> dict[str, str]:
    from understudy import __version__

    found = {"understudy": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found
